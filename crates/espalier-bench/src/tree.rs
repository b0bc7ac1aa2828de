//! The source tree as a plain tar archive, so that no step measures a decompressor.

use crate::options::Options;
use crate::system;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const TAR_RECORD_BYTES: u64 = 512;

/// Makes the plain archive in the working directory unless it is there, cut to `tree_bytes`.
pub(crate) fn prepare(options: &Options) -> Result<PathBuf> {
    ensure!(
        options.tree.exists(),
        "{} is not there: install linux-source-6.1, or name another tar archive with --tree",
        options.tree.display()
    );
    let whole = options.dir.join("tree.tar");
    if !whole.exists() {
        println!("unpacking {} once", options.tree.display());
        decompress(&options.tree, &whole)?;
    }
    if options.tree_bytes == 0 {
        return Ok(whole);
    }
    let part = options.dir.join(format!("tree-{}.tar", options.tree_bytes));
    if !part.exists() {
        cut(&whole, &part, options.tree_bytes)?;
    }
    Ok(part)
}

fn decompress(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    if from.extension().is_some_and(|e| e == "xz") {
        let out = File::create(&partial)?;
        let status = Command::new("xz").args(["-T0", "-dc"]).arg(from).stdout(out).status()?;
        ensure!(status.success(), "{} cannot be decompressed", from.display());
    } else {
        std::fs::copy(from, &partial)?;
    }
    std::fs::rename(partial, to)?;
    system::drop_caches()
}

/// Copies whole members until `limit` bytes are reached, and ends the archive properly.
fn cut(from: &Path, to: &Path, limit: u64) -> Result<()> {
    let mut input = BufReader::new(File::open(from)?);
    let mut out = BufWriter::new(File::create(to)?);
    let mut header = [0u8; TAR_RECORD_BYTES as usize];
    let mut copied = 0;
    loop {
        input.read_exact(&mut header).context("the archive ends early")?;
        if header.iter().all(|&b| b == 0) {
            break;
        }
        // A member that only describes the next one must not be the last.
        let describes_next = matches!(header[156], b'L' | b'K' | b'x' | b'g');
        if copied >= limit && !describes_next {
            break;
        }
        let length = octal(&header[124..136])?.next_multiple_of(TAR_RECORD_BYTES);
        out.write_all(&header)?;
        std::io::copy(&mut input.by_ref().take(length), &mut out)?;
        copied += TAR_RECORD_BYTES + length;
    }
    out.write_all(&[0; 2 * TAR_RECORD_BYTES as usize])?;
    out.into_inner()?.sync_all()?;
    Ok(())
}

fn octal(field: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(field);
    let digits = text.trim_matches(|c: char| c == '\0' || c == ' ');
    match u64::from_str_radix(digits, 8) {
        Ok(number) => Ok(number),
        Err(_) => bail!("the archive has a size '{digits}'"),
    }
}
