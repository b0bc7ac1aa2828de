//! The library's answers to the same calls.

use crate::calls::{BASES, Call, Opening, Place, Script, What};
use crate::world;
use espalier_fs::{
    At, Attr, Credentials, FileKind, FileSystem, Filter, FsError, FsErrorKind, Handle, Links, NewNode, Open,
    OwnerChange, PathCaller, Paths, Policy, RenameHow, Result, SetTime, XattrMode,
};
use std::sync::Arc;

/// Makes the calls of `script`.
pub(crate) fn ask(fs: &Arc<FileSystem>, script: &Script) -> Vec<String> {
    let paths = Paths::new(fs.clone()).unwrap();
    let level = |name: &str| -> u8 {
        std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap().trim().parse().unwrap()
    };
    let policy = Policy {
        guard_symlinks: level("protected_symlinks") != 0,
        guard_hard_links: level("protected_hardlinks") != 0,
        guard_files: level("protected_regular"),
        guard_pipes: level("protected_fifos"),
    };
    let caller = |user: Credentials| paths.caller(user).with_umask(0o022).with_policy(policy);
    let callers = world::users().map(caller);
    let bases = BASES.map(|base| callers[0].open(base, &Open::default()).ok());
    let answer = |call: &Call| {
        answer(&callers[call.user], &bases, call, !script.changes)
            .unwrap_or_else(|error| format!("error {}", number(&error)))
    };
    script.calls().iter().map(answer).collect()
}

fn number(error: &FsError) -> i32 {
    use FsErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => libc::ENOENT,
        Kind::Exists => libc::EEXIST,
        Kind::NotDirectory => libc::ENOTDIR,
        Kind::IsDirectory => libc::EISDIR,
        Kind::NotEmpty => libc::ENOTEMPTY,
        Kind::NameTooLong => libc::ENAMETOOLONG,
        Kind::CrossesVolumes => libc::EXDEV,
        Kind::ReadOnly => libc::EROFS,
        Kind::AccessDenied => libc::EACCES,
        Kind::Permission => libc::EPERM,
        Kind::Invalid => libc::EINVAL,
        Kind::NoData => libc::ENODATA,
        Kind::NoSuchOffset => libc::ENXIO,
        Kind::Loop => libc::ELOOP,
        Kind::Unsupported => libc::EOPNOTSUPP,
        Kind::Busy => libc::EBUSY,
        other => panic!("{other:?}: {error}"),
    }
}

type Bases = [Option<Handle>; BASES.len()];

fn start<'a>(bases: &'a Bases, place: &'a Place) -> Result<At<'a>> {
    match place.base {
        None => Ok(At::from(&place.path)),
        Some(base) => match &bases[base] {
            Some(base) => Ok(base.at(&place.path)),
            None => Err(FsError::new(FsErrorKind::NotFound, "there is no such base")),
        },
    }
}

fn links(follow: bool) -> Links {
    if follow { Links::Follow } else { Links::Stay }
}

/// `with_numbers`: inode numbers are part of the answer.
fn answer(caller: &PathCaller, bases: &Bases, call: &Call, with_numbers: bool) -> Result<String> {
    let at = start(bases, &call.place)?;
    let done = |result: Result<()>| result.map(|()| "done".to_owned());
    match &call.what {
        What::Stat(follow) => caller.stat(at, links(*follow)).map(|attr| shown(&attr, with_numbers)),
        What::Access(want) => done(caller.access(at, *want, Links::Follow)),
        What::ReadLink => caller.read_link(at).map(|target| format!("{target:x?}")),
        What::Open(how) => open(caller, at, how, with_numbers),
        What::GetXattr(name, follow) => {
            caller.get_xattr(at, name.as_bytes(), links(*follow)).map(|value| format!("{value:x?}"))
        }
        What::ListXattr(follow) => caller.list_xattr(at, links(*follow)).map(|names| format!("{names:x?}")),
        What::Walk => {
            let mut entries = Vec::new();
            caller.walk(at, &Filter::default(), &mut |entry| {
                let path = String::from_utf8_lossy(entry.path);
                let closed = if entry.is_closed { " closed" } else { "" };
                entries.push(format!("{path:?} {}{closed}", shown(&entry.attr, with_numbers)));
                true
            })?;
            entries.sort();
            Ok(entries.join(", "))
        }
        What::MakeDirectory(mode) => done(caller.mkdir(at, *mode)),
        What::MakeNode(is_pipe, mode) => {
            done(caller.mknod(at, if *is_pipe { NewNode::Fifo } else { NewNode::Regular }, *mode))
        }
        What::Symlink(target) => done(caller.symlink(target, at)),
        What::Link(new, follow) => done(caller.link(at, start(bases, new)?, links(*follow))),
        What::Unlink => done(caller.unlink(at)),
        What::RemoveDirectory => done(caller.rmdir(at)),
        What::Rename(new, flags) => {
            let how = [RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange][*flags as usize];
            done(caller.rename(at, start(bases, new)?, how))
        }
        What::Mode(mode) => done(caller.chmod(at, *mode, Links::Follow)),
        What::Owner(uid, gid, follow) => {
            done(caller.chown(at, OwnerChange { uid: *uid, gid: *gid }, links(*follow)))
        }
        What::Truncate(size) => done(caller.truncate(at, *size)),
        What::Times(times, follow) => {
            let time = |time: Option<Option<i64>>| {
                time.map(|time| time.map_or(SetTime::Now, |seconds| SetTime::At(seconds * 1_000_000_000)))
            };
            done(caller.set_times(at, (time(times[0]), time(times[1])), links(*follow)))
        }
        What::SetXattr(name, value, flags, follow) => {
            let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][*flags as usize];
            done(caller.set_xattr(at, name.as_bytes(), value, mode, links(*follow)))
        }
        What::RemoveXattr(name, follow) => done(caller.remove_xattr(at, name.as_bytes(), links(*follow))),
    }
}

fn shown(attr: &Attr, with_numbers: bool) -> String {
    format!(
        "ino {} mode {:o} links {} owner {} {} size {}",
        if with_numbers { attr.ino } else { 0 },
        attr.kind.mode_bits() | attr.mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size
    )
}

/// Opens a file, and says what is in it.
fn open(caller: &PathCaller, at: At<'_>, how: &Opening, with_numbers: bool) -> Result<String> {
    let how = Open {
        read: true,
        write: how.write,
        create: how.create,
        exclusive: how.exclusive,
        truncate: how.truncate,
        directory: how.directory && how.create.is_none(),
        stay: how.stay,
        would_create: false,
    };
    let file = caller.open(at, &how)?;
    if file.stat()?.kind == FileKind::Directory {
        let mut entries: Vec<String> = Vec::new();
        file.list(0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(format!("{:x?} {}", entry.name, if with_numbers { entry.ino } else { 0 }));
            }
            true
        })?;
        entries.sort();
        return Ok(entries.join(", "));
    }
    let mut data = [0; 8192];
    let length = file.read_at(0, &mut data)?;
    Ok(format!("{:x?}", &data[..length]))
}
