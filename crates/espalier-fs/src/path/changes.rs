//! Calls by path that make, remove and move names.
//!
//! Each finds out in the order of the kernel what is wrong, and then has the call by node made with
//! a judge, which looks at the caller's rights once more when all is locked.
//!
//! Another caller may come between the two, so a call whose caller has to know which node it was on
//! (to tell a kernel) gets that from the call by node.

use crate::model::access::{Granted, Judge, SEARCH, WRITE};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::new_file::check_target;
use crate::model::record::Inode;
use crate::model::types::*;
use crate::namespace::create::Maker;
use crate::namespace::lookup::no_entry;
use crate::path::caller::{At, Links, PathCaller};
use crate::path::handle::{Handle, Open};
use crate::path::place::{Hold, PathPlace};
use crate::path::resolver::Last;
use crate::snapshot::volume::SNAPSHOTS_NAME;

/// A name that is to be removed or moved, and what has it.
struct Named {
    dir: PathPlace,
    name: Vec<u8>,
    is_slash: bool,
    /// What has it now.
    victim: Option<PathPlace>,
}

/// How [`PathCaller::rename`] treats an existing target (`renameat2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameHow {
    /// It is replaced.
    #[default]
    Replace,
    /// The rename fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two change places (`RENAME_EXCHANGE`).
    Exchange,
    /// It is replaced, and a whiteout of the caller is left where the entry was
    /// (`RENAME_WHITEOUT`).
    Whiteout,
}

