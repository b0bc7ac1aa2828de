//! A site: a directory in which the steps are done, and what lies below it.

use super::plan::Plan;
use crate::contender::{Contender, Setup};
use crate::system::{self, Undo};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory for the work in a directory that is there.
const WORK_NAME: &str = "espalier-bench-work";

/// See the [module](self).
pub(super) struct Site {
    pub(super) name: String,
    root: PathBuf,
    /// The file system that is made for it; `None`: what is there is used.
    made: Option<Contender>,
    is_mounted: bool,
}

impl Site {
    /// A directory that is there. The work is done in a new directory in it.
    pub(super) fn directory(dir: &Path, plan: &Plan, undo: &Undo) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("{} cannot be used", dir.display()))?;
        let told = rustix::fs::statvfs(&dir).with_context(|| format!("{} cannot be used", dir.display()))?;
        let needed = 2 * plan.amount.file_bytes + plan.amount.files as u64 * 16_384;
        ensure!(
            told.f_bavail * told.f_frsize >= needed,
            "{}: {} MiB have to be free",
            dir.display(),
            needed >> 20
        );
        let root = dir.join(WORK_NAME);
        std::fs::create_dir(&root).with_context(|| {
            format!("{} cannot be made; remove it if an earlier run left it", root.display())
        })?;
        undo.push({
            let root = root.clone();
            move || drop(std::fs::remove_dir_all(root))
        });
        Ok(Self { name: dir.display().to_string(), root, made: None, is_mounted: true })
    }

    /// A file system that is made for each round.
    pub(super) fn made(name: &str, scratch: &Path, plan: &Plan, undo: &Undo) -> Result<Self> {
        let setup = Setup {
            dir: scratch,
            device_size: plan.amount.device_bytes,
            device: plan.device.as_deref(),
            espalier: &plan.espalier,
            before: None,
            bound: None,
            cache: plan.amount.cache_bytes,
            entries: 0,
        };
        let contender = Contender::new(name, &setup, undo)?;
        Ok(Self { name: name.into(), root: contender.dir.clone(), made: Some(contender), is_mounted: false })
    }

    /// Where the steps are done.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// How the kernel reaches the server, where Espalier is mounted.
    pub(super) fn transport(&self, espalier: &Path) -> Option<String> {
        let told = Command::new(espalier).args(["info", "--json"]).arg(&self.root).output().ok()?;
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).ok()?;
        Some(told["mount"]["transport"].as_str()?.to_owned())
    }

    /// A round begins.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.made.as_mut().map_or(Ok(()), Contender::make)
    }

    /// Empties all caches. False if this user may not.
    pub(super) fn make_cold(&mut self) -> Result<bool> {
        match &mut self.made {
            None if rustix::process::geteuid().is_root() => system::drop_caches().map(|()| true),
            None => Ok(false),
            Some(contender) if self.is_mounted => contender.remount_cold().map(|_| true),
            Some(contender) => {
                system::drop_caches()?;
                contender.mount()?;
                self.is_mounted = true;
                Ok(true)
            }
        }
    }

    /// A round ends.
    pub(super) fn end(&mut self) -> Result<()> {
        match &mut self.made {
            Some(contender) if self.is_mounted => {
                self.is_mounted = false;
                contender.unmount()
            }
            Some(_) => Ok(()),
            None => {
                std::fs::remove_dir_all(&self.root)?;
                Ok(std::fs::create_dir(&self.root)?)
            }
        }
    }
}
