//! Snapshots: volumes of the store beside the one that is mounted, which hold what that, or a
//! directory of it, held at one instant.
//!
//! Their names say what they are: `snapshot:SECONDS:NAME`, with the time of their
//! making since the Unix epoch, and for a directory `snapshot:SECONDS@NUMBER:NAME`, with the
//! directory's `st_ino`, which stays when it is moved. Those of directories are made and restored
//! in `snapshot/tree`.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::{Attr, MAX_NAME, OpenOptions};
use crate::volume::context::find_volume;
use espalier_engine::{READ_ONLY_VOLUME, Store};

const PREFIX: &str = "snapshot:";
/// The longest name of a snapshot, in bytes: the volume's name has room for no more.
const NAME_MAX_BYTES: usize = MAX_NAME - 48;

/// The name under which a directory shows its snapshots.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshots";

/// The inode number of the directory of snapshots in the root: the last but one, which no file
/// gets.
const ROOT_SNAPSHOTS_NUMBER: u64 = u64::MAX - 1;

/// The inode number of the directory of snapshots of the directory with number `directory`, of the
/// whole volume without. It is the number of a file as rarely as two clones share one.
pub fn snapshot_directory_number(directory: Option<u64>) -> u64 {
    directory.map_or(ROOT_SNAPSHOTS_NUMBER, |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63)
}

/// The attributes of the directory that shows the `count` snapshots of a directory: `above` with
/// number `directory`, or the root (`None`).
pub fn snapshot_directory_attr(directory: Option<u64>, above: &Attr, count: usize) -> Attr {
    Attr {
        ino: snapshot_directory_number(directory),
        size: count as u64,
        nlink: 2 + count as u32,
        // No application can create an entry in it.
        mode: above.mode & !0o222,
        ..above.clone()
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name: among those of the whole volume, or of the same directory, no other has it.
    pub name: String,
    /// Of which directory, by `st_ino`; `None`: of the whole volume.
    pub directory: Option<u64>,
    /// When it was made, in seconds since the Unix epoch.
    pub created: u64,
    /// It can be changed when it is mounted on its own.
    pub writable: bool,
    /// The volume's number in the store.
    pub id: u32,
    /// The volume's name in the store.
    pub volume: String,
}

/// All snapshots of a store, oldest first.
pub fn snapshots(store: &Store) -> Vec<SnapshotInfo> {
    let mut all: Vec<SnapshotInfo> = store
        .volumes()
        .into_iter()
        .filter_map(|volume| {
            let (created, name) = volume.name.strip_prefix(PREFIX)?.split_once(':')?;
            let (created, directory) = match created.split_once('@') {
                Some((created, number)) => (created, Some(u64::from_str_radix(number, 16).ok()?)),
                None => (created, None),
            };
            Some(SnapshotInfo {
                name: name.to_owned(),
                directory,
                created: created.parse().ok()?,
                writable: volume.flags & READ_ONLY_VOLUME == 0,
                id: volume.id,
                volume: volume.name.clone(),
            })
        })
        .collect();
    all.sort_by_key(|snapshot| (snapshot.created, snapshot.id));
    all
}

/// The snapshot of that name; that of a directory is named with the directory's `st_ino`:
/// `NUMBER/NAME`.
///
/// # Errors
/// [`FsErrorKind::NotFound`].
pub fn find_snapshot(store: &Store, name: &str) -> Result<SnapshotInfo> {
    match name.split_once('/').map(|(number, name)| (number.parse().ok(), name)) {
        Some((None, _)) => no_snapshot(name),
        Some((directory, name)) => find_snapshot_of(store, directory, name),
        None => find_snapshot_of(store, None, name),
    }
}

/// The snapshot of that name of a directory (by `st_ino`), or of the whole volume.
///
/// # Errors
/// [`FsErrorKind::NotFound`].
pub fn find_snapshot_of(store: &Store, directory: Option<u64>, name: &str) -> Result<SnapshotInfo> {
    let found = snapshots(store).into_iter().find(|s| s.directory == directory && s.name == name);
    found.map_or_else(|| no_snapshot(name), Ok)
}

fn no_snapshot<T>(name: &str) -> Result<T> {
    fail(FsErrorKind::NotFound, format!("there is no snapshot {name:?}"))
}

/// The name of the volume for a snapshot that is not there yet.
pub(crate) fn new_volume_name(store: &Store, directory: Option<u64>, name: &str, now: u64) -> Result<String> {
    check_snapshot_name(name)?;
    if find_snapshot_of(store, directory, name).is_ok() {
        return fail(FsErrorKind::Exists, format!("there is a snapshot {name:?} already"));
    }
    let of = directory.map(|number| format!("@{number:x}")).unwrap_or_default();
    Ok(format!("{PREFIX}{now}{of}:{name}"))
}

/// Makes a snapshot of volume `of`; `now` in seconds since the Unix epoch. Durable when it returns.
///
/// # Errors
/// [`FsErrorKind::Exists`], [`FsErrorKind::Invalid`] or [`FsErrorKind::NameTooLong`] for a name
/// that cannot be one; of the store.
pub fn create_snapshot(store: &Store, of: &str, name: &str, writable: bool, now: u64) -> Result<()> {
    create_if(store, of, name, writable, now, &|| true)
}

/// As [`create_snapshot`], if `wanted` is still true when the snapshot takes its place.
pub(crate) fn create_if(
    store: &Store,
    of: &str,
    name: &str,
    writable: bool,
    now: u64,
    wanted: &dyn Fn() -> bool,
) -> Result<()> {
    let volume_name = new_volume_name(store, None, name, now)?;
    let volume = find_volume(store, of)?;
    store.snapshot_prefix_if(volume.id, b"", &volume_name, volume_flags(writable), wanted)?;
    Ok(())
}

pub(crate) fn volume_flags(writable: bool) -> u32 {
    if writable { 0 } else { READ_ONLY_VOLUME }
}

/// How a snapshot is opened as a file system of its own that cannot be changed. Its numbers differ
/// from those of all other volumes (with the probability of clones), and are the same whenever it
/// is opened.
pub(crate) fn open_options(snapshot: &SnapshotInfo, name_memory: u64) -> OpenOptions {
    OpenOptions {
        volume: snapshot.volume.clone(),
        name_memory,
        read_only: true,
        number_delta: xxhash_rust::xxh3::xxh3_64(snapshot.volume.as_bytes()) | 1 << 63,
        ..OpenOptions::default()
    }
}

/// Deletes a snapshot. Durable when it returns; the space comes back soon afterwards.
///
/// # Errors
/// [`FsErrorKind::NotFound`]; of the store.
pub fn delete_snapshot(store: &Store, name: &str) -> Result<()> {
    let snapshot = find_snapshot(store, name)?;
    Ok(store.delete_volume(snapshot.id)?)
}

/// Makes volume `to`, which is not open, hold what a snapshot holds. Durable when it returns.
///
/// # Errors
/// [`FsErrorKind::NotFound`]; of the store.
pub fn restore_snapshot(store: &Store, to: &str, name: &str) -> Result<()> {
    let snapshot = find_snapshot_of(store, None, name)?;
    let volume = find_volume(store, to)?;
    Ok(store.restore_volume(volume.id, snapshot.id)?)
}

fn check_snapshot_name(name: &str) -> Result<()> {
    if name.len() > NAME_MAX_BYTES {
        return fail(
            FsErrorKind::NameTooLong,
            format!("a name of {} bytes; {NAME_MAX_BYTES} are allowed", name.len()),
        );
    }
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return fail(FsErrorKind::Invalid, format!("{name:?} is no name for a snapshot"));
    }
    Ok(())
}
