//! Translation between the types of the protocol and those of the file system.

use super::errno::Errno;
use crate::protocol::request::{SetAttributes, SetTime as WireTime};
use crate::protocol::{self, Moment, Operation, reply};
use crate::transport::Request;
use espalier_fs::{Attr, Entry, Fallocate, NewNode, RenameMode, SetAttr, SetTime, XattrMode};

/// Decodes a request. `payload` is the variable part of the request, or a copy of it.
pub(super) fn decode<'a>(request: &Request<'a>, payload: &'a [u8]) -> Result<Operation<'a>, Errno> {
    let opcode = request.header.opcode;
    protocol::decode_parts(&request.header, request.argument, payload, request.dialect)
        .inspect_err(|error| tracing::error!(opcode, %error, "a request cannot be decoded"))
        .map_err(|_| Errno(libc::EIO))
}

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Nanoseconds since the epoch; a time more than 292 years from it becomes the farthest time that
/// can be stored.
fn nanoseconds(moment: Moment) -> i64 {
    moment.seconds.saturating_mul(NANOSECONDS_PER_SECOND).saturating_add(i64::from(moment.nanoseconds))
}

fn moment(nanoseconds: i64) -> Moment {
    Moment {
        seconds: nanoseconds.div_euclid(NANOSECONDS_PER_SECOND),
        nanoseconds: nanoseconds.rem_euclid(NANOSECONDS_PER_SECOND) as u32,
    }
}

/// A node under a name, for a reply.
pub(super) fn entry(of: &Entry) -> reply::Attributes {
    reply::Attributes { generation: of.generation, ..attributes(&of.attr) }
}

/// Attributes for a reply.
pub(super) fn attributes(of: &Attr) -> reply::Attributes {
    reply::Attributes {
        ino: of.ino,
        size: of.size,
        blocks: of.blocks,
        atime: moment(of.atime),
        mtime: moment(of.mtime),
        ctime: moment(of.ctime),
        btime: moment(of.btime),
        generation: 0,
        mode: of.kind.mode_bits() | of.mode & 0o7777,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        // `makedev` puts numbers that fit into 32 bits where the kernel's packing has them.
        rdev: of.rdev as u32,
        block_size: of.blksize,
        follow: false,
    }
}

/// Refuses a modification time that cannot be stored, in a mount whose kernel keeps times by itself
/// (`-o writeback`): such a kernel does not take over the time that was stored instead. It always
/// sends the change time too, which is how such a mount is recognized.
pub(super) fn check_times(set: &SetAttributes) -> Result<(), Errno> {
    match set.mtime {
        Some(WireTime::To(asked)) if set.ctime.is_some() && moment(nanoseconds(asked)) != asked => {
            Err(Errno(libc::EOVERFLOW))
        }
        _ => Ok(()),
    }
}

/// The attributes that a SETATTR sets.
pub(super) fn set_attr(set: &SetAttributes) -> SetAttr {
    let time = |time: WireTime| match time {
        WireTime::Now => SetTime::Now,
        WireTime::To(moment) => SetTime::At(nanoseconds(moment)),
    };
    SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        ctime: set.ctime.map(|moment| SetTime::At(nanoseconds(moment))),
        kill_privileges: set.kill_suid_sgid,
    }
}

/// The kind of inode that a MKNOD makes.
pub(super) fn new_node(mode: u32, device: u32) -> Result<NewNode, Errno> {
    match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Ok(NewNode::Regular),
        libc::S_IFIFO => Ok(NewNode::Fifo),
        libc::S_IFSOCK => Ok(NewNode::Socket),
        libc::S_IFCHR => Ok(NewNode::CharDevice(u64::from(device))),
        libc::S_IFBLK => Ok(NewNode::BlockDevice(u64::from(device))),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The flags of `renameat2`; the owner of a whiteout is the caller.
pub(super) fn rename_mode(flags: u32, header: &protocol::Header) -> Result<RenameMode, Errno> {
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    let whiteout = |replace| RenameMode::Whiteout { replace, uid: header.uid, gid: header.gid };
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(whiteout(true)),
        WHITEOUT_NOREPLACE => Ok(whiteout(false)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The flags of `setxattr`.
pub(super) fn xattr_mode(flags: u32) -> Result<XattrMode, Errno> {
    match flags as i32 {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The mode of `fallocate`.
pub(super) fn fallocate_mode(mode: u32) -> Result<Fallocate, Errno> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode as i32 {
        0 => Ok(Fallocate::Allocate { keep_size: false }),
        KEEP => Ok(Fallocate::Allocate { keep_size: true }),
        PUNCH => Ok(Fallocate::PunchHole),
        ZERO => Ok(Fallocate::ZeroRange { keep_size: false }),
        ZERO_KEEP => Ok(Fallocate::ZeroRange { keep_size: true }),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}
