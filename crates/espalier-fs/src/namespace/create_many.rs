//! Making many files of one directory with one batch, each in the place of what had its name.
//!
//! The names of the directory are locked for the whole batch, and then the states of the directory
//! and of all files that are replaced. A file that cannot be made is left out, and the others are
//! made. Two names of one file are not replaced by the same batch: the batch ends before the second
//! one.

use crate::data::blocks;
use crate::file::xattr::{XattrChange, set_on_new};
use crate::inode::inode_store::{Creation, NewObject, count_entry, uncount_entry};
use crate::inode::names::Names;
use crate::inode::node::{Node, States};
use crate::inode::ownership::Contradiction;
use crate::model::access::{Credentials, Judge};
use crate::model::acl::{ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::new_file::{Content, NewFile};
use crate::model::privileges::{CAPABILITIES, SET_GID, clear_set_id};
use crate::model::record::Inode;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::check_new_name;
use crate::orphan::unlink::{DataPlace, NameRemoval, NamedNode};
use crate::references::HeldNode;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The mode with which a file is made that gets another one afterwards.
const FIRST_MODE: u32 = 0o600;
/// The mode of a file for which none is asked.
const DEFAULT_MODE: u32 = 0o666;

/// On whose behalf files are made, and what happens to those that are there.
#[derive(Clone, Copy)]
pub(crate) struct ManyMaker<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) credentials: &'a Credentials,
    /// What has the name of a new file goes; otherwise the new file is refused.
    pub(crate) replaces: bool,
}

/// A file that will be made.
struct Plan<'a, 'n> {
    /// Its place among all that were asked for.
    at: usize,
    file: &'a NewFile<'a>,
    key: Vec<u8>,
    /// What has its name now.
    victim: Option<&'n Arc<Node>>,
}

