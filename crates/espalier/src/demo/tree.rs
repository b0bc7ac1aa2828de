//! The source tree that the demonstration unpacks.

use super::program::run_quietly;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the tree comes from.
#[derive(Debug)]
pub(crate) enum Tree {
    /// An archive for tar.
    Archive(PathBuf),
    /// A directory to copy.
    Directory(PathBuf),
}

impl Tree {
    /// The one asked for, or the best of what is there: the Linux source, or Rust sources.
    pub(crate) fn choose(wanted: Option<&Path>) -> Result<Self> {
        if let Some(path) = wanted {
            let path = path.canonicalize().with_context(|| format!("{} is not there", path.display()))?;
            return Ok(if path.is_dir() { Self::Directory(path) } else { Self::Archive(path) });
        }
        let linux = PathBuf::from("/usr/src/linux-source-6.1.tar.xz");
        if linux.exists() {
            return Ok(Self::Archive(linux));
        }
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".cargo"))
        });
        let registry = home.map(|h| h.join("registry/src")).filter(|p| p.is_dir());
        let found = registry.or_else(|| Some(PathBuf::from("crates")).filter(|p| p.is_dir()));
        let path = found.context("no source tree is here; name one with --tree")?;
        Ok(Self::Directory(path.canonicalize()?))
    }

    /// Puts it into the empty directory `target`.
    pub(crate) fn unpack(&self, target: &Path) -> Result<()> {
        match self {
            Self::Archive(path) => {
                run_quietly(Command::new("tar").arg("-xf").arg(path).arg("-C").arg(target))
            }
            Self::Directory(path) => {
                run_quietly(Command::new("cp").arg("-a").arg(path.join(".")).arg(target))
            }
        }
    }

    /// Compares `target` with the original, byte by byte.
    pub(crate) fn compare(&self, target: &Path) -> Result<()> {
        ensure!(target.read_dir()?.next().is_some(), "{} is empty", target.display());
        match self {
            Self::Archive(path) => {
                run_quietly(Command::new("tar").arg("-df").arg(path).arg("-C").arg(target))
            }
            Self::Directory(path) => {
                run_quietly(Command::new("diff").args(["-rq", "--no-dereference"]).arg(path).arg(target))
            }
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Archive(path) | Self::Directory(path)) = self;
        let name = path.file_name().unwrap_or(path.as_os_str());
        write!(f, "{}", name.to_string_lossy())
    }
}
