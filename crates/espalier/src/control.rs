//! Asks the server of a mount for what `include/espalier.h` describes.

use anyhow::{Context, Result, anyhow, bail};
use espalier_fuse::control::{self, Token};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Carries out an ioctl whose argument is `argument`, which then holds what it brings back.
///
/// # Errors
/// What the system says.
pub(crate) fn ask(file: &File, command: u32, argument: &mut [u8]) -> std::io::Result<()> {
    assert_eq!(argument.len(), control::size(command), "the argument has the size that the number says");
    // SAFETY: the kernel reads and writes as many bytes as the number says, and the slice has that
    // many.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Opens a file or directory to ask about it.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("{} cannot be opened", path.display()))
}

/// A token for an open file or directory.
///
/// # Errors
/// If it does not lie in a mount of Espalier.
pub(crate) fn token(file: &File, path: &Path) -> Result<Token> {
    let mut token = Token::default();
    ask(file, control::TOKEN, &mut token).map_err(|e| explain(e, path))?;
    Ok(token)
}

/// Directory and name of what a path leads to or shall lead to.
///
/// # Errors
/// If the path ends in nothing that is a name.
pub(crate) fn split(path: &Path) -> Result<(PathBuf, Vec<u8>)> {
    let name = path.file_name().ok_or_else(|| anyhow!("{} does not end with a name", path.display()))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), name.as_bytes().to_vec()))
}

/// The argument of an ioctl that takes a name.
///
/// # Errors
/// If the name is too long.
pub(crate) fn name_argument(flags: u32, name: &[u8]) -> Result<Vec<u8>> {
    match control::name_argument(flags, name) {
        Some(argument) => Ok(argument),
        None => bail!("a name of {} bytes; 255 are allowed", name.len()),
    }
}

/// Says what to do about the failure of an ioctl.
pub(crate) fn explain(error: std::io::Error, path: &Path) -> anyhow::Error {
    let shown = path.display();
    match error.raw_os_error() {
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => {
            anyhow!("{shown} does not lie in a mounted Espalier file system")
        }
        Some(libc::EPERM) => anyhow!(
            "{shown}: something there belongs to another user or may run as another user, which only root may do, or is immutable or append-only (lsattr -R)"
        ),
        Some(libc::EACCES) => anyhow!("{shown}: you may not make or remove entries in its directory"),
        Some(libc::EEXIST) => anyhow!("{shown} exists already"),
        Some(libc::ENOSPC) => anyhow!(
            "{shown}: the file system is full; remove something, or make it larger (espalier resize DIR SIZE)"
        ),
        Some(libc::ESTALE) => anyhow!("{shown} was removed in the meantime"),
        _ => anyhow!(error).context(format!("{shown}")),
    }
}
