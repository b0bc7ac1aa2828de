//! Attributes, changes of them, and what is asked of them.

use espalier_client::{Change, Listing, Stat, Time};
use espalier_fs::{Attr, FileKind, Filter, ModeChange, SetTime};

/// Attributes as answers have them.
pub fn stat_of(attr: &Attr) -> Stat {
    Stat {
        ino: attr.ino,
        mode: attr.kind.mode_bits() | attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        blksize: attr.blksize,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
    }
}

/// Attributes from an answer; `None` if their mode says no kind of file.
pub fn attr_of(stat: &Stat) -> Option<Attr> {
    Some(Attr {
        ino: stat.ino,
        kind: FileKind::of_mode(stat.mode)?,
        mode: stat.mode & 0o7777,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        btime: stat.btime,
    })
}

/// Which entries of a walk are wanted.
pub fn filter_of(listing: &Listing) -> Filter {
    let is_wanted = |kind: &FileKind| u32::from(listing.kinds) >> (kind.mode_bits() >> 12) & 1 != 0;
    let kinds = FileKind::ALL.into_iter().filter(is_wanted).collect();
    Filter {
        pattern: listing.pattern.clone(),
        kinds: (listing.kinds != 0).then_some(kinds),
        size: listing.size.clone(),
        modified: listing.modified.clone(),
    }
}

/// The same as a client asks for it.
pub fn listing_of(filter: &Filter) -> Listing {
    let bit = |kind: &FileKind| 1 << (kind.mode_bits() >> 12);
    Listing {
        pattern: filter.pattern.clone(),
        kinds: filter.kinds.iter().flatten().map(bit).fold(0, |bits, bit: u16| bits | bit),
        size: filter.size.clone(),
        modified: filter.modified.clone(),
    }
}

/// A time that is to be set; `None` if it stays.
pub fn set_time(time: Time) -> Option<SetTime> {
    match time {
        Time::Keep => None,
        Time::Now => Some(SetTime::Now),
        Time::At(at) => Some(SetTime::At(at)),
    }
}

/// A change of modes: bits of directories that stay, those that are added, the same two of files,
/// and those added to files that are executable.
pub fn mode_change(bits: [u32; 5]) -> ModeChange {
    let [keep_directories, add_directories, keep_files, add_files, add_executables] = bits;
    ModeChange { keep_directories, add_directories, keep_files, add_files, add_executables }
}

/// How a path differs between two trees.
pub fn change_of(change: espalier_fs::Change) -> Change {
    match change {
        espalier_fs::Change::Added => Change::Added,
        espalier_fs::Change::Removed => Change::Removed,
        espalier_fs::Change::Changed => Change::Changed,
    }
}

#[cfg(test)]
mod tests;
