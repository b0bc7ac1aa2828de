//! The steps of a comparison. Each works in one directory and builds on what the steps before left.

use super::plan::Amount;
use super::recording::Recording;
use crate::random::Random;
use crate::system::make_durable;
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Small files in a directory.
const FILES_PER_DIR: usize = 100;
/// The small files have up to so many bytes.
const MAX_SMALL_BYTES: u64 = 8192;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Create,
    Stat,
    ReadSmall,
    Rename,
    Append,
    WriteLarge,
    ReadLarge,
    Overwrite,
    Remove,
}

impl Work {
    /// In their order.
    pub(super) const ALL: [Self; 9] = [
        Self::Create,
        Self::Stat,
        Self::ReadSmall,
        Self::Rename,
        Self::Append,
        Self::WriteLarge,
        Self::ReadLarge,
        Self::Overwrite,
        Self::Remove,
    ];

    /// Its name in tables and figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::ReadSmall => "read small",
            Self::Rename => "rename",
            Self::Append => "append+fsync",
            Self::WriteLarge => "write 1M",
            Self::ReadLarge => "read 1M",
            Self::Overwrite => "overwrite 4K",
            Self::Remove => "remove",
        }
    }

    /// What one operation is.
    pub(super) fn meaning(name: &str) -> &'static str {
        match name {
            "create" => "making, writing and closing a file of up to 8 KiB",
            "stat" => "asking for the attributes of a file",
            "read small" => "opening, reading and closing a file of up to 8 KiB",
            "rename" => "moving a file to another directory",
            "append+fsync" => "appending 4 KiB to a file, and an fsync",
            "write 1M" => "writing 1 MiB behind the end of a file",
            "read 1M" => "reading the next 1 MiB of a file",
            "overwrite 4K" => "overwriting 4 KiB at a random place of a file",
            "remove" => "removing a file, or an empty directory",
            _ => "an operation",
        }
    }
}

/// Does steps.
pub(super) struct Worker(Amount);

impl Worker {
    /// Does so much.
    pub(super) fn new(amount: Amount) -> Self {
        Self(amount)
    }

    /// How much memory is to be at hand before a step, in bytes.
    pub(super) fn touched_bytes(&self) -> u64 {
        self.0.cache_bytes / 2
    }

    /// Does a step in `root`.
    pub(super) fn run(&self, work: Work, root: &Path) -> Result<Recording> {
        let (tree, moved, large) = (root.join("tree"), root.join("moved"), root.join("large"));
        let mut recording = Recording::begin();
        match work {
            Work::Create => self.create(&tree, &mut recording)?,
            Work::Stat => self.each(&tree, |path| {
                recording
                    .operation(0, || path.metadata())
                    .map(drop)
                    .with_context(|| path.display().to_string())
            })?,
            Work::ReadSmall => self.each(&tree, |path| read_small(path, &mut recording))?,
            Work::Rename => self.rename(&tree, &moved, &mut recording)?,
            Work::Append => append(&root.join("log"), self.0.appends, &mut recording)?,
            Work::WriteLarge => write_large(&large, self.0.file_bytes, &mut recording)?,
            Work::ReadLarge => read_large(&large, self.0.file_bytes, &mut recording)?,
            Work::Overwrite => overwrite(&large, self.0, &mut recording)?,
            Work::Remove => {
                for dir in [&tree, &moved] {
                    remove(dir, &mut recording)?;
                }
            }
        }
        make_durable(root)?;
        Ok(recording.end())
    }

    /// Calls `each` with the path of every small file, in an order that is none of their names.
    fn each(&self, tree: &Path, mut each: impl FnMut(&Path) -> Result<()>) -> Result<()> {
        // A step that has no divisor in common with the number visits each once.
        let stride = (self.0.files / 3..).find(|step| gcd(*step, self.0.files) == 1).unwrap_or(1);
        (0..self.0.files).try_for_each(|at| each(&small(tree, at * stride % self.0.files)))
    }

