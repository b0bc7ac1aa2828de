//! Which trees users may handle as a whole: all that is their own, without a walk over it, and
//! nothing else, whatever was done to it before.

use crate::Bench;
use espalier_fs::{
    Caller, FileKind, FsErrorKind, ModeChange, NewNode, NodeId, OwnerChange, RenameMode, SetAttr, XattrMode,
};

pub(crate) const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
pub(crate) const USER: Caller = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
pub(crate) const OTHER_GROUP: u32 = 9;

/// Capabilities that count in the user namespaces of `uid`.
pub(crate) fn capabilities_of(uid: u32) -> Vec<u8> {
    let mut value = vec![0; 24];
    value[3] = 3;
    value[20..].copy_from_slice(&uid.to_le_bytes());
    value
}

/// Entries keep these bits of their modes, and files get further ones.
pub(crate) fn keep(bits: u32, add_files: u32) -> ModeChange {
    ModeChange { keep_directories: bits, add_directories: 0, keep_files: bits, add_files, add_executables: 0 }
}

pub(crate) fn set(mode: Option<u32>, uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { mode, uid, gid, ..Default::default() }
}

/// /mine/{below/{file,second},alone} and /elsewhere/third, all of one user: `second` and `third`
/// are further names of `file`.
pub(crate) struct Trees {
    pub(crate) bench: Bench,
    pub(crate) mine: NodeId,
    pub(crate) below: NodeId,
    pub(crate) elsewhere: NodeId,
    pub(crate) file: NodeId,
    pub(crate) alone: NodeId,
}

impl Trees {
    pub(crate) fn new() -> Self {
        let bench = Bench::new(0);
        bench.fs.setattr(NodeId::ROOT, &set(Some(0o777), None, None)).expect("chmod");
        let dir =
            |parent, name: &str| bench.fs.mkdir(parent, name.as_bytes(), 0o755, &USER).expect("mkdir").node;
        let mine = dir(NodeId::ROOT, "mine");
        let below = dir(mine, "below");
        let elsewhere = dir(NodeId::ROOT, "elsewhere");
        let file = |parent, name: &str| {
            let made = bench.fs.mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &USER);
            made.expect("mknod").node
        };
        let (linked, alone) = (file(below, "file"), file(mine, "alone"));
        bench.fs.link(linked, below, b"second").expect("link");
        bench.fs.link(linked, elsewhere, b"third").expect("link");
        Self { mine, below, elsewhere, file: linked, alone, bench }
    }

    /// Clones a directory for the user; the clone's name is the number of entries in the root.
    pub(crate) fn clone_of(&self, dir: NodeId) -> Result<NodeId, FsErrorKind> {
        let name = format!("clone-{}", self.bench.fs.getattr(NodeId::ROOT).expect("attributes").size);
        let cloned = self.bench.fs.clone_tree(dir, NodeId::ROOT, name.as_bytes(), &USER);
        cloned.map(|entry| entry.node).map_err(|error| error.kind())
    }

    pub(crate) fn walks(&self) -> u64 {
        self.bench.fs.statistics().ownership_walks
    }

    #[track_caller]
    pub(crate) fn refused(&self, dir: NodeId) {
        self.bench.check(0);
        assert_eq!(self.clone_of(dir).map(|_| ()), Err(FsErrorKind::Permission));
        let change = keep(0o7777, 0);
        let changed = self.bench.fs.chmod_tree(dir, change, &USER).map_err(|error| error.kind());
        assert_eq!(changed, Err(FsErrorKind::Permission));
        self.bench.check(0);
    }

    /// What root does to the user's trees, after which `mine` is not all the user's own.
    #[track_caller]
    pub(crate) fn refused_after(root_does: impl FnOnce(&Self)) {
        let trees = Self::new();
        trees.clone_of(trees.mine).expect("all of it is the user's own");
        root_does(&trees);
        trees.refused(trees.mine);
        // It is not forgotten either.
        let Self { bench, .. } = trees;
        bench.fs.syncfs().expect("sync");
        let bench = bench.crash();
        let mine = bench.look(NodeId::ROOT, "mine");
        let cloned = bench.fs.clone_tree(mine, NodeId::ROOT, b"again", &USER);
        assert_eq!(cloned.map(|_| ()).map_err(|error| error.kind()), Err(FsErrorKind::Permission));
        let removed = bench.fs.remove_tree(NodeId::ROOT, b"mine", &USER);
        assert_eq!(removed.map_err(|error| error.kind()), Err(FsErrorKind::Permission));
        bench.check(0);
    }
}

