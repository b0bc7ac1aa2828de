//! Conditional replacement in a local directory, which `object_store` does not offer there.
//!
//! Protocol: a put with a condition takes a lock on a file in the directory, looks at the object,
//! and puts it in the way of `object_store`: a file with another name, synced and renamed. The lock
//! is one of the system (`flock(2)`), so it ends with its process.
//!
//! Invariant: every conditional put goes this way, so the condition holds until the put is done.

use super::{Condition, Failure, FailureKind, MAX_WHOLE_BYTES, Version, too_large};
use bytes::Bytes;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The name of the lock file, of the staging file's ending.
const LOCK_NAME: &str = ".lock";
const STAGED_ENDING: &str = "staged";

/// The version of an object with these bytes.
pub(super) fn version(bytes: &[u8]) -> Version {
    Version(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes)))
}

/// Puts an object if the condition holds.
///
/// # Errors
/// [`FailureKind::Condition`] if it does not; what the system says.
pub(super) fn put_if(
    directory: &Path,
    name: &str,
    body: &[Bytes],
    condition: &Condition,
) -> Result<Version, Failure> {
    let path = directory.join(name);
    let failed = |doing: &str, error: std::io::Error| system(doing, &path, &error);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| failed("make the directory of", e))?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = rustix::fs::open(directory.join(LOCK_NAME), flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| failed("open the lock of", e.into()))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed("lock", e.into()))?;
    let present = match read(&path) {
        Ok(bytes) if bytes.len() as u64 > MAX_WHOLE_BYTES => {
            return Err(too_large(&path.to_string_lossy(), bytes.len() as u64, MAX_WHOLE_BYTES));
        }
        Ok(bytes) => Some(version(&bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed("read", e)),
    };
    let holds = match condition {
        Condition::None => true,
        Condition::Absent => present.is_none(),
        Condition::Matches(version) => present.as_ref() == Some(version),
    };
    if !holds {
        let message = format!("{} is not what the put expects", path.display());
        return Err(Failure::new(FailureKind::Condition, message));
    }
    write(&path, body).map_err(|e| failed("write", e))?;
    Ok(version(&body.concat()))
}

/// The bytes of a file; of one that is too large a few more than there may be.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_WHOLE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes and syncs a file under another name, gives it its name, and syncs that.
fn write(path: &Path, body: &[Bytes]) -> std::io::Result<()> {
    let staged: PathBuf = path.with_extension(STAGED_ENDING);
    let mut file = std::fs::File::create(&staged)?;
    for bytes in body {
        file.write_all(bytes)?;
    }
    file.sync_all()?;
    std::fs::rename(&staged, path)?;
    match path.parent() {
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn system(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => FailureKind::Denied,
        std::io::ErrorKind::NotFound => FailureKind::NotFound,
        _ => FailureKind::Unknown,
    };
    Failure::new(kind, format!("cannot {doing} {}: {error}", path.display()))
}
