//! Calls on whole trees: clones, removals, changes of owners and modes, limits.

use crate::run::{MAX_OBJECTS_ALIVE, Run};
use crate::tree::{Id, Tree};
use crate::world::Random;
use espalier_fs::{Caller, FileKind, FsErrorKind, ModeChange, NodeId, OwnerChange, TreeLimits};

impl Run {
    /// Mostly root, which may do anything.
    pub(crate) fn tree_caller(&mut self) -> Caller {
        let uid = *self.random.pick(&[0, 0, 0, 1, 2]);
        Caller { uid, gid: uid + 10, pid: 1, umask: 0 }
    }

    pub(crate) fn clone_tree(&mut self) {
        if self.tree.objects.iter().filter(|o| o.names > 0 && !o.lost).count() > MAX_OBJECTS_ALIVE {
            return self.remove_tree();
        }
        let ((source, node), (dir, parent)) = (self.any(), self.a_dir());
        let (name, caller) = (self.name(), self.tree_caller());
        self.last = format!("clone {source} to {name:?} in {dir} by {}", caller.uid);
        let expected = self.tree.clone_tree(source, dir, &name, &caller);
        let got = self.ask(|fs| fs.clone_tree(node, parent, &name, &caller));
        self.created(got, expected);
    }

    pub(crate) fn remove_tree(&mut self) {
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.tree_caller());
        // Large extended attributes are not kept, and the model does not know which are large.
        let is_large = |id: Id| self.tree.objects[id].xattrs.values().any(|value| value.len() > 64);
        let keeps = self.tree.lookup(dir, &name).is_ok_and(|id| !is_large(id));
        if keeps && self.random.chance(2) {
            self.last = format!("empty tree {name:?} in {dir} by {}", caller.uid);
            let expected = self.tree.empty_tree(dir, &name, &caller);
            let got = self.ask(|fs| fs.empty_tree(node, &name, &caller));
            self.same("empty_tree", got.map(drop), expected);
            return;
        }
        self.last = format!("remove tree {name:?} in {dir} by {}", caller.uid);
        let expected = self.tree.remove_tree(dir, &name, &caller);
        let got = self.ask(|fs| fs.remove_tree(node, &name, &caller));
        self.same("remove_tree", got, expected);
    }

    pub(crate) fn change_tree(&mut self) {
        let (id, node) = self.any();
        let caller = self.tree_caller();
        if self.random.chance(2) {
            let uid = *self.random.pick(&[None, Some(0), Some(1), Some(2)]);
            let gid = *self.random.pick(&[None, Some(12)]);
            let caller = Caller::default();
            self.last = format!("chown {uid:?} {gid:?} of tree {id}");
            let expected = self.tree.change_tree(id, &caller, |object, now| {
                (object.uid, object.gid) = (uid.unwrap_or(object.uid), gid.unwrap_or(object.gid));
                object.ctime = now;
                Tree::kill(object);
            });
            let got = self.ask(|fs| fs.chown_tree(node, OwnerChange { uid, gid }, &caller));
            self.same("chown_tree", got.map(drop), expected);
            return;
        }
        let bits = |random: &mut Random| (random.next() as u32) & 0o7777;
        let change = ModeChange {
            keep_directories: bits(&mut self.random) | 0o700,
            add_directories: bits(&mut self.random) & 0o3777,
            keep_files: bits(&mut self.random),
            add_files: bits(&mut self.random) & *self.random.pick(&[0o777, 0o7777]),
            add_executables: bits(&mut self.random) & 0o111,
        };
        self.last = format!("chmod {change:?} of tree {id} by {}", caller.uid);
        let expected = self.tree.change_tree(id, &caller, |object, now| {
            if object.kind == FileKind::Symlink {
                return;
            }
            object.mode = if object.is_dir() {
                object.mode & change.keep_directories | change.add_directories
            } else {
                let more = if object.mode & 0o111 != 0 { change.add_executables } else { 0 };
                object.mode & change.keep_files | change.add_files | more
            };
            object.ctime = now;
        });
        let got = self.ask(|fs| fs.chmod_tree(node, change, &caller));
        self.same("chmod_tree", got.map(drop), expected);
    }

    /// Gives a directory a limit, with which it gets a link area of its own, or takes it away in
    /// the step after that; false if it does neither.
    pub(crate) fn limit(&mut self) -> bool {
        let is_due = self.of_links && self.limit_random.chance(6);
        if self.limited_now.is_none() && !is_due {
            return false;
        }
        self.tree.now = self.world.step(20_000_000);
        let caller = Caller::default();
        let (id, got, expected) = if let Some((id, node)) = self.limited_now.take() {
            self.last = format!("clear the limit of {id}");
            (id, self.ask(|fs| fs.set_quota(node, None, &caller, false)), Ok(()))
        } else {
            let open = self.open.iter().filter(|(id, ..)| self.tree.objects[*id].is_dir());
            let open: Vec<(Id, NodeId)> = open.map(|(id, node, _)| (*id, *node)).collect();
            let (id, node) = *self.limit_random.pick(&open);
            self.last = format!("limit {id}");
            let object = &self.tree.objects[id];
            let expected = match (object.names == 0 || object.lost, object.flags.protect()) {
                (true, _) => Err(FsErrorKind::NotFound),
                (_, true) => Err(FsErrorKind::Permission),
                _ if !self.tree.split_area(id) => Err(FsErrorKind::Unsupported),
                _ => Ok(()),
            };
            self.limited_now = expected.is_ok().then_some((id, node));
            self.limited.0 += usize::from(expected.is_ok());
            self.limited.1 += usize::from(expected == Err(FsErrorKind::Unsupported));
            let limits = TreeLimits { exclusive: Some(1 << 50), total: None };
            (id, self.ask(|fs| fs.set_quota(node, Some(limits), &caller, false)), expected)
        };
        if self.same("a limit", got, expected).is_some() {
            self.tree.objects[id].ctime = self.tree.now;
        }
        true
    }
}
