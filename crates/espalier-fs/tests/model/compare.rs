//! Comparisons of the file system with the model.

use crate::run::Run;
use crate::tree::{Id, ROOT};
use espalier_fs::{Attr, FileKind, NodeId};

impl Run {
    #[track_caller]
    pub(crate) fn check_attr(&mut self, id: Id, attr: &Attr) {
        let object = &self.tree.objects[id];
        // What a removed directory says of its entries does not count any more.
        let is_lost = object.is_dir() && object.lost;
        let expected = Attr {
            ino: *self.numbers.entry(id).or_insert(attr.ino),
            kind: object.kind,
            mode: object.mode,
            nlink: if is_lost { attr.nlink } else { object.nlink(&self.tree) },
            uid: object.uid,
            gid: object.gid,
            rdev: object.rdev,
            size: if is_lost { attr.size } else { object.size() },
            blocks: attr.blocks,
            blksize: 4096,
            atime: object.atime,
            mtime: object.mtime,
            ctime: object.ctime,
            btime: object.btime,
        };
        assert_eq!(
            *attr, expected,
            "seed {}, step {} after {}: object {id}",
            self.seed, self.step, self.last
        );
        let full = object.data.len().max(object.allocated).div_ceil(4096) as u64 * 8;
        assert!(attr.blocks <= full, "seed {}, step {}: {} blocks", self.seed, self.step, attr.blocks);
        if object.data.iter().any(|b| *b != 0) {
            assert!(attr.blocks > 0, "seed {}, step {}: data without blocks", self.seed, self.step);
        }
    }

    pub(crate) fn compare_xattrs(&self, id: Id, node: NodeId) {
        let object = &self.tree.objects[id];
        let names: Vec<u8> = object.xattrs.keys().flat_map(|n| n.iter().copied().chain([0])).collect();
        self.same("listxattr", self.fs.listxattr(node), Ok(names));
        for (name, value) in &object.xattrs {
            self.same("getxattr", self.fs.getxattr(node, name), Ok(value.clone()));
        }
    }

    pub(crate) fn list(&mut self) {
        let (id, node) = self.a_dir();
        self.last = format!("list {id}");
        if !self.tree.objects[id].is_dir() {
            return;
        }
        if self.tree.objects[id].names > 0 {
            self.tree.touch(id);
        }
        self.compare_listing(id, node);
    }

    /// Lists a directory in small steps, with nodes or without.
    pub(crate) fn compare_listing(&mut self, id: Id, node: NodeId) {
        let plus = self.random.chance(2);
        let mut seen = Vec::new();
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let (before, start) = (seen.len(), cookie);
            let mut room = 1 + self.random.below(4);
            let mut each = |entry: espalier_fs::DirEntry<'_>| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                cookie = entry.cookie;
                seen.push((entry.name.to_vec(), entry.ino, entry.kind));
                entries.extend(entry.entry.cloned());
                true
            };
            if plus {
                self.fs.readdirplus(node, start, &mut each).expect("a directory can be listed");
            } else {
                self.fs.readdir(node, start, &mut each).expect("a directory can be listed");
            }
            if seen.len() == before {
                break;
            }
        }
        if self.tree.objects[id].names == 0 {
            assert_eq!(seen, [], "a removed directory lists nothing");
            return;
        }
        let names: Vec<_> = seen.iter().map(|(name, ..)| name.clone()).collect();
        let listing = self.tree.listing(id);
        let expected: Vec<Vec<u8>> = [b".".to_vec(), b"..".to_vec()]
            .into_iter()
            .chain(listing.iter().map(|(n, _)| n.clone()))
            .collect();
        assert_eq!(
            names, expected,
            "seed {}, step {} after {}: listing of {id}",
            self.seed, self.step, self.last
        );
        for ((_, child), (_, ino, kind)) in listing.iter().zip(&seen[2..]) {
            assert_eq!(self.tree.objects[*child].kind, *kind);
            assert_eq!(self.numbers.entry(*child).or_insert(*ino), ino, "seed {}: numbers change", self.seed);
        }
        for ((_, child), entry) in listing.iter().zip(&entries) {
            self.check_attr(*child, &entry.attr);
            self.fs.forget(entry.node, 1);
        }
        assert_eq!(entries.len(), if plus { listing.len() } else { 0 });
    }

    /// Compares everything: each object by each of its names, and what is in use without a name.
    pub(crate) fn compare_all(&mut self) {
        self.compare_below(ROOT, NodeId::ROOT);
        for (id, node, _) in self.open.clone() {
            self.compare_object(id, node);
        }
        self.check();
    }

    /// Every promise of the layout is kept.
    pub(crate) fn check(&self) {
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!(report.problems, [], "seed {}, step {} after {}", self.seed, self.step, self.last);
        let kept = self.store.statistics().space.kept;
        assert_eq!(kept, report.reserved, "seed {}, step {} after {}", self.seed, self.step, self.last);
    }

    /// Gives everything back: nothing may be left of what has no name.
    pub(crate) fn finish(&mut self) {
        while self.open.len() > 1 {
            self.forget();
        }
        self.fs.background_tick().expect("tick");
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!((report.problems, report.orphans), (vec![], 0), "seed {}", self.seed);
        let statistics = self.fs.statistics();
        assert_eq!((statistics.nodes, statistics.orphans), (3, 0), "seed {}: {statistics:?}", self.seed);
    }

    pub(crate) fn compare_below(&mut self, id: Id, node: NodeId) {
        self.compare_object(id, node);
        self.tree.touch(id);
        self.compare_listing(id, node);
        for (name, child) in self.tree.listing(id) {
            let entry = self.fs.lookup(node, &name).expect("what is listed is there");
            if self.tree.objects[child].is_dir() {
                self.compare_below(child, entry.node);
            } else {
                self.compare_object(child, entry.node);
            }
            self.fs.forget(entry.node, 1);
        }
    }

    pub(crate) fn compare_object(&mut self, id: Id, node: NodeId) {
        let attr = self.fs.getattr(node).expect("what is in use has attributes");
        self.check_attr(id, &attr);
        self.same("flags", self.fs.flags(node), Ok(self.tree.objects[id].flags));
        self.compare_xattrs(id, node);
        match self.tree.objects[id].kind {
            FileKind::Symlink => {
                self.tree.touch(id);
                let target = self.tree.objects[id].target.clone();
                self.same("readlink", self.fs.readlink(node), Ok(target));
            }
            FileKind::Regular => {
                let mut out = vec![0xee; self.tree.objects[id].data.len() + 10];
                let data = self.tree.read(id, 0, out.len());
                let got = self.fs.read(node, 0, &mut out).map(|len| out[..len].to_vec());
                self.same("read", got, data);
            }
            _ => {}
        }
    }
}