#[test]
fn trees_with_hard_links_are_handled_without_a_walk() {
    let trees = Trees::new();
    let copy = trees.clone_of(trees.mine).expect("clone");
    // The clone has a link area of its own.
    let inside = trees.bench.look(copy, "below/file");
    trees.bench.fs.link(inside, copy, b"more").expect("link");
    let again = trees.clone_of(copy).expect("clone");
    let change = keep(0o700, 0);
    trees.bench.fs.chmod_tree(again, change, &USER).expect("chmod");
    for name in ["clone-2", "clone-3", "mine"] {
        trees.bench.fs.remove_tree(NodeId::ROOT, name.as_bytes(), &USER).expect("remove");
    }
    assert_eq!(trees.walks(), 0);
}

#[test]
fn files_that_run_with_their_owners_rights_are_no_obstacle() {
    let trees = Trees::new();
    for file in [trees.file, trees.alone] {
        trees.bench.fs.setattr(file, &set(Some(0o4755), None, None)).expect("chmod");
        let value = capabilities_of(USER.uid);
        trees.bench.fs.setxattr(file, b"security.capability", &value, XattrMode::Set, false).expect("set");
    }
    let copy = trees.clone_of(trees.mine).expect("clone");
    assert_eq!(trees.walks(), 0);
    let attr = trees.bench.fs.getattr(trees.bench.look(copy, "alone")).expect("attributes");
    assert_eq!((attr.mode, attr.uid), (0o4755, USER.uid));
    trees.clone_of(trees.alone).expect("clone of a file");
    // A file of the caller's group: a walk decides, each time.
    trees.bench.fs.setattr(trees.alone, &set(Some(0o2755), None, None)).expect("chmod");
    trees.clone_of(trees.mine).expect("clone");
    trees.clone_of(trees.mine).expect("clone");
    assert_eq!(trees.walks(), 2);
    trees.bench.check(0);
}

#[test]
fn a_file_given_away_is_in_the_way() {
    Trees::refused_after(|t| {
        t.bench.fs.setattr(t.alone, &set(None, Some(8), None)).expect("chown");
    });
    // Through any of its names.
    Trees::refused_after(|t| {
        t.bench.fs.setattr(t.file, &set(None, Some(8), None)).expect("chown");
    });
    Trees::refused_after(|t| {
        let owner = OwnerChange { uid: Some(8), gid: None };
        t.bench.fs.chown_tree(t.elsewhere, owner, &ROOT).expect("chown");
    });
    Trees::refused_after(|t| {
        let owner = OwnerChange { uid: Some(8), gid: None };
        t.bench.fs.chown_tree(t.file, owner, &ROOT).expect("chown");
    });
    // In a clone with its own area, of which names were moved out.
    let trees = Trees::new();
    let copy = trees.clone_of(trees.mine).expect("clone");
    let file = trees.bench.look(copy, "below/file");
    trees.bench.fs.setattr(file, &set(None, Some(8), None)).expect("chown");
    trees.refused(copy);
    trees.clone_of(trees.mine).expect("the original is the user's own");
    trees.bench.fs.link(file, trees.elsewhere, b"fourth").expect("link, which merges the areas");
    trees.refused(copy);
    trees.refused(trees.elsewhere);
}

