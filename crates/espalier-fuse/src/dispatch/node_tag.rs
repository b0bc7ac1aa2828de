//! Node ids of a mount: which file system a node belongs to.
//!
//! The upper 16 bits of a node id, as the kernel knows it, are a tag: 0 for the live file system,
//! the highest value for the directories of snapshots, any other for one opened snapshot each. The
//! tag is taken off where a request comes in, and put on where an answer names a node.

use espalier_fs::NodeId;

/// Bits of a node id within one file system.
const LOCAL_BITS: u32 = 48;

/// The directory of snapshots in the root; those of other directories follow.
pub(super) const SNAPSHOT_DIRECTORY: NodeId = NodeId(0xffff << LOCAL_BITS | 1);

/// The tag of a node, in its place: the lower bits are 0.
pub(super) fn tag(node: NodeId) -> u64 {
    node.0 >> LOCAL_BITS << LOCAL_BITS
}

/// The node without its tag.
pub(super) fn local(node: NodeId) -> NodeId {
    NodeId(node.0 & !tag(node))
}

/// The tag of the snapshot that is opened as number `number`, from 1 on; `None` if there are no
/// more.
pub(super) fn snapshot_tag(number: u64) -> Option<u64> {
    (number < SNAPSHOT_DIRECTORY.0 >> LOCAL_BITS).then_some(number << LOCAL_BITS)
}

/// True for the node of a directory of snapshots.
pub(super) fn is_snapshot_directory(node: NodeId) -> bool {
    tag(node) == tag(SNAPSHOT_DIRECTORY)
}