/// A file whose operations are in the batch.
struct Made<'a, 'n> {
    file: &'a NewFile<'a>,
    inode: Inode,
    removal: Option<(&'n Arc<Node>, NameRemoval)>,
}

/// Makes files in a directory with one batch. Returns how each file fared, of as many as it dealt
/// with: one at least, if there are any; of a file that was made the node that lost its name to it.
///
/// # Errors
/// If none of those that it would have made could be: of the directory, and of the commit.
pub(crate) fn create_many(
    namespace: &Namespace,
    parent: NodeId,
    files: &[NewFile<'_>],
    maker: &ManyMaker<'_>,
) -> Result<Vec<Result<Option<NodeId>>>> {
    let dir = namespace.nodes.dir(parent)?;
    namespace.volume.check_writable()?;
    namespace.nodes.trim_names();
    let mut releases = namespace.references.release_later();
    // Given back after the locks.
    let mut victims = Vec::new();
    let mut new_nodes: Vec<HeldNode<'_>> = Vec::new();
    let tree = namespace.tree.shared();
    let mut names = dir.dir().names.lock();
    namespace.lookup.check_not_removed(&tree, &dir, &names)?;
    let many = ManyFiles { namespace, tree: &tree, dir: &dir, maker };
    let mut results = many.find_victims(files, &mut names, &mut victims)?;
    let files = &files[..results.len()];
    many.check_directory(&mut results);
    let plans = many.plan(files, &victims, &mut results)?;
    many.clear_mark(&plans)?;
    let mut nodes = vec![&dir];
    nodes.extend(plans.iter().filter_map(|plan| plan.victim));
    let mut states = States::lock(&nodes);
    let mut above = states.of(&dir).inode.clone();
    let mut batch = Batch::new();
    let mut made = Vec::with_capacity(plans.len());
    for plan in &plans {
        match many.prepare(plan, &mut above, &mut states, &mut batch) {
            Ok(file) => made.push(file),
            Err(error) => results[plan.at] = Err(error),
        }
    }
    if made.is_empty() {
        return Ok(results);
    }
    namespace.inodes.put(&tree, &dir, states.of(&dir), &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    dir.take_over(states.of(&dir), above, lsn);
    for Made { removal, .. } in &mut made {
        if let Some((victim, removal)) = removal.take() {
            releases.add(namespace.orphans.name_removed(victim, states.of(victim), removal, lsn));
        }
    }
    drop(states);
    namespace.volume.counters.creates.fetch_add(made.len() as u64, Ordering::Relaxed);
    for Made { file, inode, .. } in made {
        new_nodes.push(namespace.lookup.add_entry(&dir, &mut names, file.name, inode, lsn));
    }
    names.version += 1;
    Ok(results)
}

/// Files of one directory, whose names are locked.
struct ManyFiles<'a, 't> {
    namespace: &'a Namespace,
    tree: &'t TreeGuard<'a>,
    dir: &'t Arc<Node>,
    maker: &'t ManyMaker<'t>,
}

impl<'a> ManyFiles<'a, '_> {
    /// Finds what has the names of new files, and refuses files by name and content. Ends before a
    /// second name of one file.
    fn find_victims(
        &self,
        files: &[NewFile<'_>],
        names: &mut Names,
        victims: &mut Vec<Option<HeldNode<'a>>>,
    ) -> Result<Vec<Result<Option<NodeId>>>> {
        let mut results = Vec::with_capacity(files.len());
        let mut linked = Vec::new();
        for file in files {
            if let Err(error) = check_new_name(file.name).and_then(|()| file.content.check()) {
                results.push(Err(error));
                victims.push(None);
                continue;
            }
            let victim = self.namespace.lookup.resolve(self.tree, self.dir, names, file.name)?;
            if let Some(victim) = &victim {
                if linked.contains(&victim.id) {
                    break;
                }
                if !victim.is_at(self.dir, file.name) {
                    linked.push(victim.id);
                }
            }
            results.push(Ok(victim.as_ref().map(|victim| victim.id)));
            victims.push(victim);
        }
        Ok(results)
    }

    /// Refuses all files if the caller may make none in the directory, before anything is changed
    /// for them: marks are cleared, and places made free, for files that may come to be. Asked
    /// again under the lock of the state.
    fn check_directory(&self, results: &mut [Result<Option<NodeId>>]) {
        let judged = Judge::Caller(self.maker.credentials).create(&self.dir.state().inode);
        if let Err(error) = judged {
            results
                .iter_mut()
                .filter(|result| result.is_ok())
                .for_each(|result| *result = Err(error.clone()));
        }
    }

    /// Makes ready the places of files that were not refused.
    fn plan<'f, 'n>(
        &self,
        files: &'f [NewFile<'f>],
        victims: &'n [Option<HeldNode<'_>>],
        results: &mut [Result<Option<NodeId>>],
    ) -> Result<Vec<Plan<'f, 'n>>> {
        let prefix = self.dir.content_prefix(self.tree.epoch);
        let mut plans = Vec::with_capacity(files.len());
        for (at, (file, victim)) in files.iter().zip(victims).enumerate() {
            if results[at].is_err() {
                continue;
            }
            let key = layout::entry_key(&prefix, file.name);
            if victim.is_none() {
                if let Err(error) = self.namespace.state_record.check_key(&key) {
                    results[at] = Err(error);
                    continue;
                }
                self.namespace.orphans.clear_place(&key)?;
            }
            plans.push(Plan { at, file, key, victim: victim.as_deref() });
        }
        Ok(plans)
    }

    /// Clears the ownership marks that new files may contradict.
    fn clear_mark(&self, plans: &[Plan<'_, '_>]) -> Result<()> {
        let owner = self.dir.state().inode.uid;
        let contradicts = |plan: &Plan<'_, '_>| {
            let attributes = &plan.file.attributes;
            attributes.owner.uid.unwrap_or(self.maker.caller.uid) != owner
                || attributes.mode.is_some_and(|mode| mode & SET_GID != 0)
                || attributes.xattrs.iter().any(|(name, _)| *name == CAPABILITIES)
        };
        match plans.iter().any(contradicts) {
            true => self.namespace.ownership.clear(self.dir, Contradiction::Rights),
            false => Ok(()),
        }
    }

    /// Adds one file to the batch, and its entry to the counts of the directory; neither, if it is
    /// refused. Errors come in the order in which single calls would meet them: making the file,
    /// its attributes, what has its name.
    fn prepare<'f, 'n>(
        &self,
        plan: &Plan<'f, 'n>,
        above: &mut Inode,
        states: &mut States<'_>,
        batch: &mut Batch,
    ) -> Result<Made<'f, 'n>> {
        let (namespace, now) = (self.namespace, self.namespace.volume.now());
        let mut counted = above.clone();
        Judge::Caller(self.maker.credentials).create(&counted)?;
        if plan.victim.is_some() && !self.maker.replaces {
            return fail(FsErrorKind::Exists, "the name is taken");
        }
        let (mut gone, mut arriving) = (Batch::new(), Batch::new());
        let inode = self.new_inode(plan, states, now, &mut arriving)?;
        count_entry(&mut counted, &inode, now)?;
        let removal = match plan.victim {
            Some(victim) => {
                let removal = self.remove_victim((plan, victim), &mut counted, states, &mut gone)?;
                Some((victim, removal))
            }
            None => None,
        };
        let metadata = namespace.volume.metadata();
        match plan.victim {
            Some(_) => arriving.insert(metadata, &plan.key, inode.encode()),
            None => arriving.insert_new(metadata, &plan.key, inode.encode()),
        }
        *above = counted;
        batch.append(gone);
        batch.append(arriving);
        Ok(Made { file: plan.file, inode, removal })
    }

    /// Adds to a batch that what has the name of a new file goes.
    fn remove_victim(
        &self,
        (plan, victim): (&Plan<'_, '_>, &Arc<Node>),
        above: &mut Inode,
        states: &mut States<'_>,
        batch: &mut Batch,
    ) -> Result<NameRemoval> {
        let now = self.namespace.volume.now();
        let inode = states.of(victim).inode.clone();
        Judge::Caller(self.maker.credentials).delete(above, &inode)?;
        if victim.is_dir() {
            return fail(FsErrorKind::IsDirectory, "a file cannot replace a directory");
        }
        uncount_entry(above, victim.kind, now)?;
        let name = NamedNode { dir: self.dir, name: plan.file.name, node: victim };
        let (state, data) = (states.of(victim), DataPlace::Vacated);
        self.namespace.orphans.remove_name(self.tree, &name, state, now, data, batch)
    }

    /// The inode of a new file. Adds its content and attributes to a batch.
    fn new_inode(
        &self,
        plan: &Plan<'_, '_>,
        states: &mut States<'_>,
        now: i64,
        batch: &mut Batch,
    ) -> Result<Inode> {
        let (namespace, attributes) = (self.namespace, &plan.file.attributes);
        let (kind, rdev, target) = plan.file.content.object();
        let is_device = kind == FileKind::BlockDevice || kind == FileKind::CharDevice && rdev != 0;
        if is_device && self.maker.credentials.uid != 0 {
            return fail(FsErrorKind::Permission, "only root makes devices");
        }
        let mode = match (kind, attributes.mode) {
            (FileKind::Symlink, _) => 0o777,
            (_, Some(_)) => FIRST_MODE,
            (_, None) => DEFAULT_MODE,
        };
        let number = namespace.state_record.fresh_number()?.wrapping_sub(self.dir.dir().sum);
        let new = NewObject { kind, mode, rdev, target };
        let creation = Creation { caller: self.maker.caller, number, now };
        let state = &*states.of(self.dir);
        let mut inode =
            namespace.inodes.new_inode(self.tree, (self.dir, state), &plan.key, &new, &creation, batch)?;
        self.put_content(plan, &mut inode, batch);
        self.set_attributes(plan, &mut inode, batch)?;
        inode.atime = attributes.atime.unwrap_or(inode.atime);
        inode.mtime = attributes.mtime.unwrap_or(inode.mtime);
        Ok(inode)
    }

    fn put_content(&self, plan: &Plan<'_, '_>, inode: &mut Inode, batch: &mut Batch) {
        let (volume, key) = (&self.namespace.volume, &plan.key);
        let mut bytes = 0;
        match plan.file.content {
            Content::Data(data) => {
                bytes = data.len();
                blocks::write(volume, key, inode, 0, data, batch);
            }
            Content::Sparse { size, pieces } => {
                for (offset, data) in pieces.iter().filter(|(_, data)| !data.is_empty()) {
                    bytes += data.len();
                    blocks::write(volume, key, inode, *offset, data, batch);
                }
                blocks::resize(volume, || key[..].into(), inode, size, batch);
            }
            Content::Symlink(_) | Content::Node(_) => {}
        }
        volume.counters.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets owner, extended attributes, mode and access control lists, in this order, each by the
    /// rights of the caller on what the file is by then.
    fn set_attributes(&self, plan: &Plan<'_, '_>, inode: &mut Inode, batch: &mut Batch) -> Result<()> {
        let (credentials, attributes) = (self.maker.credentials, &plan.file.attributes);
        let owner = attributes.owner;
        if owner != OwnerChange::default() {
            credentials.check_chown(inode, owner)?;
            clear_set_id(inode);
            inode.uid = owner.uid.unwrap_or(inode.uid);
            inode.gid = owner.gid.unwrap_or(inode.gid);
        }
        let inodes = &self.namespace.inodes;
        let is_list = |name: &[u8]| name == ACCESS_ACL_XATTR || name == DEFAULT_ACL_XATTR;
        let judge = |inode: &Inode, name: &[u8]| credentials.judge_xattr(inode, name);
        let (lists, others): (Vec<_>, Vec<_>) =
            attributes.xattrs.iter().copied().partition(|(name, _)| is_list(name));
        for &(name, value) in &others {
            let judge = |inode: &Inode| judge(inode, name);
            let change = XattrChange { name, value: Some(value), mode: XattrMode::Set, judge: &judge };
            set_on_new(inodes, &plan.key, inode, &change, batch)?;
        }
        if let Some(mode) = attributes.mode.filter(|_| inode.kind != FileKind::Symlink) {
            let mode = credentials.judge_mode(inode, mode)?;
            inodes.set_mode(|| &plan.key, inode, mode, batch)?;
        }
        for &(name, value) in &lists {
            let judge = |inode: &Inode| judge(inode, name);
            let change = XattrChange { name, value: Some(value), mode: XattrMode::Set, judge: &judge };
            set_on_new(inodes, &plan.key, inode, &change, batch)?;
        }
        Ok(())
    }
}