#[test]
fn a_file_that_lends_other_rights_is_in_the_way() {
    for linked in [false, true] {
        let pick = move |t: &Trees| if linked { t.file } else { t.alone };
        Trees::refused_after(|t| {
            let set = set(Some(0o2755), None, Some(OTHER_GROUP));
            t.bench.fs.setattr(pick(t), &set).expect("chmod");
        });
        for value in [capabilities_of(8), capabilities_of(0), vec![0, 0, 0, 2, 1, 0, 0, 0]] {
            Trees::refused_after(|t| {
                let set = t.bench.fs.setxattr(pick(t), b"security.capability", &value, XattrMode::Set, false);
                set.expect("setxattr");
            });
        }
    }
    Trees::refused_after(|t| {
        t.bench.fs.setattr(t.file, &set(None, None, Some(OTHER_GROUP))).expect("chgrp");
        t.bench.fs.chmod_tree(t.elsewhere, keep(0o7777, 0o2000), &ROOT).expect("chmod");
    });
}

#[test]
fn a_foreign_entry_is_in_the_way_however_it_came() {
    fn foreign(t: &Trees) -> NodeId {
        t.bench.file(NodeId::ROOT, "foreign")
    }
    Trees::refused_after(|t| _ = t.bench.file(t.below, "new"));
    Trees::refused_after(|t| t.bench.fs.link(foreign(t), t.below, b"new").map(drop).expect("link"));
    Trees::refused_after(|t| {
        foreign(t);
        let (from, to) = ((NodeId::ROOT, &b"foreign"[..]), (t.below, &b"file"[..]));
        t.bench.fs.rename(from.0, from.1, to.0, to.1, RenameMode::Replace).expect("rename");
    });
    Trees::refused_after(|t| {
        foreign(t);
        let (from, to) = ((t.mine, &b"alone"[..]), (NodeId::ROOT, &b"foreign"[..]));
        t.bench.fs.rename(from.0, from.1, to.0, to.1, RenameMode::Exchange).expect("exchange");
    });
    // A second name of a file that has several already.
    Trees::refused_after(|t| {
        let file = foreign(t);
        t.bench.fs.link(file, NodeId::ROOT, b"foreign-2").expect("link");
        let (from, to) = ((NodeId::ROOT, &b"foreign-2"[..]), (t.below, &b"moved"[..]));
        t.bench.fs.rename(from.0, from.1, to.0, to.1, RenameMode::Replace).expect("rename");
    });
    Trees::refused_after(|t| {
        let dir = t.bench.dir(NodeId::ROOT, "dir");
        t.bench.fs.clone_tree(dir, t.below, b"cloned", &ROOT).expect("clone");
    });
    Trees::refused_after(|t| {
        t.bench.fs.setattr(t.below, &set(None, Some(8), None)).expect("chown");
    });
    Trees::refused_after(|t| {
        let owner = OwnerChange { uid: Some(8), gid: None };
        t.bench.fs.chown_tree(t.below, owner, &ROOT).expect("chown");
    });
}

#[test]
fn what_copies_take_along_is_not_forgotten() {
    let trees = Trees::new();
    trees.bench.fs.setattr(trees.file, &set(None, Some(8), None)).expect("chown");
    let copied = trees.bench.fs.clone_tree(trees.mine, NodeId::ROOT, b"copied", &ROOT).expect("clone");
    trees.refused(copied.node);
    // Nor when a directory that bears the mark takes the copy in.
    let (from, to) = ((NodeId::ROOT, &b"copied"[..]), (trees.elsewhere, &b"in"[..]));
    trees.bench.fs.unlink(trees.elsewhere, b"third").expect("unlink");
    trees.clone_of(trees.elsewhere).expect("the rest is the user's own");
    trees.bench.fs.rename(from.0, from.1, to.0, to.1, RenameMode::Replace).expect("rename");
    trees.bench.dir(NodeId::ROOT, "one entry more");
    trees.refused(trees.elsewhere);
    trees.bench.fs.snapshot_tree(trees.mine, "before", false, &ROOT).expect("snapshot");
    trees.bench.fs.restore_tree(NodeId::ROOT, b"mine", "before", &ROOT).expect("restore");
    let restored = trees.bench.look(NodeId::ROOT, "mine");
    assert_eq!(trees.clone_of(restored).map(|_| ()), Err(FsErrorKind::Permission));
    // The test holds the tree that was there before.
    trees.bench.check(1);
}

