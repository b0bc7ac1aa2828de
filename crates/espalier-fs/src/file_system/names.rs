//! Public calls on names and directories.

use crate::file_system::FileSystem;
use crate::model::access::Judge;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::new_file::NewFile;
use crate::model::types::*;
use crate::namespace::by_id::entry_by_id;
use crate::namespace::create::Maker;
use crate::namespace::create_many::{self, ManyMaker};
use crate::namespace::link::LinkJudge;
use crate::namespace::listing::WithNodes;
use crate::namespace::rename_all::Durability;
use crate::namespace::{create, link, remove, rename, rename_all, tmpfile};
use crate::quota::growth;

impl FileSystem {
    /// Finds `name` in directory `parent` and takes a reference on it. `..` is understood, and `.`,
    /// for which `parent` may be anything that had an id since the file system was opened: so a
    /// file is found by its id.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NameTooLong`];
    /// [`FsErrorKind::Stale`] if there is no name for an id, or the id was given up long ago; of
    /// the store.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        if name == b"." {
            return entry_by_id(&self.names.lookup, parent);
        }
        self.names.lookup.lookup(parent, name)
    }

    /// Gives back `count` references. An unlinked file goes away with the last one.
    pub fn forget(&self, node: NodeId, count: u64) {
        if node != NodeId::ROOT {
            self.names.references.release(node, count);
        }
    }

    /// The path of `node` in the volume, for messages; of an unlinked file its place in the orphan
    /// area.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`] if the node is not known.
    pub fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.names.nodes.node(node)?;
        let _tree = self.names.tree.shared();
        Ok(node.path())
    }

    /// Directory and name of a directory.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`]; [`FsErrorKind::NotDirectory`]; [`FsErrorKind::Invalid`] for the
    /// root.
    pub fn place_of(&self, dir: NodeId) -> Result<(NodeId, Vec<u8>)> {
        let place = self.names.nodes.dir(dir)?.place();
        match place.parent {
            Some(parent) => Ok((parent.id, place.name.to_vec())),
            None => fail(FsErrorKind::Invalid, "the root of the volume lies in no directory"),
        }
    }

    /// True if there is one reference to the node: if it is the caller's, no other
    /// caller knows the node.
    pub fn is_held_once(&self, node: NodeId) -> bool {
        self.names.nodes.references(node) == 1
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// As for [`FileSystem::mknod`]; [`FsErrorKind::NameTooLong`] for a target beyond 4095 bytes,
    /// [`FsErrorKind::NotFound`] for an empty one.
    pub fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Entry> {
        self.make_symlink(parent, name, target, Maker { caller, judge: Judge::Kernel })
    }

    /// As [`FileSystem::symlink`].
    pub(crate) fn make_symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        maker: Maker<'_>,
    ) -> Result<Entry> {
        let call = || create::symlink(&self.names, parent, name, target, maker);
        let entry = self.quotas.grow(parent, || growth::entry(name, target.len()), call)?;
        self.names_settled(entry, &[parent])
    }

    /// Makes a file that is no directory and no symbolic link. `mode`: the low 12 bits.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NameTooLong`] also
    /// for a path beyond 1 MiB, [`FsErrorKind::NotFound`] if the directory was removed; of the
    /// store.
    pub fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        what: NewNode,
        mode: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        self.make_node(parent, name, what, mode, Maker { caller, judge: Judge::Kernel })
    }

    /// As [`FileSystem::mknod`].
    pub(crate) fn make_node(
        &self,
        parent: NodeId,
        name: &[u8],
        what: NewNode,
        mode: u32,
        maker: Maker<'_>,
    ) -> Result<Entry> {
        let call = || create::mknod(&self.names, parent, name, what, mode, maker);
        let entry = self.quotas.grow(parent, || growth::entry(name, 0), call)?;
        self.names_settled(entry, &[parent])
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As for [`FileSystem::mknod`]; [`FsErrorKind::TooManyLinks`].
    pub fn mkdir(&self, parent: NodeId, name: &[u8], mode: u32, caller: &Caller) -> Result<Entry> {
        self.make_directory(parent, name, mode, Maker { caller, judge: Judge::Kernel })
    }

    /// As [`FileSystem::mkdir`].
    pub(crate) fn make_directory(
        &self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        maker: Maker<'_>,
    ) -> Result<Entry> {
        let call = || create::mkdir(&self.names, parent, name, mode, maker);
        let entry = self.quotas.grow(parent, || growth::entry(name, 0), call)?;
        self.names_settled(entry, &[parent])
    }

    /// Makes files in a directory with one batch; returns how each of as many fared as it dealt
    /// with, and what lost its name to it.
    pub(crate) fn write_files(
        &self,
        parent: NodeId,
        files: &[NewFile<'_>],
        maker: &ManyMaker<'_>,
    ) -> Result<Vec<Result<Option<NodeId>>>> {
        let block_size = u64::from(self.volume.block_size);
        let growth = || {
            let attributes = |file: &NewFile<'_>| {
                let target = file.content.object().2.map_or(0, <[u8]>::len);
                let xattrs: usize =
                    file.attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
                (file.name.len() + target + xattrs) as u64
            };
            let data = files.iter().map(|file| file.content.data_bytes()).sum();
            let blocks = data / block_size + 2 * files.len() as u64;
            growth::files(files.len() as u64, files.iter().map(attributes).sum(), (data, blocks))
        };
        let call = || create_many::create_many(&self.names, parent, files, maker);
        let results = self.quotas.grow(parent, growth, call)?;
        self.names_settled(results, &[parent])
    }

    /// Makes a regular file without a name. It takes owner, group and access control list as a file
    /// made in `parent` would, and [`FileSystem::link`] can give it a name while it is in use.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`], [`FsErrorKind::NotFound`] if the directory was removed; of
    /// the store.
    pub fn tmpfile(&self, parent: NodeId, mode: u32, caller: &Caller) -> Result<Entry> {
        let call = || tmpfile::tmpfile(&self.names, parent, mode, caller);
        self.quotas.grow(parent, || growth::entry(b"", 0), call)
    }

    /// Gives `node`, which is no directory, one name more. With its second name a file moves to the
    /// link area, at the cost of its data's keys; so does one that gets its first name moves to its
    /// place. Where another link area serves the new name, the two become one first, at a cost that
    /// grows with the files in the lower one.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for a directory, [`FsErrorKind::NotFound`] for a file without
    /// name, [`FsErrorKind::TooManyLinks`]; as for [`FileSystem::mknod`].
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry> {
        self.link_judged(node, parent, name, None)
    }

    /// As [`FileSystem::link`].
    pub(crate) fn link_judged(
        &self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
        judge: LinkJudge<'_>,
    ) -> Result<Entry> {
        let charge = self.quotas.charge_link(node, parent, name)?;
        let entry = charge.end(link::link(&self.names, node, (parent, name), judge))?;
        self.names_settled(entry, &[parent])
    }

    /// Removes the entry of something that is no directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::IsDirectory`]; of the store.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.unlink_judged(parent, name, Judge::Kernel).map(drop)
    }

    /// As [`FileSystem::unlink`]; returns the node of what had the name.
    pub(crate) fn unlink_judged(&self, parent: NodeId, name: &[u8], judge: Judge<'_>) -> Result<NodeId> {
        let call = || remove::unlink(&self.names, parent, name, judge);
        let gone = self.quotas.shrink(parent, growth::attributes, call)?;
        self.names_settled(gone, &[parent])
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::NotEmpty`]; of the
    /// store.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.rmdir_judged(parent, name, Judge::Kernel).map(drop)
    }

    /// As [`FileSystem::rmdir`]; returns the node of the directory.
    pub(crate) fn rmdir_judged(&self, parent: NodeId, name: &[u8], judge: Judge<'_>) -> Result<NodeId> {
        let call = || remove::rmdir(&self.names, parent, name, judge);
        let gone = self.quotas.shrink(parent, growth::attributes, call)?;
        self.names_settled(gone, &[parent])
    }

    /// Moves an entry; what is in use in it and below stays in use. The cost does not depend on
    /// what is below a directory, nor on the size of a large file.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::Exists`] with [`RenameMode::NoReplace`],
    /// [`FsErrorKind::NotEmpty`], [`FsErrorKind::IsDirectory`], [`FsErrorKind::NotDirectory`],
    /// [`FsErrorKind::Invalid`] to move a directory into itself, [`FsErrorKind::NameTooLong`] if a
    /// path below would become too long; of the store.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_judged((parent, name), (new_parent, new_name), mode, Judge::Kernel).map(drop)
    }

    /// As [`FileSystem::rename`]; returns the nodes of what had the two names.
    pub(crate) fn rename_judged(
        &self,
        (parent, name): (NodeId, &[u8]),
        (new_parent, new_name): (NodeId, &[u8]),
        mode: RenameMode,
        judge: Judge<'_>,
    ) -> Result<Renamed> {
        let (from, to) = ((parent, name), (new_parent, new_name));
        let charge = self.quotas.charge_rename(from, to, mode)?;
        let renamed = charge.end(rename::rename(&self.names, &self.renames, from, to, mode, judge))?;
        self.names_settled(renamed, &[parent, new_parent])
    }

    /// Carries out renames between paths below directory `target` and names in directory `staging`
    /// in one step: all or none, also after a crash. What is at a place must have the number and
    /// the time of change that its step says; no step may concern what another one moves. A caller
    /// other than root must own every directory on the way to a place, and may write in it; must
    /// own directories that exchange attributes; and must own, or have permission to write, a
    /// directory that gets another parent. The cost grows with the steps, and with the blocks of
    /// files of up to 64.
    ///
    /// # Errors
    /// As for [`FileSystem::rename`]; [`FsErrorKind::Stale`] if something is not what was expected;
    /// [`FsErrorKind::AccessDenied`]; [`FsErrorKind::Permission`] to exchange attributes of another
    /// user's directory without being root; [`FsErrorKind::TooBig`] if there are more steps than
    /// the log takes at a time.
    pub fn rename_all(
        &self,
        target: NodeId,
        staging: NodeId,
        steps: &[RenameStep],
        caller: &Caller,
    ) -> Result<()> {
        let charge = self.quotas.charge_renames(target, staging, steps)?;
        match charge.end(rename_all::rename_all(&self.names, (target, staging), steps, caller))? {
            Durability::Later => Ok(()),
            Durability::Now => self.syncfs(),
        }
    }

    /// Lists directory `node` from `cookie` (0: the beginning) until `each` returns false, which
    /// means that it did not keep the entry. `.` and `..` come first, then non-directories, then
    /// directories. A removed directory lists nothing.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`]; of the store.
    pub fn readdir(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.listings.list(node, cookie, WithNodes::No, each).map(drop)
    }

    /// As [`FileSystem::readdir`], and takes a reference on each entry kept, other than `.` and
    /// `..`.
    ///
    /// # Errors
    /// As for [`FileSystem::readdir`].
    pub fn readdirplus(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.listings.list(node, cookie, WithNodes::Yes, each).map(drop)
    }

    /// As [`FileSystem::readdirplus`] of `nodes`, for a caller that keeps entries as a kernel does:
    /// a listing that was given whole a moment ago, and has not changed since, is given without
    /// entries and references if it is asked for again. True if a file was left out, which is
    /// listed without entry and reference then.
    ///
    /// # Errors
    /// As for [`FileSystem::readdir`].
    pub fn readdirplus_once(
        &self,
        node: NodeId,
        cookie: u64,
        nodes: ListedNodes,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.listings.list(node, cookie, WithNodes::Once(nodes), each)
    }
}
