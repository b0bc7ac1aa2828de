//! What a traced request is about, as a path.

use super::errno::shown_path;
use super::node_tag;
use super::root_xattrs::COMMAND_XATTR;
use super::snapshots::SnapshotTable;
use crate::protocol::Operation;
use espalier_fs::{FileSystem, NodeId};

/// What a request is about. It borrows nothing from the request, whose names lie in the buffer that
/// the reply overwrites.
pub(super) enum Subject {
    /// A node.
    Node(NodeId),
    /// A name in a directory.
    Name(NodeId, Vec<u8>),
    /// A name that gets, or got, another name in another directory.
    Names([(NodeId, Vec<u8>); 2]),
}

impl Subject {
    /// What `operation` on `node` is about. `None`: it is a question of a command such as `espalier
    /// trace` to the server, which would else find itself in what it asks for.
    pub(super) fn of(node: NodeId, operation: &Operation<'_>) -> Option<Self> {
        Some(match *operation {
            Operation::GetXattr { name, .. } if name.starts_with(COMMAND_XATTR.as_bytes()) => return None,
            Operation::Lookup { name }
            | Operation::SymbolicLink { name, .. }
            | Operation::MakeNode { name, .. }
            | Operation::MakeDirectory { name, .. }
            | Operation::Create { name, .. }
            | Operation::Unlink { name }
            | Operation::RemoveDirectory { name } => Self::Name(node, name.to_vec()),
            Operation::Link { node: target, name } => {
                Self::Names([(NodeId(target), Vec::new()), (node, name.to_vec())])
            }
            Operation::Rename { name, new_parent, new_name, .. } => {
                Self::Names([(node, name.to_vec()), (NodeId(new_parent), new_name.to_vec())])
            }
            _ => Self::Node(node),
        })
    }

    /// The path, or for two of them `OLD -> NEW`.
    pub(super) fn path(&self, live: &FileSystem, snapshots: &SnapshotTable) -> String {
        let path = |node| path_of(live, snapshots, node);
        let join = |(node, name): &(NodeId, Vec<u8>)| match (path(*node), String::from_utf8_lossy(name)) {
            (path, name) if name.is_empty() => path,
            (path, name) if path.ends_with('/') => path + &name,
            (path, name) => format!("{path}/{name}"),
        };
        match self {
            Self::Node(node) => path(*node),
            Self::Name(node, name) => join(&(*node, name.clone())),
            Self::Names([old, new]) => format!("{} -> {}", join(old), join(new)),
        }
    }
}

/// The path of a node in the live file system or in a snapshot.
fn path_of(live: &FileSystem, snapshots: &SnapshotTable, node: NodeId) -> String {
    match node_tag::tag(node) {
        0 => match shown_path(live, node) {
            // It lies where files without a name do.
            path if path.starts_with("//") => format!("(removed) node {}", node.0),
            path => path,
        },
        _ if node_tag::is_snapshot_directory(node) => "/.snapshots".into(),
        tag => match snapshots.opened(tag) {
            Ok(volume) => format!("(snapshot) {}", shown_path(volume.fs(), node_tag::local(node))),
            Err(_) => format!("node {}", node.0),
        },
    }
}
