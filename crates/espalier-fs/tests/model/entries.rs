//! Calls on entries: lookups, creation, removal, renames, links.

use crate::run::{MAX_OBJECTS_ALIVE, Run};
use crate::tree::{Id, ROOT};
use espalier_fs::{FileFlags, FileKind, FsError, NewNode, RenameMode};

impl Run {
    pub(crate) fn lookup(&mut self) {
        let (dir, node) = self.a_dir();
        let name = self.name();
        self.last = format!("lookup {name:?} in {dir}");
        let expected = self.tree.lookup(dir, &name);
        let got = self.fs.lookup(node, &name);
        if let (Ok(entry), Ok(id)) = (&got, &expected) {
            self.check_attr(*id, &entry.attr);
            self.handles.push((entry.node, entry.generation, *id));
            self.opened(*id, entry.node);
        } else {
            self.same("lookup", got.map(|_| ()), expected.map(|_| ()));
        }
    }

    /// Finds an object by a handle that was made at any time.
    pub(crate) fn resolve(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        let (node, generation, id) = *self.handle_random.pick(&self.handles);
        let named = self.named().contains(&id);
        match self.fs.lookup(node, b".") {
            Ok(entry) if entry.generation == generation => {
                assert!(named, "seed {}, step {}: {id} has no name", self.seed, self.step);
                self.check_attr(id, &entry.attr);
                self.fs.forget(entry.node, 1);
            }
            Ok(entry) => {
                self.fs.forget(entry.node, 1);
                assert!(!named, "seed {}, step {}: another is found for {id}", self.seed, self.step);
            }
            Err(error) => {
                assert_eq!(error.kind(), espalier_fs::FsErrorKind::Stale);
                let lost = named && self.keeps_handles;
                assert!(!lost, "seed {}, step {}: {id} is not found", self.seed, self.step);
            }
        }
    }

    /// All objects that have a name below the root, and the root.
    pub(crate) fn named(&self) -> std::collections::HashSet<Id> {
        let (mut named, mut waiting) = (std::collections::HashSet::from([ROOT]), vec![ROOT]);
        while let Some(dir) = waiting.pop() {
            for (_, child) in self.tree.listing(dir) {
                if named.insert(child) && self.tree.objects[child].is_dir() {
                    waiting.push(child);
                }
            }
        }
        named
    }

    pub(crate) fn create(&mut self) {
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.caller());
        let mode = *self.random.pick(&[0o644, 0o6755, 0o1777, 0]);
        let (kind, new) = *self.random.pick(&[
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Fifo, NewNode::Fifo),
            (FileKind::Socket, NewNode::Socket),
            (FileKind::CharDevice, NewNode::CharDevice(77)),
            (FileKind::BlockDevice, NewNode::BlockDevice(u64::MAX)),
            (FileKind::Symlink, NewNode::Regular),
        ]);
        let rdev = match new {
            NewNode::CharDevice(rdev) | NewNode::BlockDevice(rdev) => rdev,
            _ => 0,
        };
        let target: &[u8] = if kind == FileKind::Symlink { b"../x\x01" } else { b"" };
        self.last = format!("create {name:?} in {dir}");
        let expected = self.tree.create(dir, &name, kind, mode, rdev, target, &caller);
        let got = match kind {
            FileKind::Symlink => self.ask(|fs| fs.symlink(node, &name, target, &caller)),
            _ => self.ask(|fs| fs.mknod(node, &name, new, mode, &caller)),
        };
        let settles = FileFlags(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0);
        if got.is_ok() && self.tree.objects[dir].flags.has(settles) {
            self.synced = Some(None);
        }
        self.created(got, expected);
    }

    pub(crate) fn tmpfile(&mut self) {
        let (dir, node) = self.a_dir();
        let caller = self.caller();
        let mode = *self.random.pick(&[0o644, 0o6755, 0]);
        self.last = format!("tmpfile in {dir}");
        let expected = self.tree.tmpfile(dir, mode, &caller);
        let got = self.fs.tmpfile(node, mode, &caller);
        self.created(got, expected);
    }

    pub(crate) fn mkdir(&mut self) {
        if self.tree.objects.iter().filter(|o| o.names > 0 && !o.lost).count() > MAX_OBJECTS_ALIVE {
            return self.remove();
        }
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.caller());
        let mode = *self.random.pick(&[0o755, 0o1777]);
        self.last = format!("mkdir {name:?} in {dir}");
        let expected = self.tree.create(dir, &name, FileKind::Directory, mode, 0, b"", &caller);
        let got = self.ask(|fs| fs.mkdir(node, &name, mode, &caller));
        self.created(got, expected);
    }

    pub(crate) fn created(
        &mut self,
        got: Result<espalier_fs::Entry, FsError>,
        expected: Result<Id, espalier_fs::FsErrorKind>,
    ) {
        let entry = self.same("create", got.as_ref().map(|_| ()).map_err(Clone::clone), expected.map(|_| ()));
        if let (Some(()), Ok(entry), Ok(id)) = (entry, got, expected) {
            self.check_attr(id, &entry.attr);
            self.handles.push((entry.node, entry.generation, id));
            self.opened(id, entry.node);
        }
    }

    pub(crate) fn remove(&mut self) {
        let (dir, node) = self.a_dir();
        let name = self.name();
        if self.random.chance(2) {
            self.last = format!("unlink {name:?} in {dir}");
            let expected = self.tree.unlink(dir, &name);
            let got = self.ask(|fs| fs.unlink(node, &name));
            self.same("unlink", got, expected);
        } else {
            self.last = format!("rmdir {name:?} in {dir}");
            let expected = self.tree.rmdir(dir, &name);
            let got = self.ask(|fs| fs.rmdir(node, &name));
            self.same("rmdir", got, expected);
        }
    }

    pub(crate) fn rename(&mut self) {
        let ((from, from_node), (to, to_node)) = (self.a_dir(), self.a_dir());
        let (name, new) = (self.name(), self.name());
        let whiteout = RenameMode::Whiteout { replace: self.random.chance(2), uid: 7, gid: 8 };
        let mode = *self.random.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            whiteout,
        ]);
        self.last = format!("rename {name:?} in {from} to {new:?} in {to}, {mode:?}");
        let expected = self.tree.rename(from, &name, to, &new, mode);
        let got = self.ask(|fs| fs.rename(from_node, &name, to_node, &new, mode));
        self.same("rename", got, expected);
    }

    pub(crate) fn link(&mut self) {
        let ((id, file), (dir, node)) = (self.a_file(), self.a_dir());
        let name = self.name();
        self.last = format!("link {id} to {name:?} in {dir}");
        let expected = self.tree.link(id, dir, &name);
        let got = self.ask(|fs| fs.link(file, node, &name));
        self.created(got, expected.map(|()| id));
    }
}
