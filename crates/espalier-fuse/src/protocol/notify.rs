//! Notifications: messages to the kernel that answer no request, about its caches.

use super::REPLY_HEADER_BYTES;
use super::reply::Writer;

const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
const STORE: i32 = 4;
const DELETE: i32 = 6;
const INCREMENT_EPOCH: i32 = 8;
const PRUNE: i32 = 9;

/// The longest name of an INVAL_ENTRY that the kernel takes, bytes.
const MAX_NAME_BYTES: usize = 1024;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// The attributes of a node changed; with `data`, the given range of its pages too.
    Inode {
        /// The node.
        node: u64,
        /// Byte offset and length of the changed data (length 0: to the end), `None`: attributes
        /// only.
        data: Option<(u64, u64)>,
    },
    /// A name in a directory means something else now (or nothing, or something for the first
    /// time).
    Entry {
        /// The directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// Whether the kernel keeps what it knows below the name until it has looked the name up
        /// again (protocol 7.38); otherwise it drops all of that.
        expire: bool,
    },
    /// A name in a directory is gone, and what it meant: the kernel drops all that it knows below,
    /// and tells watchers of the node that it was deleted, unless something below is open.
    Deleted {
        /// The directory.
        parent: u64,
        /// What the name meant.
        node: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The kernel has to look up every cached name of the mount again (protocol 7.44).
    Epoch,
    /// The kernel gives up these nodes, but for those in use (protocol 7.45).
    Prune {
        /// The nodes; what lies deeper comes first.
        nodes: Vec<u64>,
    },
}

impl Notification {
    /// The message as it is written to the device.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Inode { node, data } => {
                let (offset, length) = match *data {
                    None => (-1i64 as u64, 0),
                    Some(range) => range,
                };
                message(INVALIDATE_INODE, 24, |writer| {
                    writer.u64(*node);
                    writer.u64(offset);
                    writer.u64(length);
                })
            }
            Self::Entry { parent, name, expire } => {
                let name = &name[..name.len().min(MAX_NAME_BYTES)];
                message(INVALIDATE_ENTRY, 16 + name.len() + 1, |writer| {
                    writer.u64(*parent);
                    writer.u32(name.len() as u32);
                    writer.u32(u32::from(*expire));
                    writer.bytes(name);
                    writer.bytes(&[0]);
                })
            }
            Self::Deleted { parent, node, name } => {
                let name = &name[..name.len().min(MAX_NAME_BYTES)];
                message(DELETE, 24 + name.len() + 1, |writer| {
                    writer.u64(*parent);
                    writer.u64(*node);
                    writer.u32(name.len() as u32);
                    writer.u32(0);
                    writer.bytes(name);
                    writer.bytes(&[0]);
                })
            }
            Self::Epoch => message(INCREMENT_EPOCH, 0, |_| ()),
            Self::Prune { nodes } => message(PRUNE, 16 + nodes.len() * 8, |writer| {
                writer.u32(nodes.len() as u32);
                writer.u32(0);
                writer.u64(0);
                nodes.iter().for_each(|node| writer.u64(*node));
            }),
        }
    }
}

/// Length of what [`store`] returns, bytes.
pub(crate) const STORE_BYTES: usize = REPLY_HEADER_BYTES + 24;

/// The head of a message that stores data in the kernel's pages of a node; `length` bytes of data,
/// which belong at `offset`, follow it.
pub(crate) fn store(node: u64, offset: u64, length: u32) -> [u8; STORE_BYTES] {
    let mut bytes = [0; STORE_BYTES];
    let mut writer = Writer::new(&mut bytes);
    writer.u32(STORE_BYTES as u32 + length);
    writer.u32(STORE as u32);
    writer.u64(0);
    writer.u64(node);
    writer.u64(offset);
    writer.u32(length);
    writer.u32(0);
    bytes
}

/// A message of `length` bytes after the header, which carries the code where a reply has its error
/// and no request number.
fn message(code: i32, length: usize, fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; REPLY_HEADER_BYTES + length];
    let total = bytes.len() as u32;
    let mut writer = Writer::new(&mut bytes);
    writer.u32(total);
    writer.u32(code as u32);
    writer.u64(0);
    fill(&mut writer);
    bytes
}
