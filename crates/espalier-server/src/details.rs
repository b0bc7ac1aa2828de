//! What files have besides content: attributes, extended attributes, targets, holes.

use crate::admission::Powers;
use crate::failure::{Failure, Outcome};
use espalier_bridge::{CAPABILITY, is_capability, stat_of};
use espalier_client::wire::{Aspects, DetailItem, RangeList, ReadItem, Writer, XattrList, Xattrs};
use espalier_fs::{Attr, FileKind, FsErrorKind, Handle, Links, Open, PathCaller, Seek};
use std::ops::Range;
use std::time::{Duration, Instant};

/// What the names of lists of rights, and of attributes for programs, begin with.
const LISTS: &[u8] = b"system.posix_acl_";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";

/// How long files are described in one turn: holes are looked for one by one, and another session
/// waits meanwhile.
pub(crate) const TURN: Duration = Duration::from_millis(10);

/// What many files have, in their order, as many as an answer of `room` bytes has room for and as
/// there is time for up to `until`, and at least one of them.
pub(crate) fn describe(
    (caller, powers): (&PathCaller, Powers),
    (asked, follow): (Aspects, bool),
    paths: &[&[u8]],
    (room, until): (usize, Instant),
) -> Vec<u8> {
    let mut out = Writer::default();
    for (index, path) in paths.iter().enumerate() {
        if index > 0 && Instant::now() >= until {
            break;
        }
        let mut described = describe_one((caller, powers), (asked, follow), path, room);
        if described.as_ref().is_ok_and(|data| data.len() + ReadItem::HEAD_BYTES > room) {
            described = Err(too_much());
        }
        let (errno, data) = match &described {
            Ok(data) => (0, &data[..]),
            Err(failure) => (failure.errno.cast_unsigned(), failure.shown()),
        };
        if out.0.len() + ReadItem::HEAD_BYTES + data.len() > room {
            break;
        }
        ReadItem { index: index as u32, errno, data }.encode(&mut out);
    }
    out.0
}

fn too_much() -> Failure {
    Failure::new(libc::E2BIG, "more extended attributes and holes than an answer has room for")
}

fn describe_one(
    (caller, powers): (&PathCaller, Powers),
    (asked, follow): (Aspects, bool),
    path: &[u8],
    room: usize,
) -> Outcome<Vec<u8>> {
    // All of it is of one file, whatever has its name meanwhile.
    let object = caller.open(path, &Open { stay: !follow, ..Open::default() })?;
    let attr = object.stat()?;
    let xattrs = if asked.xattrs { xattrs((caller, powers), &object)? } else { Xattrs::default() };
    let target = match asked.target && attr.kind == FileKind::Symlink {
        true => caller.read_link(object.itself())?,
        false => Vec::new(),
    };
    let (size, ranges) = match asked.extents {
        true => extents(caller, &object, &attr, room)?,
        false => (0, Vec::new()),
    };
    let ranges = RangeList::put_together(ranges);
    let mut out = Writer::default();
    let item = DetailItem {
        stat: Some(stat_of(&attr)),
        xattrs: xattrs.list(),
        target: &target,
        extents: (size, RangeList::of(&ranges)),
    };
    item.encode(asked, &mut out);
    Ok(out.0)
}

fn xattrs((caller, powers): (&PathCaller, Powers), object: &Handle) -> Outcome<Xattrs> {
    let mut all = Xattrs::default();
    let names = caller.list_xattr(object.itself(), Links::Stay)?;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(TRUSTED) && !powers.trusted {
            return Err(Failure::new(libc::ENODATA, "an extended attribute is not this process's to see"));
        }
        check_list(name, powers)?;
        match caller.get_xattr(object.itself(), name, Links::Stay) {
            // It was removed meanwhile.
            Err(error) if error.kind() == FsErrorKind::NoData && !name.starts_with(TRUSTED) => {}
            value => all.push(name, &value?),
        }
    }
    Ok(all)
}

