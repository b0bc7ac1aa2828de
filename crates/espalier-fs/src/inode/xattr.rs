//! Extended attributes. Small values lie in the entry, others in the data index beside the blocks.

use crate::file_system::FileSystem;
use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::{CAPABILITIES, SET_GID};
use crate::model::record::{INLINE_TOTAL, INLINE_XATTR, Inode, XattrValue};
use crate::model::types::*;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl FileSystem {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none, [`FsErrorKind::Unsupported`] for names outside of
    /// the namespaces `user.`, `trusted.`, `security.` and the access control lists; of the store.
    pub fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        check_xattr_name(name)?;
        let tree = self.tree.shared();
        let state = node.state();
        if state.inode.xattrs.is_none() {
            return fail(
                FsErrorKind::NoData,
                format!("there is no extended attribute {}", layout::show(name)),
            );
        }
        let base = self.data_base(&tree, &node, &state);
        Ok(self.load_xattr(&base, &state.inode, name)?.to_vec())
    }

    /// Sets an extended attribute. `clear_setgid`: with an access control list, clear the
    /// set-group-id bit.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`] or [`FsErrorKind::NoData`] as `mode` says, [`FsErrorKind::TooBig`]
    /// for values beyond 64 KiB, [`FsErrorKind::NoSpace`] for names beyond 64 KiB in all, and for
    /// capabilities and access control lists beyond 2 KiB, [`FsErrorKind::Invalid`] for an access
    /// control list that is none; of the store.
    pub fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()> {
        if value.len() > MAX_XATTR {
            return fail(
                FsErrorKind::TooBig,
                format!("a value of {} bytes; {MAX_XATTR} are allowed", value.len()),
            );
        }
        self.change_xattr(node, name, Some(value), mode, clear_setgid)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none; of the store.
    pub fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.change_xattr(node, name, None, XattrMode::Replace, false)
    }

    /// The names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`].
    pub fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let state = node.state();
        let mut names = Vec::new();
        for name in state.inode.xattrs.iter().flat_map(|x| x.keys()) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    fn change_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()> {
        let node = self.node(node)?;
        check_xattr_name(name)?;
        self.volume.check_writable()?;
        let stays_in_entry = name == CAPABILITIES || name == acl::ACCESS;
        if stays_in_entry && value.is_some_and(|v| v.len() > INLINE_TOTAL) {
            return fail(FsErrorKind::NoSpace, format!("{} with so many entries", layout::show(name)));
        }
        let tree = self.tree.shared();
        if name == CAPABILITIES
            && value.is_some()
            && let Some(parent) = node.place().parent
        {
            self.clear_marks(&parent)?;
        }
        let mut state = node.state();
        let exists = state.inode.xattrs.as_ref().is_some_and(|x| x.contains_key(name));
        match mode {
            XattrMode::Create if exists => {
                return fail(
                    FsErrorKind::Exists,
                    format!("extended attribute {} exists", layout::show(name)),
                );
            }
            XattrMode::Replace if !exists => {
                return fail(
                    FsErrorKind::NoData,
                    format!("there is no extended attribute {}", layout::show(name)),
                );
            }
            _ => {}
        }
        let mut inode = state.inode.clone();
        let mut value = value;
        if name == acl::ACCESS || name == acl::DEFAULT {
            value = self.change_acl(&mut inode, name, value)?;
            if clear_setgid {
                inode.mode &= !SET_GID;
            }
        }
        let base = self.data_base(&tree, &node, &state);
        let mut batch = Batch::new();
        self.put_xattr(&base, &mut inode, name, value, &mut batch)?;
        let orphan =
            if inode.has_large_xattrs() { self.record_orphan(&node, &state, &mut batch) } else { None };
        inode.set_ctime(self.volume.now());
        self.put(&tree, &node, &state, &inode, &mut batch);
        self.store_inode(&node, &mut state, inode, false, batch)?;
        if let Some(orphan) = orphan {
            state.orphan = orphan;
            self.volume.counters.orphans.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Brings mode and access control list in step; returns what is left to store.
    fn change_acl<'v>(
        &self,
        inode: &mut Inode,
        name: &[u8],
        value: Option<&'v [u8]>,
    ) -> Result<Option<&'v [u8]>> {
        match inode.kind {
            FileKind::Symlink => {
                return fail(FsErrorKind::Unsupported, "a symbolic link has no access control list");
            }
            FileKind::Directory => {}
            _ if name == acl::DEFAULT && value.is_some() => {
                return fail(FsErrorKind::AccessDenied, "only a directory has a default access control list");
            }
            _ => {}
        }
        let Some(list) = value.map(Acl::parse).transpose()?.flatten() else { return Ok(None) };
        if name == acl::DEFAULT {
            return Ok(value);
        }
        inode.mode = (inode.mode & !0o777) | list.mode();
        Ok(value.filter(|_| !list.is_plain()))
    }

    /// Gives an inode an extended attribute or takes it away, and adds to the batch what that means
    /// for the data index. `base` is where the inode's data lies.
    pub(crate) fn put_xattr(
        &self,
        base: &[u8],
        inode: &mut Inode,
        name: &[u8],
        value: Option<&[u8]>,
        batch: &mut Batch,
    ) -> Result<()> {
        let mut xattrs = inode.xattrs.as_deref().cloned().unwrap_or_default();
        let old = xattrs.remove(name);
        let key = layout::xattr_key(base, name);
        let was_large = matches!(old, Some(XattrValue::Large(_)));
        let mut is_large = false;
        if let Some(value) = value {
            let names: usize = xattrs.keys().map(|n| n.len() + 1).sum();
            if names + name.len() + 1 > MAX_XATTR {
                return fail(
                    FsErrorKind::NoSpace,
                    "the names of the extended attributes would take more than 64 KiB",
                );
            }
            let inline = |v: &XattrValue| if let XattrValue::Inline(v) = v { v.len() } else { 0 };
            let taken: usize = names + xattrs.values().map(inline).sum::<usize>();
            // Changes of a whole tree cannot reach what is not in the entry.
            let stays = (name == CAPABILITIES || name == acl::ACCESS) && value.len() <= INLINE_TOTAL;
            is_large =
                !stays && (value.len() > INLINE_XATTR || taken + name.len() + value.len() > INLINE_TOTAL);
            let stored = if is_large {
                batch.insert(self.volume.data(), &key, value);
                XattrValue::Large(value.len() as u32)
            } else {
                XattrValue::Inline(value.to_vec().into())
            };
            xattrs.insert(name.into(), stored);
        }
        if was_large && !is_large {
            batch.delete(self.volume.data(), &key);
        }
        inode.xattrs = (!xattrs.is_empty()).then(|| Arc::new(xattrs));
        Ok(())
    }
}

/// Refuses names that cannot be stored.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return fail(FsErrorKind::Range, format!("a name of {} bytes; {MAX_NAME} are allowed", name.len()));
    }
    let known = NAMESPACES.iter().any(|n| name.starts_with(n));
    if NAMESPACES.contains(&name) {
        return fail(FsErrorKind::Invalid, format!("{} is no name but a namespace", layout::show(name)));
    }
    if name.contains(&0) || !(known || name == acl::ACCESS || name == acl::DEFAULT) {
        return fail(
            FsErrorKind::Unsupported,
            format!("no extended attribute can be called {}", layout::show(name)),
        );
    }
    Ok(())
}
