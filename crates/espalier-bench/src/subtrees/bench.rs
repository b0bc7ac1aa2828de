//! What a scenario works with: a mounted contender, and where the figures go.

use super::figures::Figures;
use crate::contender::Contender;
use crate::steps::Setting;
use crate::system;
use crate::system::make_durable;
use anyhow::{Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a scenario works with.
pub(super) struct Bench<'a> {
    pub(super) contender: &'a mut Contender,
    pub(super) setting: &'a Setting,
    pub(super) scale: usize,
    pub(super) figures: &'a mut Figures,
}

impl Bench<'_> {
    /// The root of the file system.
    pub(super) fn root(&self) -> PathBuf {
        self.contender.dir.clone()
    }

    /// A number of things, divided by the scale.
    pub(super) fn count(&self, full: usize) -> usize {
        (full / self.scale).max(2)
    }

    /// Tells a figure of this contender.
    pub(super) fn tell(&mut self, name: &str, value: f64) {
        println!("         {:<12} {name:<32} {value:>12.3}", self.contender.name);
        self.figures.add(&self.contender.name, name, value);
    }

    /// Does something and tells how many milliseconds it took.
    pub(super) fn time<T>(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = work(self)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        self.tell(name, milliseconds);
        Ok(done)
    }

    /// Unpacks the source tree into the new directory `name` of the root; the result is its path.
    pub(super) fn unpack(&self, name: &str) -> Result<PathBuf> {
        let tree = self.root().join(name);
        std::fs::create_dir_all(&tree)?;
        system::output(Command::new("tar").arg("-xf").arg(&self.setting.tarball).arg("-C").arg(&tree))?;
        Ok(tree)
    }

    /// Makes everything durable.
    pub(super) fn settle(&self) -> Result<()> {
        make_durable(&self.root())
    }

    /// Clones a directory: our command, or the peers' `cp -a --reflink=always`.
    pub(super) fn clone_tree(&self, from: &Path, to: &Path) -> Result<()> {
        let ours = self.contender.espalier(&[OsStr::new("clone"), from.as_os_str(), to.as_os_str()])?;
        if ours.is_none() {
            system::output(Command::new("cp").args(["-a", "--reflink=always"]).arg(from).arg(to))?;
        }
        Ok(())
    }

    /// Removes a directory and all below: our command, or `rm -rf`.
    pub(super) fn remove_tree(&self, dir: &Path) -> Result<()> {
        if self.contender.espalier(&[OsStr::new("rm"), dir.as_os_str()])?.is_none() {
            system::output(Command::new("rm").arg("-rf").arg(dir))?;
        }
        Ok(())
    }

    /// Waits until `df` tells no more than `bytes` in use; the result is how many seconds it took.
    pub(super) fn wait_for_space(&self, bytes: u64) -> Result<f64> {
        let started = Instant::now();
        while self.contender.used_bytes()? > bytes {
            ensure!(
                started.elapsed() < Duration::from_secs(60),
                "{} bytes are in use after a minute, {bytes} were expected",
                self.contender.used_bytes()?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Regular files below `dir`, in a stable order, at most `limit`.
pub(super) fn files_below(dir: &Path, limit: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(&dir)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
            if found.len() == limit {
                return Ok(found);
            }
        }
    }
    Ok(found)
}
