//! Where a tree lies: a directory of a mount, or a directory of an image that is not mounted.

use crate::calls::Calls;
use crate::error::{Error, Result};
use crate::image::{ImageCalls, ImageOptions, Opened};
use crate::mounted::MountCalls;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What a place names. A path that exists is itself, whatever colons it has. In any other the part
/// before a colon is an image if it is a file or a block device, and what follows is a path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A directory of the system.
    Directory(PathBuf),
    /// An image, and a directory in it.
    Image(PathBuf, Vec<u8>),
}

impl Place {
    /// Finds out what `path` names.
    ///
    /// # Errors
    /// ENOENT if it is nothing, ENOTDIR if it is neither directory nor image.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let is_image = |path: &Path| {
            path.metadata().is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
        };
        match path.metadata() {
            Ok(found) if found.is_dir() => return Ok(Self::Directory(path.into())),
            Ok(_) if is_image(path) => return Ok(Self::Image(path.into(), b"/".to_vec())),
            Ok(_) => return Err(Error::new(libc::ENOTDIR, "neither a directory nor an image")),
            Err(_) => {}
        }
        let bytes = path.as_os_str().as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
        let image = colons.map(|(at, _)| at).find(|at| is_image(Path::new(OsStr::from_bytes(&bytes[..*at]))));
        let Some(colon) = image else {
            let message = "there is no such directory, and no image (IMAGE, or IMAGE:/DIRECTORY)";
            return Err(Error::new(libc::ENOENT, message));
        };
        let inside = [b"/", &bytes[colon + 1..]].concat();
        Ok(Self::Image(OsStr::from_bytes(&bytes[..colon]).into(), inside))
    }
}

/// How the calls of a place are found, by each process for itself.
pub(crate) enum Located {
    /// By the server of the mount in which this directory lies.
    Mount(std::fs::File),
    /// In an image, below a directory.
    Image(PathBuf, Vec<u8>, ImageOptions),
}

impl Located {
    /// Opens the place for this process; in a child of `fork`, `first` is the process that opened
    /// it before.
    ///
    /// # Errors
    /// Of [`MountCalls::connect`] and [`Opened::open`]; EBUSY in a child for an image that its
    /// parent writes.
    pub(crate) fn open(&self, first: Option<u32>) -> Result<Box<dyn Calls>> {
        match (self, first) {
            (Self::Mount(directory), _) => Ok(Box::new(MountCalls::connect(directory)?)),
            (Self::Image(_, _, options), Some(first)) if !options.read_only => {
                let message = format!(
                    "process {first}, from which this one was forked, has the image open to write; open it \
                     after the fork, or read-only"
                );
                Err(Error::new(libc::EBUSY, message))
            }
            (Self::Image(path, inside, options), _) => {
                Ok(Box::new(ImageCalls::new(Opened::open(path, inside, options)?)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
