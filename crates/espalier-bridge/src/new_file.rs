//! Files that are to be made.

use espalier_client::wire::NewItem;
use espalier_fs::{At, Content, NewAttributes, NewNode, OwnerChange, WriteRequest};

/// A file that is to be made, with its lists taken apart.
pub struct NewFile<'f> {
    item: NewItem<'f>,
    /// The content of a file with holes, with the byte where each piece begins.
    pieces: Vec<(u64, &'f [u8])>,
    xattrs: Vec<(&'f [u8], &'f [u8])>,
}

impl<'f> NewFile<'f> {
    /// What a client asks for.
    pub fn of(item: &NewItem<'f>) -> Self {
        Self { item: *item, pieces: item.pieces(), xattrs: item.xattrs.iter().collect() }
    }

    /// The request for it at a path.
    pub fn as_request<'r>(&'r self, at: At<'r>) -> WriteRequest<'r>
    where
        'f: 'r,
    {
        let NewItem { file, node, atime, sparse, .. } = self.item;
        let content = match (node, sparse) {
            (Some((kind, device)), _) => Content::Node(new_node(kind, device)),
            (None, Some((size, _))) => Content::Sparse { size, pieces: &self.pieces },
            (None, None) if file.is_symlink => Content::Symlink(file.content),
            (None, None) => Content::Data(file.content),
        };
        let owner = OwnerChange { uid: file.uid, gid: file.gid };
        let mode = file.mode.filter(|_| !file.is_symlink);
        let attributes = NewAttributes { mode, owner, atime, mtime: file.mtime, xattrs: &self.xattrs };
        WriteRequest { at, content, attributes }
    }
}

/// A file without content, by the file type bits of its mode.
fn new_node(kind: u32, device: u64) -> NewNode {
    match kind {
        libc::S_IFIFO => NewNode::Fifo,
        libc::S_IFSOCK => NewNode::Socket,
        libc::S_IFCHR => NewNode::CharDevice(device),
        _ => NewNode::BlockDevice(device),
    }
}