    fn create(&self, tree: &Path, recording: &mut Recording) -> Result<()> {
        std::fs::create_dir(tree).with_context(|| tree.display().to_string())?;
        let mut random = Random(7);
        let mut data = vec![0; MAX_SMALL_BYTES as usize];
        random.fill(&mut data);
        for at in 0..self.0.files {
            if at % FILES_PER_DIR == 0 {
                std::fs::create_dir(dir_of(tree, at))?;
            }
            let bytes = random.next() % MAX_SMALL_BYTES + 1;
            recording.operation(bytes, || std::fs::write(small(tree, at), &data[..bytes as usize]))?;
        }
        Ok(())
    }

    fn rename(&self, tree: &Path, moved: &Path, recording: &mut Recording) -> Result<()> {
        std::fs::create_dir(moved)?;
        for at in (0..self.0.files).step_by(2) {
            if at % FILES_PER_DIR == 0 {
                std::fs::create_dir(dir_of(moved, at))?;
            }
            recording.operation(0, || std::fs::rename(small(tree, at), small(moved, at)))?;
        }
        Ok(())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn dir_of(tree: &Path, at: usize) -> PathBuf {
    tree.join(format!("directory-{:04}", at / FILES_PER_DIR))
}

fn small(tree: &Path, at: usize) -> PathBuf {
    dir_of(tree, at).join(format!("file-{at:06}"))
}

fn read_small(path: &Path, recording: &mut Recording) -> Result<()> {
    let read = recording.operation(0, || std::fs::read(path)).with_context(|| path.display().to_string())?;
    ensure!(!read.is_empty(), "{} is empty", path.display());
    Ok(())
}

fn append(path: &Path, count: u64, recording: &mut Recording) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let mut data = [0; BLOCK as usize];
    Random(3).fill(&mut data);
    (0..count).try_for_each(|_| {
        recording
            .operation(BLOCK, || file.write_all(&data).and_then(|()| file.sync_all()))
            .map_err(Into::into)
    })
}

fn write_large(path: &Path, bytes: u64, recording: &mut Recording) -> Result<()> {
    let mut file = File::create(path)?;
    let mut data = vec![0; MIB as usize];
    Random(1).fill(&mut data);
    for number in 0..bytes / MIB {
        // No mebibyte equals another.
        data[..8].copy_from_slice(&number.to_le_bytes());
        recording.operation(MIB, || file.write_all(&data))?;
    }
    Ok(file.sync_all()?)
}

fn read_large(path: &Path, bytes: u64, recording: &mut Recording) -> Result<()> {
    let mut file = File::open(path)?;
    let mut data = vec![0; MIB as usize];
    for number in 0..bytes / MIB {
        recording.operation(MIB, || file.read_exact(&mut data))?;
        ensure!(data[..8] == number.to_le_bytes(), "mebibyte {number} of {} is wrong", path.display());
    }
    Ok(())
}

fn overwrite(path: &Path, amount: Amount, recording: &mut Recording) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut random = Random(5);
    let mut data = [0; BLOCK as usize];
    for _ in 0..amount.overwrites {
        random.fill(&mut data);
        let block = random.next() % (amount.file_bytes / BLOCK);
        recording.operation(BLOCK, || file.write_all_at(&data, block * BLOCK))?;
    }
    Ok(file.sync_all()?)
}

/// Removes a tree of two levels.
fn remove(tree: &Path, recording: &mut Recording) -> Result<()> {
    for dir in std::fs::read_dir(tree)? {
        let dir = dir?.path();
        for file in std::fs::read_dir(&dir)? {
            let file = file?.path();
            recording.operation(0, || std::fs::remove_file(&file))?;
        }
        recording.operation(0, || std::fs::remove_dir(&dir))?;
    }
    recording.operation(0, || std::fs::remove_dir(tree))?;
    Ok(())
}
