//! Calls that change something, each with what the kernel has to be told of it.
//!
//! A call by path is made relative to the directory in which the last name lies, which is found
//! first and stays in use: so what the kernel is told is of the directory in which the change was
//! made, whatever was moved meanwhile. What the name meant is not looked up here: until the change
//! another caller may give the name to another file, so the call itself returns the nodes that it
//! found under its locks. A call on what is at a path opens that first, and is on the open object.
//! The change is finished, and no lock held, when the kernel is told, and the client has its answer
//! afterwards. What the kernel has and has not sent (stores through shared mappings) is written
//! before the content of a file changes.

#[cfg(test)]
mod interleave;

use crate::admission::Powers;
use crate::details::check_xattr;
use crate::failure::{Failure, Outcome};
use espalier_bridge::{mode_change, set_time};
use espalier_client::wire::Time;
use espalier_fs::{
    At, FsErrorKind, Handle, Links, NodeId, Open, OwnerChange, PathCaller, RenameHow, XattrMode,
};
use espalier_fuse::{ChangedCaches, ClientAccess};
use std::cell::RefCell;

/// A call that gives a name another meaning has found the directory of the name, and changes it
/// next: here a test has another caller come in between.
pub(crate) fn before_change() {
    #[cfg(test)]
    interleave::stop_if_asked();
}

/// Makes the changes of a client.
pub(crate) struct Changer<'a> {
    pub(crate) access: &'a ClientAccess,
    pub(crate) caller: &'a PathCaller,
    pub(crate) powers: Powers,
}

/// The last name of a path, and the directory in which it lies.
pub(crate) struct Named {
    pub(crate) directory: Handle,
    pub(crate) name: Vec<u8>,
}

impl Named {
    pub(crate) fn plain_name(&self) -> &[u8] {
        self.name.strip_suffix(b"/").unwrap_or(&self.name)
    }

    /// The name means something else now.
    fn changed(&self, with_tree: bool, changed: &mut ChangedCaches) {
        match (self.directory.node(), with_tree) {
            (Some(node), true) => changed.tree(node, self.plain_name()),
            (Some(node), false) => changed.name(node, self.plain_name()),
            (None, _) => {}
        }
    }
}

