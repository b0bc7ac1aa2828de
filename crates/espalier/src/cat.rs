//! `espalier cat`: prints files, also of images that are not mounted.

use crate::args::Cat;
use crate::files::located::{Located, with_tree};
use crate::files::tree::{Access, Data, Files};
use crate::files::tree_source::Pieces;
use crate::problem::{Exit, Shown};
use crate::ui::complain;
use anyhow::Result;
use std::io::{ErrorKind, Write};

/// Zeros that are written at a time, in bytes.
const ZEROS_BYTES: usize = 64 << 10;

/// Runs the command.
pub(crate) fn run(args: &Cat) -> Result<Exit> {
    let mut output = std::io::stdout().lock();
    let mut exit = Exit::Success;
    for path in &args.files {
        let printed = with_tree(&Located::new(path), Access::Read, |files| print(files, &mut output));
        match printed {
            Ok(()) => {}
            // The reader has gone away.
            Err(error) if is_broken_pipe(&error) => return Ok(exit),
            Err(error) => {
                complain!("espalier cat: {}: {}", path.display(), Shown(&error));
                exit = Exit::Failure;
            }
        }
    }
    match output.flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(exit),
    }
}

fn print(files: &dyn Files, output: &mut dyn Write) -> Result<()> {
    let file = files.open(b"")?;
    let mut pieces = Pieces::new(&*file, file.extents()?);
    let (mut buffer, mut at) = (Vec::new(), 0);
    while let Some(offset) = pieces.next(&mut buffer)? {
        print_zeros(offset - at, output)?;
        output.write_all(&buffer)?;
        at = offset + buffer.len() as u64;
    }
    print_zeros(file.size() - at, output)
}

fn print_zeros(mut count: u64, output: &mut dyn Write) -> Result<()> {
    let zeros = [0; ZEROS_BYTES];
    while count > 0 {
        let length = count.min(zeros.len() as u64);
        output.write_all(&zeros[..length as usize])?;
        count -= length;
    }
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