#[test]
fn marks_come_back_when_nothing_foreign_is_left() {
    let trees = Trees::new();
    trees.bench.file(trees.below, "foreign");
    trees.refused(trees.mine);
    trees.bench.fs.unlink(trees.below, b"foreign").expect("unlink");
    let walks = trees.walks();
    trees.clone_of(trees.mine).expect("clone");
    assert_eq!(trees.walks(), walks + 1);
    trees.clone_of(trees.mine).expect("clone");
    trees.clone_of(trees.below).expect("clone");
    assert_eq!(trees.walks(), walks + 1);
    trees.bench.check(0);
    // They are as good as the first ones, also before memory has taken note of them.
    trees.bench.file(trees.below, "foreign");
    trees.refused(trees.mine);
    trees.bench.fs.unlink(trees.below, b"foreign").expect("unlink");
    // So are those of a linked file.
    trees.bench.fs.setattr(trees.file, &set(None, Some(8), None)).expect("chown");
    trees.refused(trees.mine);
    trees.bench.fs.setattr(trees.file, &set(None, Some(USER.uid), None)).expect("chown");
    let copy = trees.clone_of(trees.mine).expect("clone");
    let walks = trees.walks();
    trees.clone_of(copy).expect("clone");
    let again = trees.walks();
    trees.clone_of(copy).expect("clone");
    assert_eq!((again, trees.walks()), (walks + 1, walks + 1));
    trees.bench.check(0);
    let Trees { bench, .. } = trees;
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    bench.check(0);
    bench.fs.clone_tree(bench.look(NodeId::ROOT, "clone-3"), NodeId::ROOT, b"late", &USER).expect("clone");
    assert_eq!(bench.fs.statistics().ownership_walks, 0);
}

/// Random numbers that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Everything in and below `dir` is the user's, as its attributes say.
fn is_all_own(bench: &Bench, dir: NodeId) -> bool {
    let is_own = |attr: espalier_fs::Attr| {
        let lends = attr.kind != FileKind::Directory && attr.mode & 0o2000 != 0 && attr.gid != USER.gid;
        attr.uid == USER.uid && !lends
    };
    let mut all = is_own(bench.fs.getattr(dir).expect("attributes"));
    let mut each = |entry: espalier_fs::TreeEntry<'_>| {
        all &= is_own(entry.attr);
        all
    };
    bench.fs.list_tree(dir, &mut each).expect("list");
    all
}