impl Changer<'_> {
    /// Tells the kernel.
    pub(crate) fn tell(&self, changed: ChangedCaches) -> Outcome<()> {
        Ok(self.access.caches().tell(changed)?)
    }

    /// The last name of a path; without one the error of a call that needs one.
    pub(crate) fn named<'a>(&self, path: impl Into<At<'a>>) -> Outcome<Option<Named>> {
        let found = self.caller.open_parent(path)?;
        Ok(found.map(|(directory, name)| Named { directory, name }))
    }

    /// Makes `call` again if there was no room, and files that were removed are still in use.
    fn with_room<T>(&self, call: impl Fn() -> espalier_fs::Result<T>) -> espalier_fs::Result<T> {
        match call() {
            Err(error) if error.kind() == FsErrorKind::NoSpace && self.access.fs().release_unlinked() => {
                call()
            }
            result => result,
        }
    }

    /// Makes an entry by `call`, which takes a path.
    fn make<'a>(
        &self,
        path: impl Into<At<'a>>,
        with_tree: bool,
        call: impl Fn(At<'_>) -> espalier_fs::Result<()>,
    ) -> Outcome<()> {
        let path = path.into();
        let Some(named) = self.named(path)? else { return Ok(call(path)?) };
        self.with_room(|| call(named.directory.at(&named.name)))?;
        let mut changed = ChangedCaches::default();
        named.changed(with_tree, &mut changed);
        self.tell(changed)
    }

    /// Makes a directory; with `parents` also those above that are missing.
    pub(crate) fn make_directory(&self, path: &[u8], mode: u32, parents: bool) -> Outcome<()> {
        if !parents {
            return self.make(path, false, |at| self.caller.mkdir(at, mode));
        }
        let changed = RefCell::new(ChangedCaches::default());
        let made = self.with_room(|| {
            self.caller.mkdir_all(path, mode, &mut |directory, name| {
                directory.node().into_iter().for_each(|node| changed.borrow_mut().name(node, name));
            })
        });
        // Some may be there although one could not be made.
        self.tell(changed.into_inner())?;
        Ok(made?)
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(&self, target: &[u8], path: &[u8]) -> Outcome<()> {
        self.make(path, false, |at| self.caller.symlink(target, at))
    }

    /// Gives a file another name.
    pub(crate) fn link(&self, old: &[u8], new: &[u8]) -> Outcome<()> {
        // Linux looks at it first, so its error comes first.
        self.object(old, false)?;
        let Some(named) = self.named(new)? else { return Ok(self.caller.link(old, new, Links::Stay)?) };
        before_change();
        let call = || self.caller.link_node(old, named.directory.at(&named.name), Links::Stay);
        let file = self.with_room(call)?;
        let mut changed = ChangedCaches::default();
        named.changed(false, &mut changed);
        changed.attributes(file);
        self.tell(changed)
    }

    /// Removes an entry by `call`, which returns the node that had it.
    fn remove(
        &self,
        path: &[u8],
        with_tree: bool,
        call: impl Fn(At<'_>) -> espalier_fs::Result<NodeId>,
    ) -> Outcome<()> {
        let Some(named) = self.named(path)? else { return Ok(call(path.into()).map(drop)?) };
        before_change();
        let gone = call(named.directory.at(&named.name))?;
        let mut changed = ChangedCaches::default();
        named.changed(with_tree, &mut changed);
        changed.attributes(gone);
        self.tell(changed)
    }

    /// Removes a name of a file.
    pub(crate) fn unlink(&self, path: &[u8]) -> Outcome<()> {
        self.remove(path, false, |at| self.caller.unlink_node(at))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, path: &[u8]) -> Outcome<()> {
        self.remove(path, false, |at| self.caller.rmdir_node(at))
    }

    /// Removes a directory with everything below.
    pub(crate) fn remove_tree(&self, path: &[u8]) -> Outcome<()> {
        self.remove(path, true, |at| self.caller.remove_tree_node(at))
    }

    /// Clones what is at `old`.
    pub(crate) fn clone_tree(&self, old: &[u8], new: &[u8]) -> Outcome<()> {
        self.make(new, true, |at| self.caller.clone_tree(old, at))
    }

    /// Moves what is at `old` to `new`.
    pub(crate) fn rename(&self, old: &[u8], new: &[u8], how: u8) -> Outcome<()> {
        let how = match how {
            0 => RenameHow::Replace,
            1 => RenameHow::NoReplace,
            _ => RenameHow::Exchange,
        };
        let (Some(from), Some(to)) = (self.named(old)?, self.named(new)?) else {
            return Ok(self.caller.rename(old, new, how)?);
        };
        let call = || self.caller.rename_nodes(from.directory.at(&from.name), to.directory.at(&to.name), how);
        before_change();
        let Some(renamed) = self.with_room(call)? else { return Ok(()) };
        let mut changed = ChangedCaches::default();
        from.changed(renamed.has_tree, &mut changed);
        to.changed(renamed.has_tree, &mut changed);
        changed.attributes(renamed.moved);
        renamed.target.into_iter().for_each(|node| changed.attributes(node));
        self.tell(changed)
    }

    /// Opens what is at a path by its path only.
    fn object(&self, path: &[u8], follow: bool) -> Outcome<Handle> {
        Ok(self.caller.open(path, &Open { stay: !follow, ..Open::default() })?)
    }

    /// Changes attributes of an open object by `call`.
    fn set(&self, object: &Handle, call: impl Fn() -> espalier_fs::Result<()>) -> Outcome<()> {
        self.with_room(call)?;
        let mut changed = ChangedCaches::default();
        object.node().into_iter().for_each(|node| changed.attributes(node));
        self.tell(changed)
    }

    /// Sets the mode.
    pub(crate) fn set_mode(&self, path: &[u8], mode: u32) -> Outcome<()> {
        let object = self.object(path, true)?;
        self.set(&object, || self.caller.chmod(object.itself(), mode, Links::Follow))
    }

    /// Sets owner and group.
    pub(crate) fn set_owner(&self, path: &[u8], owner: OwnerChange, follow: bool) -> Outcome<()> {
        let object = self.object(path, follow)?;
        self.set(&object, || self.caller.chown(object.itself(), owner, Links::Stay))
    }

    /// Sets times.
    pub(crate) fn set_times(&self, path: &[u8], times: (Time, Time), follow: bool) -> Outcome<()> {
        let object = self.object(path, follow)?;
        let times = (set_time(times.0), set_time(times.1));
        self.set(&object, || self.caller.set_times(object.itself(), times, Links::Stay))
    }

    /// Sets an extended attribute; `how`: 0 sets, 1 only makes, 2 only replaces.
    pub(crate) fn set_xattr(
        &self,
        (path, follow): (&[u8], bool),
        name: &[u8],
        value: &[u8],
        how: u8,
    ) -> Outcome<()> {
        check_xattr(name, Some(value), self.powers)?;
        let object = self.object(path, follow)?;
        let how = match how {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            _ => XattrMode::Replace,
        };
        self.set(&object, || self.caller.set_xattr(object.itself(), name, value, how, Links::Stay))
    }

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Outcome<()> {
        check_xattr(name, None, self.powers)?;
        let object = self.object(path, follow)?;
        self.set(&object, || self.caller.remove_xattr(object.itself(), name, Links::Stay))
    }

    /// Sets owner and group of everything below.
    pub(crate) fn own_tree(&self, path: &[u8], owner: OwnerChange) -> Outcome<()> {
        let object = self.object(path, false)?;
        self.with_room(|| self.caller.chown_tree(object.itself(), owner))?;
        object.node().into_iter().for_each(|node| self.access.caches().attributes_below_changed(node));
        Ok(())
    }

    /// Changes the modes of everything below.
    pub(crate) fn mode_tree(&self, path: &[u8], bits: [u32; 5]) -> Outcome<()> {
        let change = mode_change(bits);
        let object = self.object(path, false)?;
        self.with_room(|| self.caller.chmod_tree(object.itself(), change))?;
        object.node().into_iter().for_each(|node| self.access.caches().attributes_below_changed(node));
        Ok(())
    }

    /// Refuses to change what the kernel keeps to itself.
    pub(crate) fn check_content(&self) -> Outcome<()> {
        match self.access.identity.is_write_back {
            true => Err(Failure::new(libc::EOPNOTSUPP, "with -o writeback the kernel keeps sizes to itself")),
            false => Ok(()),
        }
    }

    /// Sets the size of a file.
    pub(crate) fn truncate(&self, path: &[u8], size: u64) -> Outcome<()> {
        self.check_content()?;
        let object = self.object(path, true)?;
        self.change_content(&object, || self.caller.truncate(object.itself(), size))
    }

    /// Changes the content of an open file by `call`.
    fn change_content(&self, file: &Handle, call: impl Fn() -> espalier_fs::Result<()>) -> Outcome<()> {
        let Some(node) = file.node() else { return Ok(call()?) };
        self.access.caches().write_pages(node);
        let done = self.with_room(call);
        // A part of it may have been done.
        let mut changed = ChangedCaches::default();
        changed.data(node);
        self.tell(changed)?;
        Ok(done?)
    }

    /// Writes at an offset of a file, which is made with `create` as its mode if it is missing.
    pub(crate) fn write_at(
        &self,
        path: &[u8],
        (create, truncate): (Option<u32>, bool),
        offset: u64,
        data: &[u8],
    ) -> Outcome<()> {
        self.check_content()?;
        let write = Open { write: true, would_create: create.is_some(), ..Open::default() };
        let file = match (self.caller.open(path, &write), create) {
            (Err(error), Some(mode)) if error.kind() == FsErrorKind::NotFound => self.create(path, mode)?,
            (opened, _) => opened?,
        };
        self.change_content(&file, || {
            if truncate {
                file.truncate(0)?;
            }
            let mut done = 0;
            while done < data.len() {
                // Where room is short it is written in pieces.
                done += file.write_at(offset.saturating_add(done as u64), &data[done..])?;
            }
            Ok(())
        })
    }

    /// Makes a file that is missing, and opens it. Not where a link leads that leads nowhere: that
    /// place has a path of its own.
    fn create(&self, path: &[u8], mode: u32) -> Outcome<Handle> {
        let how = Open { write: true, create: Some(mode), stay: true, ..Open::default() };
        let Some(named) = self.named(path)? else { return Ok(self.caller.open(path, &how)?) };
        let opened = self.with_room(|| self.caller.open(named.directory.at(&named.name), &how))?;
        let mut changed = ChangedCaches::default();
        named.changed(false, &mut changed);
        self.tell(changed)?;
        Ok(opened)
    }
}

#[cfg(test)]
mod tests;
