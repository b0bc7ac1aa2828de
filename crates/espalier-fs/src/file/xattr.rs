//! Extended attributes. Small values lie in the entry, others in the data index beside the blocks.

use crate::inode::inode_store::{InodeStore, must_stay_in_entry};
use crate::inode::node_table::NodeTable;
use crate::inode::ownership::{Contradiction, OwnershipMarks};
use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{CAPABILITIES, SET_GID, are_capabilities_of};
use crate::model::record::{INLINE_XATTRS_MAX_BYTES, Inode};
use crate::model::types::*;
use crate::orphan::detached::DetachedFiles;
use crate::volume::context::VolumeContext;
use crate::volume::tree_lock::TreeLock;
use espalier_engine::Batch;
use std::sync::Arc;

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

pub(crate) struct ExtendedAttributes {
    pub(crate) volume: Arc<VolumeContext>,
    pub(crate) tree: Arc<TreeLock>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) inodes: Arc<InodeStore>,
    pub(crate) ownership: Arc<OwnershipMarks>,
    pub(crate) detached: Arc<DetachedFiles>,
}

/// A change of one extended attribute.
pub(crate) struct XattrChange<'a> {
    pub(crate) name: &'a [u8],
    /// `None`: it is removed.
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) mode: XattrMode,
    /// Asked under the lock of the inode's state: whether an access control list clears the
    /// set-group-id bit. Refuses what the caller may not change.
    pub(crate) judge: &'a dyn Fn(&Inode) -> Result<bool>,
}

impl ExtendedAttributes {
    /// The value of an extended attribute.
    pub(crate) fn get(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.nodes.node(node)?;
        check_xattr_name(name)?;
        let tree = self.tree.shared();
        let state = node.state();
        if state.inode.xattrs.is_none() {
            return fail(
                FsErrorKind::NoData,
                format!("there is no extended attribute {}", layout::show(name)),
            );
        }
        let base = node.data_base(tree.epoch, &state);
        Ok(self.inodes.load_xattr(&base, &state.inode, name)?.to_vec())
    }