/// Random changes by root and the user; after each, a clone by the user succeeds exactly if
/// everything in the tree is the user's own.
fn random_changes(seed: u64) {
    let bench = Bench::new(0);
    bench.fs.setattr(NodeId::ROOT, &set(Some(0o777), None, None)).expect("chmod");
    let mut random = Random(seed * 0x9E37_79B9 + 1);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut clones = 0;
    for step in 0..120 {
        let mut dirs = vec![NodeId::ROOT];
        let mut files = Vec::new();
        let mut paths = Vec::new();
        let mut each = |entry: espalier_fs::TreeEntry<'_>| {
            paths.push((String::from_utf8_lossy(entry.path).into_owned(), entry.attr.kind));
            true
        };
        bench.fs.list_tree(NodeId::ROOT, &mut each).expect("list");
        for (path, kind) in paths {
            let node = bench.look(NodeId::ROOT, &path);
            if kind == FileKind::Directory { dirs.push(node) } else { files.push(node) }
        }
        let (dir, to, name, new) =
            (random.pick(&dirs), random.pick(&dirs), random.pick(&names), random.pick(&names));
        let file = (!files.is_empty()).then(|| random.pick(&files));
        let caller = if random.below(8) == 0 { &ROOT } else { &USER };
        let uid = if random.below(3) == 0 { 8 } else { USER.uid };
        // Many fail, because something exists or is missing: that is no matter.
        let fs = &bench.fs;
        match random.below(14) {
            0 | 1 => drop(fs.mkdir(dir, name, 0o755, caller)),
            2..=4 => drop(fs.mknod(dir, name, NewNode::Regular, 0o644, caller)),
            5 | 6 => drop(file.map(|file| fs.link(file, dir, name))),
            7 => {
                drop(fs.rename(dir, name, to, new, random.pick(&[RenameMode::Replace, RenameMode::Exchange])))
            }
            8 => drop(file.map(|file| fs.setattr(file, &set(None, Some(uid), None)))),
            9 => {
                let mode = random.pick(&[0o644, 0o2755, 0o4755]);
                let gid = random.pick(&[USER.gid, OTHER_GROUP]);
                drop(file.map(|file| fs.setattr(file, &set(Some(mode), None, Some(gid)))));
            }
            10 => drop(fs.setattr(random.pick(&dirs[..]), &set(None, Some(uid), None))),
            11 => drop(fs.unlink(dir, name)),
            12 if dir != NodeId::ROOT => {
                let owner = OwnerChange { uid: Some(uid), gid: None };
                drop(fs.chown_tree(dir, owner, &ROOT));
            }
            _ => drop(fs.clone_tree(dir, to, name, &ROOT)),
        }
        let tree = random.pick(&dirs);
        if tree == NodeId::ROOT || fs.getattr(tree).is_err() || dirs.len() > 60 {
            continue;
        }
        let place = format!("clone-{seed}-{step}");
        let cloned = fs.clone_tree(tree, NodeId::ROOT, place.as_bytes(), &USER).map(|_| ());
        let expected = if is_all_own(&bench, tree) { Ok(()) } else { Err(FsErrorKind::Permission) };
        match cloned.map_err(|error| error.kind()) {
            // The tree was removed, but is still held.
            Err(FsErrorKind::NotFound) => {}
            cloned => assert_eq!(cloned, expected, "seed {seed}, step {step}"),
        }
        if expected.is_ok() {
            clones += 1;
            bench.fs.remove_tree(NodeId::ROOT, place.as_bytes(), &USER).expect("remove");
        }
        if step % 10 == 0 {
            let report = espalier_fs::check(&bench.store, "main", &mut |_| {}).expect("check");
            assert_eq!(report.problems, [], "seed {seed}, step {step}");
        }
    }
    assert!(clones > 0, "seed {seed}: no tree was the user's own");
}

#[test]
fn a_user_handles_exactly_what_is_the_users_own() {
    for seed in 0..10 {
        random_changes(seed);
    }
}

#[test]
fn no_walk_misses_what_comes_meanwhile() {
    let bench = Bench::new(0);
    bench.fs.setattr(NodeId::ROOT, &set(Some(0o777), None, None)).expect("chmod");
    let top = bench.fs.mkdir(NodeId::ROOT, b"top", 0o755, &USER).expect("mkdir").node;
    let mut files = Vec::new();
    for n in 0..40 {
        let dir = bench.fs.mkdir(top, format!("{n}").as_bytes(), 0o755, &USER).expect("mkdir").node;
        let file = bench.fs.mknod(dir, b"file", NewNode::Regular, 0o644, &USER).expect("mknod").node;
        if n % 2 == 0 {
            bench.fs.link(file, NodeId::ROOT, format!("link-{n}").as_bytes()).expect("link");
        }
        files.push(file);
    }
    let fs = &bench.fs;
    std::thread::scope(|scope| {
        let giving = scope.spawn(|| {
            let mut random = Random(7);
            for _ in 0..400 {
                let file = random.pick(&files);
                for uid in [8, USER.uid] {
                    fs.setattr(file, &set(None, Some(uid), None)).expect("chown");
                }
            }
        });
        let mut n = 0;
        while !giving.is_finished() {
            n += 1;
            let name = format!("clone-{n}");
            match fs.clone_tree(top, NodeId::ROOT, name.as_bytes(), &USER) {
                Ok(clone) => {
                    assert!(is_all_own(&bench, clone.node));
                    fs.remove_tree(NodeId::ROOT, name.as_bytes(), &USER).expect("remove");
                }
                Err(error) => assert_eq!(error.kind(), FsErrorKind::Permission),
            }
        }
    });
    let report = espalier_fs::check(&bench.store, "main", &mut |_| {}).expect("check");
    assert_eq!(report.problems, []);
}