/// The size of a regular file, and the ranges that are no holes, if `room` bytes have room for
/// them.
fn extents(
    caller: &PathCaller,
    object: &Handle,
    attr: &Attr,
    room: usize,
) -> Outcome<(u64, Vec<Range<u64>>)> {
    if attr.kind != FileKind::Regular {
        return Ok((0, Vec::new()));
    }
    let file = caller.open(object.itself(), &Open::read())?;
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < attr.size {
        let begin = match file.seek(at, Seek::Data) {
            Err(error) if error.kind() == FsErrorKind::NoSuchOffset => break,
            begin => begin?,
        };
        // The file may have changed since its size was looked at.
        at = file.seek(begin, Seek::Hole)?.max(begin + 1);
        if ranges.len() * size_of::<Range<u64>>() > room {
            return Err(too_much());
        }
        if begin < attr.size {
            ranges.push(begin..at.min(attr.size));
        }
    }
    Ok((attr.size, ranges))
}

/// Refuses access control lists whose ids mean something else to the client.
fn check_list(name: &[u8], powers: Powers) -> Outcome<()> {
    match name.starts_with(LISTS) && !powers.lists {
        true => Err(Failure::new(libc::EOPNOTSUPP, "ids of access control lists mean something else there")),
        false => Ok(()),
    }
}

/// Refuses an extended attribute that the kernel would not let the process set, or remove
/// (`value`: `None`), or of which it alone knows that.
pub(crate) fn check_xattr(name: &[u8], value: Option<&[u8]>, powers: Powers) -> Outcome<()> {
    check_list(name, powers)?;
    let refuse = || Err(Failure::new(libc::EPERM, "this extended attribute is not the process's to set"));
    if name.starts_with(TRUSTED) && !powers.trusted {
        return refuse();
    }
    if name == CAPABILITY {
        return match value {
            Some(value) if !is_capability(value) => {
                Err(Failure::new(libc::EINVAL, "the capabilities of a program have another form"))
            }
            _ if !powers.capabilities => refuse(),
            _ => Ok(()),
        };
    }
    if name.starts_with(SECURITY) {
        return Err(Failure::new(libc::EOPNOTSUPP, "the kernel has to be asked for this attribute"));
    }
    Ok(())
}

/// Refuses what [`check_xattr`] refuses of many.
pub(crate) fn check_xattrs(xattrs: XattrList<'_>, powers: Powers) -> Outcome<()> {
    xattrs.iter().try_for_each(|(name, value)| check_xattr(name, Some(value), powers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_client::wire::Reader;
    use espalier_engine::Store;
    use espalier_fs::{Credentials, FileSystem, FormatOptions, OpenOptions, Paths, merge_functions};
    use espalier_storage::{MemoryDevice, SystemEnvironment};
    use std::sync::Arc;

    #[test]
    fn a_turn_ends_in_time_with_one_file_at_least() {
        let environment = Arc::new(SystemEnvironment::new(0));
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Store::format(device.clone(), environment.clone(), &Default::default()).unwrap();
        let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
        let store = Store::open(device, environment.clone(), options).unwrap();
        FileSystem::format(&store, &FormatOptions::default()).unwrap();
        let fs = FileSystem::open(store, environment, OpenOptions::default()).unwrap();
        let root = Paths::new(fs).unwrap().caller(Credentials::default());
        let asked = (Aspects { xattrs: true, ..Aspects::default() }, true);
        let described = |until: Instant| {
            let paths: [&[u8]; 3] = [b"/", b"/none", b"/"];
            let answer = describe((&root, Powers::default()), asked, &paths, (1 << 16, until));
            let mut from = Reader::new(&answer);
            std::iter::from_fn(|| (!from.is_empty()).then(|| ReadItem::decode(&mut from).unwrap().index))
                .collect::<Vec<_>>()
        };
        let now = Instant::now();
        assert_eq!(described(now), [0]);
        assert_eq!(described(now + Duration::from_secs(3600)), [0, 1, 2]);
    }
}