impl PathCaller {
    pub(crate) fn judge(&self) -> Judge<'_> {
        Judge::Caller(self.credentials())
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`], [`FsErrorKind::TooManyLinks`], [`FsErrorKind::NoSpace`],
    /// [`FsErrorKind::QuotaExceeded`], [`FsErrorKind::ReadOnly`].
    pub fn mkdir<'a>(&self, path: impl Into<At<'a>>, mode: u32) -> Result<()> {
        let (dir, name) = self.free_name(path.into(), true)?;
        let (hold, caller) = (live(&dir)?, self.owner());
        let maker = Maker { caller: &caller, judge: self.judge() };
        let entry = hold.fs().make_directory(hold.node.id, &name, mode & 0o1777, maker)?;
        Hold::of_entry(&hold.volume, &entry).map(drop)
    }

    /// Makes a directory with those above it that are missing, all with this mode; one that is
    /// there is no error. `made` is told of each one that was made: the directory in which, and its
    /// name. It goes from directory to directory, so a path of any length takes the time of one.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`] if something else is in the way; as for [`PathCaller::mkdir`]. Those
    /// that were made stay.
    pub fn mkdir_all(&self, path: &[u8], mode: u32, made: &mut dyn FnMut(&Handle, &[u8])) -> Result<()> {
        if path.is_empty() {
            return self.mkdir(path, mode);
        }
        let (mut above, mut begin): (Option<Handle>, usize) = (None, 0);
        while let Some(end) = component_end(path, begin) {
            let component = &path[begin..end];
            let at = || above.as_ref().map_or_else(|| component.into(), |above| above.at(component));
            let found = match self.made_directory(at()) {
                Err(error) if error.kind() == FsErrorKind::NotFound => {
                    match self.mkdir_told(at(), mode, made) {
                        // Another caller was faster, or it is a link that leads nowhere.
                        Err(error) if error.kind() == FsErrorKind::Exists => {
                            self.made_directory(at()).map_err(|_| error)?
                        }
                        told => {
                            told?;
                            self.made_directory(at())?
                        }
                    }
                }
                found => found?,
            };
            let slashes = path[end..].iter().take_while(|byte| **byte == b'/').count();
            (above, begin) = (Some(found), end + slashes);
        }
        Ok(())
    }

    /// The directory at a place, opened by its path only.
    fn made_directory(&self, at: At<'_>) -> Result<Handle> {
        let object = self.open(at, &Open::default())?;
        match object.stat()?.kind {
            FileKind::Directory => Ok(object),
            _ => fail(FsErrorKind::Exists, "something that is no directory is in the way"),
        }
    }

    /// Makes a directory, and tells of it.
    fn mkdir_told(&self, at: At<'_>, mode: u32, made: &mut dyn FnMut(&Handle, &[u8])) -> Result<()> {
        let Some((directory, name)) = self.open_parent(at)? else { return self.mkdir(at, mode) };
        self.mkdir(directory.at(&name), mode)?;
        made(&directory, name.strip_suffix(b"/").unwrap_or(&name));
        Ok(())
    }

    /// Makes a file that is no directory and no symbolic link. Only root makes devices, but for the
    /// character device 0:0, which stands for the absence of an entry.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for devices; as for [`PathCaller::mkdir`].
    pub fn mknod<'a>(&self, path: impl Into<At<'a>>, what: NewNode, mode: u32) -> Result<()> {
        let (dir, name) = self.free_name(path.into(), false)?;
        let is_device = match what {
            NewNode::CharDevice(number) => number != 0,
            NewNode::BlockDevice(_) => true,
            NewNode::Regular | NewNode::Fifo | NewNode::Socket => false,
        };
        if is_device && !self.credentials().is_privileged() {
            return fail(FsErrorKind::Permission, "only root makes devices");
        }
        self.make_node(&dir, &name, what, mode).map(drop)
    }

    /// Makes a symbolic link to `target`, which is not looked at.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`] for an empty target, [`FsErrorKind::NameTooLong`] for one beyond
    /// 4,095 bytes, [`FsErrorKind::Invalid`] for one with a NUL; as for [`PathCaller::mkdir`].
    pub fn symlink<'a>(&self, target: &[u8], path: impl Into<At<'a>>) -> Result<()> {
        check_target(target)?;
        let (dir, name) = self.free_name(path.into(), false)?;
        let (hold, caller) = (live(&dir)?, self.owner());
        let maker = Maker { caller: &caller, judge: self.judge() };
        let entry = hold.fs().make_symlink(hold.node.id, &name, target, maker)?;
        Hold::of_entry(&hold.volume, &entry).map(drop)
    }

    /// Gives the file at `old` one name more. `links`: whether a symbolic link at its end is
    /// followed.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for a directory, or as the policy says;
    /// [`FsErrorKind::CrossesVolumes`]; as for [`PathCaller::mkdir`].
    pub fn link<'a, 'b>(&self, old: impl Into<At<'a>>, path: impl Into<At<'b>>, links: Links) -> Result<()> {
        self.link_node(old, path, links).map(drop)
    }

    /// As [`PathCaller::link`]; returns the node by which a mount knows the file.
    ///
    /// # Errors
    /// As for [`PathCaller::link`].
    pub fn link_node<'a, 'b>(
        &self,
        old: impl Into<At<'a>>,
        path: impl Into<At<'b>>,
        links: Links,
    ) -> Result<NodeId> {
        let source = self.object(old.into(), links)?;
        let (dir, name) = self.name_to_make(path.into(), false)?;
        let credentials = self.credentials();
        let judge = |above: &Inode, inode: &Inode| {
            if self.policy.guard_hard_links {
                credentials.check_link(inode)?;
            }
            credentials.check(Granted::by(above), WRITE | SEARCH)?;
            if inode.is_dir() {
                return fail(FsErrorKind::Permission, "a directory has one name only");
            }
            Ok(())
        };
        judge(&dir.inode()?, &source.inode()?)?;
        let (PathPlace::Node(from), PathPlace::Node(to)) = (&source, &dir) else { return read_only() };
        if from.volume.id() != to.volume.id() {
            return crosses_volumes();
        }
        let entry = to.fs().link_judged(from.node.id, to.node.id, &name, Some(&judge))?;
        Hold::of_entry(&to.volume, &entry).map(|held| held.node.id)
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// [`FsErrorKind::IsDirectory`]; [`FsErrorKind::Permission`] where the sticky bit forbids it.
    pub fn unlink<'a>(&self, path: impl Into<At<'a>>) -> Result<()> {
        self.unlink_node(path).map(drop)
    }

    /// As [`PathCaller::unlink`]; returns the node by which a mount knows the file.
    ///
    /// # Errors
    /// As for [`PathCaller::unlink`].
    pub fn unlink_node<'a>(&self, path: impl Into<At<'a>>) -> Result<NodeId> {
        let Named { dir, name, is_slash, victim } = match self.named(path.into())? {
            Ok(named) => named,
            Err(_) => return fail(FsErrorKind::IsDirectory, "a directory is not removed by unlink"),
        };
        let victim = victim.ok_or_else(|| no_entry(&name))?;
        match (is_slash, victim.is_directory()) {
            (true, true) => return fail(FsErrorKind::IsDirectory, "a directory is not removed by unlink"),
            (true, false) => return fail(FsErrorKind::NotDirectory, "a slash follows what is no directory"),
            (false, _) => self.credentials().check_delete(&dir.inode()?, &victim.inode()?)?,
        }
        if victim.is_directory() {
            return fail(FsErrorKind::IsDirectory, "a directory is not removed by unlink");
        }
        let hold = live(&dir)?;
        drop(victim);
        hold.fs().unlink_judged(hold.node.id, &name, self.judge())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotEmpty`], also for `..` at the end; [`FsErrorKind::Invalid`] for `.`;
    /// [`FsErrorKind::Busy`] for the root; [`FsErrorKind::Permission`] where the sticky bit forbids
    /// it.
    pub fn rmdir<'a>(&self, path: impl Into<At<'a>>) -> Result<()> {
        self.rmdir_node(path).map(drop)
    }

    /// As [`PathCaller::rmdir`]; returns the node by which a mount knew the directory.
    ///
    /// # Errors
    /// As for [`PathCaller::rmdir`].
    pub fn rmdir_node<'a>(&self, path: impl Into<At<'a>>) -> Result<NodeId> {
        let (dir, name) = self.directory_to_remove(path.into())?;
        let hold = live(&dir)?;
        hold.fs().rmdir_judged(hold.node.id, &name, self.judge())
    }

    /// Moves what `old` names to `new`; what is in use in it and below stays in use.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`], [`FsErrorKind::NotEmpty`], [`FsErrorKind::IsDirectory`];
    /// [`FsErrorKind::Invalid`] to move a directory into itself; [`FsErrorKind::Busy`] for paths
    /// that end in `.`, `..` or the root; [`FsErrorKind::CrossesVolumes`];
    /// [`FsErrorKind::Permission`] where the sticky bit forbids it.
    pub fn rename<'a, 'b>(
        &self,
        old: impl Into<At<'a>>,
        new: impl Into<At<'b>>,
        how: RenameHow,
    ) -> Result<()> {
        self.rename_nodes(old, new, how).map(drop)
    }

    /// As [`PathCaller::rename`]; returns the nodes by which a mount knows what had the two names;
    /// `None` if both are names of one file, which stay.
    ///
    /// # Errors
    /// As for [`PathCaller::rename`].
    pub fn rename_nodes<'a, 'b>(
        &self,
        old: impl Into<At<'a>>,
        new: impl Into<At<'b>>,
        how: RenameHow,
    ) -> Result<Option<Renamed>> {
        let (from, to) = (self.name(old.into())?, self.name(new.into())?);
        let (Last::Name(name), from, old_slash) = (from.1, from.0, from.2) else {
            return fail(FsErrorKind::Busy, "this entry has no name to move");
        };
        let (Last::Name(new_name), to, new_slash) = (to.1, to.0, to.2) else {
            let kind = if how == RenameHow::NoReplace { FsErrorKind::Exists } else { FsErrorKind::Busy };
            return fail(kind, "there is no name to move to");
        };
        let source = self.child(&from, &name)?.ok_or_else(|| no_entry(&name))?;
        let target = self.child(&to, &new_name)?;
        match (&target, how) {
            (Some(_), RenameHow::NoReplace) => return fail(FsErrorKind::Exists, "the target exists"),
            (None, RenameHow::Exchange) => return Err(no_entry(&new_name)),
            _ => {}
        }
        let no_directory = |place: &Option<PathPlace>| !place.as_ref().is_some_and(PathPlace::is_directory);
        let is_slash_wrong = if how == RenameHow::Exchange {
            old_slash && !source.is_directory() || new_slash && no_directory(&target)
        } else {
            (old_slash || new_slash) && !source.is_directory()
        };
        if is_slash_wrong {
            return fail(FsErrorKind::NotDirectory, "a slash follows what is no directory");
        }
        let kind = if how == RenameHow::Exchange { FsErrorKind::Invalid } else { FsErrorKind::NotEmpty };
        if source.contains(&to) {
            return fail(FsErrorKind::Invalid, "a directory cannot move into itself");
        }
        if target.as_ref().is_some_and(|target| target.contains(&from)) {
            return fail(kind, "the target contains what is to be moved");
        }
        if target.as_ref().is_some_and(|target| target.is_same(&source)) {
            return Ok(None);
        }
        self.check_rename((&from, &source), (&to, target.as_ref()), how)?;
        drop((source, target));
        self.rename_in((&from, &name), (&to, &new_name), how).map(Some)
    }

    /// Refuses a rename in the order of the kernel.
    fn check_rename(
        &self,
        (from, source): (&PathPlace, &PathPlace),
        (to, target): (&PathPlace, Option<&PathPlace>),
        how: RenameHow,
    ) -> Result<()> {
        let credentials = self.credentials();
        let (above, inode) = (to.inode()?, source.inode()?);
        credentials.check_delete(&from.inode()?, &inode)?;
        match target {
            None => credentials.check(Granted::by(&above), WRITE | SEARCH)?,
            Some(target) => {
                credentials.check_delete(&above, &target.inode()?)?;
                match (source.is_directory(), target.is_directory()) {
                    _ if how == RenameHow::Exchange => {}
                    (true, false) => return fail(FsErrorKind::NotDirectory, "a file is no directory"),
                    (false, true) => return fail(FsErrorKind::IsDirectory, "a directory is no file"),
                    _ => {}
                }
            }
        }
        if from.is_same(to) {
            return Ok(());
        }
        if inode.is_dir() {
            credentials.check(Granted::by(&inode), WRITE)?;
        }
        match target.filter(|_| how == RenameHow::Exchange) {
            Some(target) if target.is_directory() => credentials.check(Granted::by(&target.inode()?), WRITE),
            _ => Ok(()),
        }
    }

    fn rename_in(
        &self,
        from: (&PathPlace, &[u8]),
        to: (&PathPlace, &[u8]),
        how: RenameHow,
    ) -> Result<Renamed> {
        let old = live(from.0)?;
        let PathPlace::Node(new) = to.0 else { return crosses_volumes() };
        if old.volume.id() != new.volume.id() {
            return crosses_volumes();
        }
        if new.volume.is_live() && new.node.id == NodeId::ROOT && to.1 == SNAPSHOTS_NAME {
            return fail(FsErrorKind::Busy, "the snapshots are shown there");
        }
        let Caller { uid, gid, .. } = self.owner();
        let mode = match how {
            RenameHow::Replace => RenameMode::Replace,
            RenameHow::NoReplace => RenameMode::NoReplace,
            RenameHow::Exchange => RenameMode::Exchange,
            RenameHow::Whiteout => RenameMode::Whiteout { replace: true, uid, gid },
        };
        old.fs().rename_judged((old.node.id, from.1), (new.node.id, to.1), mode, self.judge())
    }

    /// Opens a new regular file without a name (`O_TMPFILE`), to read and write. It takes owner,
    /// group and access control list as a file made in this directory would.
    ///
    /// # Errors
    /// As for [`PathCaller::mkdir`].
    pub fn open_unnamed<'a>(&self, directory: impl Into<At<'a>>, mode: u32) -> Result<Handle> {
        let dir = self.object(directory.into(), Links::Follow)?;
        if !dir.is_directory() {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        dir.check(self.credentials(), WRITE | SEARCH)?;
        let hold = live(&dir)?;
        let mode = self.judge().mode_in(&dir.inode()?, mode & 0o7777);
        let entry = hold.fs().tmpfile(hold.node.id, mode, &self.owner())?;
        Ok(Handle::writable(PathPlace::Node(Hold::of_entry(&hold.volume, &entry)?), self))
    }

    /// Gives an open file one name more, or its first (`linkat` with `AT_EMPTY_PATH`).
    ///
    /// # Errors
    /// As for [`PathCaller::link`].
    pub fn link_open<'a>(&self, file: &Handle, path: impl Into<At<'a>>) -> Result<()> {
        let (dir, name) = self.name_to_make(path.into(), false)?;
        let credentials = self.credentials();
        let judge = |above: &Inode, inode: &Inode| {
            if self.policy.guard_hard_links {
                credentials.check_link(inode)?;
            }
            credentials.check(Granted::by(above), WRITE | SEARCH)
        };
        judge(&dir.inode()?, &file.place.inode()?)?;
        let (PathPlace::Node(from), PathPlace::Node(to)) = (&file.place, &dir) else { return read_only() };
        if from.volume.id() != to.volume.id() {
            return crosses_volumes();
        }
        let entry = to.fs().link_judged(from.node.id, to.node.id, &name, Some(&judge))?;
        Hold::of_entry(&to.volume, &entry).map(drop)
    }

    /// Makes regular file `name`, which was not there, in a directory.
    pub(crate) fn make_file(&self, dir: &PathPlace, name: &[u8], mode: u32) -> Result<PathPlace> {
        dir.check(self.credentials(), WRITE | SEARCH)?;
        self.make_node(dir, name, NewNode::Regular, mode).map(PathPlace::Node)
    }

    fn make_node(&self, dir: &PathPlace, name: &[u8], what: NewNode, mode: u32) -> Result<Hold> {
        let (hold, caller) = (live(dir)?, self.owner());
        let maker = Maker { caller: &caller, judge: self.judge() };
        let entry = hold.fs().make_node(hold.node.id, name, what, mode & 0o7777, maker)?;
        Hold::of_entry(&hold.volume, &entry)
    }

    fn child(&self, dir: &PathPlace, name: &[u8]) -> Result<Option<PathPlace>> {
        dir.child(name, &self.paths.snapshots)
    }

    /// The directory and name of an entry that is to be made, where none is; the caller may make
    /// it. A slash may follow only the name of a directory.
    pub(crate) fn free_name(&self, at: At<'_>, is_directory: bool) -> Result<(PathPlace, Vec<u8>)> {
        let (dir, name) = self.name_to_make(at, is_directory)?;
        dir.check(self.credentials(), WRITE | SEARCH)?;
        Ok((dir, name))
    }

    /// The same without regard to what the caller may do in the directory.
    fn name_to_make(&self, at: At<'_>, is_directory: bool) -> Result<(PathPlace, Vec<u8>)> {
        let (dir, last, is_slash) = self.name(at)?;
        let Last::Name(name) = last else { return fail(FsErrorKind::Exists, "the directory exists") };
        if self.child(&dir, &name)?.is_some() {
            return fail(FsErrorKind::Exists, "the name is taken");
        }
        if is_slash && !is_directory {
            return Err(no_entry(&name));
        }
        Ok((dir, name))
    }

    /// The directory and name of a directory that is to be removed.
    pub(crate) fn directory_to_remove(&self, at: At<'_>) -> Result<(PathPlace, Vec<u8>)> {
        let Named { dir, name, victim, .. } = match self.named(at)? {
            Ok(named) => named,
            Err(Last::Up) => return fail(FsErrorKind::NotEmpty, "the directory has at least this one"),
            Err(Last::Here) => return fail(FsErrorKind::Invalid, "a directory is not removed by the name ."),
            Err(_) => return fail(FsErrorKind::Busy, "the root directory is not removed"),
        };
        let victim = victim.ok_or_else(|| no_entry(&name))?;
        self.credentials().check_delete(&dir.inode()?, &victim.inode()?)?;
        if !victim.is_directory() {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        Ok((dir, name))
    }

    /// The entry at the end of a path, if the path ends with a name.
    fn named(&self, at: At<'_>) -> Result<std::result::Result<Named, Last>> {
        let (dir, last, is_slash) = self.name(at)?;
        let Last::Name(name) = last else { return Ok(Err(last)) };
        let victim = self.child(&dir, &name)?;
        Ok(Ok(Named { dir, name, is_slash, victim }))
    }
}

/// The node of a directory in which something can be changed, unless its volume is read-only.
pub(crate) fn live(dir: &PathPlace) -> Result<&Hold> {
    match dir {
        PathPlace::Node(hold) => Ok(hold),
        PathPlace::Snapshots(_) => read_only(),
    }
}

fn read_only<T>() -> Result<T> {
    fail(FsErrorKind::ReadOnly, "snapshots cannot be changed")
}

fn crosses_volumes<T>() -> Result<T> {
    fail(FsErrorKind::CrossesVolumes, "the two paths lie in different volumes")
}

#[cfg(test)]
mod tests;

/// Where the component of a path ends that begins at a byte, with the slashes in front of it;
/// `None` at the end.
fn component_end(path: &[u8], begin: usize) -> Option<usize> {
    let rest = path.get(begin..).filter(|rest| !rest.is_empty())?;
    let name = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
    let length = rest[name..].iter().position(|byte| *byte == b'/').unwrap_or(rest.len() - name);
    Some(begin + name + length)
}