    /// The names of all extended attributes, each followed by a NUL.
    pub(crate) fn list(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.nodes.node(node)?;
        let state = node.state();
        let mut names = Vec::new();
        for name in state.inode.xattrs.iter().flat_map(|x| x.keys()) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    /// Sets or removes an extended attribute.
    pub(crate) fn change(&self, node: NodeId, change: &XattrChange<'_>) -> Result<()> {
        let &XattrChange { name, value, .. } = change;
        check_length(value)?;
        let node = self.nodes.node(node)?;
        check_xattr_name(name)?;
        self.volume.check_writable()?;
        check_place(name, value)?;
        let tree = self.tree.shared();
        let lends_rights = value.filter(|_| name == CAPABILITIES);
        let contradicts = |inode: &Inode| lends_rights.is_some_and(|v| !are_capabilities_of(v, inode.uid));
        let mut state = self.ownership.lock_for_change(&node, Contradiction::Rights, contradicts)?;
        let mut inode = state.inode.clone();
        let base = node.data_base(tree.epoch, &state);
        let mut batch = Batch::new();
        apply(&self.inodes, &base, &mut inode, change, &mut batch)?;
        let orphan = match inode.has_large_xattrs() {
            true => self.detached.record(&node, &state, &mut batch),
            false => None,
        };
        inode.set_ctime(self.volume.now());
        self.inodes.put(&tree, &node, &state, &inode, &mut batch);
        self.inodes.commit_inode(&node, &mut state, inode, batch)?;
        self.detached.recorded(&mut state, orphan);
        Ok(())
    }
}

/// Makes a change in an inode whose data lies at `base`, and adds to a batch what goes to the data
/// index. Refuses what is not the caller's to change, and what the attributes that are there
/// forbid.
fn apply(
    inodes: &InodeStore,
    base: &[u8],
    inode: &mut Inode,
    change: &XattrChange<'_>,
    batch: &mut Batch,
) -> Result<()> {
    let &XattrChange { name, mut value, judge, .. } = change;
    let clear_setgid = judge(inode)?;
    inode.flags.check_unprotected()?;
    check_mode(change, inode)?;
    if name == acl::ACCESS_ACL_XATTR || name == acl::DEFAULT_ACL_XATTR {
        value = apply_acl(inode, name, value)?;
        if clear_setgid {
            inode.mode &= !SET_GID;
        }
    }
    inodes.put_xattr(base, inode, name, value, batch)
}

/// Sets an extended attribute of an object that is not there yet. `base`: where its data will lie.
pub(crate) fn set_on_new(
    inodes: &InodeStore,
    base: &[u8],
    inode: &mut Inode,
    change: &XattrChange<'_>,
    batch: &mut Batch,
) -> Result<()> {
    // Asked first, as by the call by path.
    (change.judge)(inode)?;
    check_length(change.value)?;
    check_xattr_name(change.name)?;
    check_place(change.name, change.value)?;
    apply(inodes, base, inode, change, batch)
}

/// Refuses a value that is too long for any attribute.
fn check_length(value: Option<&[u8]>) -> Result<()> {
    match value {
        Some(value) if value.len() > MAX_XATTR => {
            fail(FsErrorKind::TooBig, format!("a value of {} bytes; {MAX_XATTR} are allowed", value.len()))
        }
        _ => Ok(()),
    }
}

/// Refuses a value that is too long for an attribute which must lie in the entry.
fn check_place(name: &[u8], value: Option<&[u8]>) -> Result<()> {
    if must_stay_in_entry(name) && value.is_some_and(|v| v.len() > INLINE_XATTRS_MAX_BYTES) {
        return fail(FsErrorKind::NoSpace, format!("{} with so many entries", layout::show(name)));
    }
    Ok(())
}

/// Refuses a change whose mode does not fit to whether the attribute exists.
fn check_mode(change: &XattrChange<'_>, inode: &Inode) -> Result<()> {
    let exists = inode.xattrs.as_ref().is_some_and(|x| x.contains_key(change.name));
    let name = || layout::show(change.name);
    match change.mode {
        XattrMode::Create if exists => {
            fail(FsErrorKind::Exists, format!("extended attribute {} exists", name()))
        }
        XattrMode::Replace if !exists => {
            fail(FsErrorKind::NoData, format!("there is no extended attribute {}", name()))
        }
        _ => Ok(()),
    }
}

/// Gives the inode the mode that goes with an access control list; returns the value to store.
fn apply_acl<'v>(inode: &mut Inode, name: &[u8], value: Option<&'v [u8]>) -> Result<Option<&'v [u8]>> {
    match inode.kind {
        FileKind::Symlink => {
            return fail(FsErrorKind::Unsupported, "a symbolic link has no access control list");
        }
        FileKind::Directory => {}
        _ if name == acl::DEFAULT_ACL_XATTR && value.is_some() => {
            return fail(FsErrorKind::AccessDenied, "only a directory has a default access control list");
        }
        _ => {}
    }
    let Some(list) = value.map(Acl::parse).transpose()?.flatten() else { return Ok(None) };
    if name == acl::DEFAULT_ACL_XATTR {
        return Ok(value);
    }
    inode.mode = (inode.mode & !0o777) | list.mode();
    Ok(value.filter(|_| !list.is_plain()))
}

/// Refuses names that cannot be stored.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        return fail(FsErrorKind::Range, format!("a name of {} bytes; {MAX_NAME} are allowed", name.len()));
    }
    let known = NAMESPACES.iter().any(|n| name.starts_with(n));
    if NAMESPACES.contains(&name) {
        return fail(FsErrorKind::Invalid, format!("{} is a namespace, not a name", layout::show(name)));
    }
    if name.contains(&0) || !(known || name == acl::ACCESS_ACL_XATTR || name == acl::DEFAULT_ACL_XATTR) {
        return fail(
            FsErrorKind::Unsupported,
            format!("no extended attribute can be called {}", layout::show(name)),
        );
    }
    Ok(())
}
