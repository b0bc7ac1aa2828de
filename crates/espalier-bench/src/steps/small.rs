//! Many small files, as TokuBench makes them (BetrFS 0.2, FAST 2015, section 7): 200 bytes each, in
//! a balanced tree of directories with 128 entries.

use anyhow::Result;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Entries of a directory.
const FANOUT: u64 = 128;

/// Bytes of a file.
const LENGTH: usize = 200;

/// Makes `count` files below the new directory `root`, in the order of their names.
pub(crate) fn create(root: &Path, count: u64) -> Result<()> {
    std::fs::create_dir(root)?;
    create_range(root, 0..count)
}

/// Makes the files with these numbers, and the directories of those that are first in theirs.
pub(crate) fn create_range(root: &Path, numbers: std::ops::Range<u64>) -> Result<()> {
    let mut directory = PathBuf::new();
    for number in numbers.clone() {
        if number % FANOUT == 0 || number == numbers.start {
            directory = directory_of(root, number);
            std::fs::create_dir_all(&directory)?;
        }
        let mut file = File::create(directory.join(format!("{:03}", number % FANOUT)))?;
        file.write_all(&[number as u8; LENGTH])?;
    }
    Ok(())
}

/// The path of the file with this number.
pub(crate) fn path_of(root: &Path, number: u64) -> PathBuf {
    directory_of(root, number).join(format!("{:03}", number % FANOUT))
}

/// The directory of a file: two levels of directories below `root`, and more if they do not hold
/// all.
fn directory_of(root: &Path, number: u64) -> PathBuf {
    let lowest = number / FANOUT;
    root.join(format!("{:05}", lowest / FANOUT)).join(format!("{:03}", lowest % FANOUT))
}
