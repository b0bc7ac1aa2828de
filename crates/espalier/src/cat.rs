//! `espalier cat`: prints files, also of images that are not mounted. Several small files of one
//! directory of a mount are asked for at once.

use crate::args::Cat;
use crate::files::client::small_files;
use crate::files::located::{Located, with_tree};
use crate::files::tree::{Access, Data, Files, extents_of};
use crate::files::tree_source::Pieces;
use crate::problem::{Exit, Shown};
use crate::ui::complain;
use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// So many files are asked for at once.
const FILES_AT_ONCE: usize = 64;
/// Zeros that are written at a time, in bytes.
const ZEROS_BYTES: usize = 64 << 10;

/// Runs the command.
pub(crate) fn run(args: &Cat) -> Result<Exit> {
    let mut output = std::io::stdout().lock();
    let mut exit = Exit::Success;
    for files in args.files.chunk_by(|one, other| one.parent() == other.parent()) {
        for files in files.chunks(FILES_AT_ONCE) {
            match print_all(files, &mut output) {
                Ok(true) => {}
                Ok(false) => exit = Exit::Failure,
                // The reader has gone away.
                Err(error) if is_broken_pipe(&error) => return Ok(exit),
                Err(error) => return Err(error),
            }
        }
    }
    match output.flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(exit),
    }
}

/// Prints files of one directory; returns whether all could be read.
///
/// # Errors
/// The output does not take them.
fn print_all(files: &[PathBuf], output: &mut dyn Write) -> Result<bool> {
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    // A single one is opened, and so is what is no plain name.
    let directory = files[0].parent().filter(|_| files.len() > 1 && names.len() == files.len());
    let here = |directory: &Path| directory.as_os_str().is_empty();
    let directory = directory.map(|directory| if here(directory) { Path::new(".") } else { directory });
    let mut known = directory.map_or_else(Vec::new, |directory| small_files(directory, &names));
    known.resize_with(files.len(), || None);
    let mut is_whole = true;
    for (path, content) in files.iter().zip(known) {
        if let Some(content) = content {
            output.write_all(&content)?;
            continue;
        }
        match with_tree(&Located::new(path), Access::Read, |files| print(files, output)) {
            Ok(()) => {}
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                complain!("espalier cat: {}: {}", path.display(), Shown(&error));
                is_whole = false;
            }
        }
    }
    Ok(is_whole)
}

fn print(files: &dyn Files, output: &mut dyn Write) -> Result<()> {
    let file = files.open(b"")?;
    let mut pieces = Pieces::new(&*file, extents_of(&*file)?);
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
