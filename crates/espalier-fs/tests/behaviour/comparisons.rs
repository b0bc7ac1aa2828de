//! Answers of comparisons that were kept are those that a comparison finds now.

use crate::Bench;
use espalier_fs::{
    Caller, Change, FsErrorKind, ModeChange, NewNode, NodeId, OpenOptions, OwnerChange, RenameMode, SetAttr,
    SetTime, TreeLimits, XattrMode,
};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const USER: Caller = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
const STEPS: usize = 200;

type Differences = Vec<(Change, Vec<u8>)>;

impl Bench {
    fn compared_anew(&self, old: NodeId, new: NodeId) -> Differences {
        let mut diff = self.fs.diff_trees(&self.fs, old, new, &ROOT).expect("diff");
        assert!(!diff.is_kept());
        std::iter::from_fn(|| diff.next().expect("difference")).collect()
    }

    /// The differences, and whether they were kept.
    fn compared(&self, old: NodeId, new: NodeId) -> (Differences, bool) {
        let mut diff = self.fs.diff_trees_again(&self.fs, old, new, &ROOT).expect("diff");
        let is_kept = diff.is_kept();
        (std::iter::from_fn(|| diff.next().expect("difference")).collect(), is_kept)
    }

    /// What is kept, or found now, is what a comparison finds. Then it is kept.
    #[track_caller]
    fn agrees(&self, old: NodeId, new: NodeId, what: &str) -> (Differences, bool) {
        let (found, was_kept) = self.compared(old, new);
        assert_eq!(found, self.compared_anew(old, new), "{what}, kept: {was_kept}");
        assert_eq!(self.compared(old, new), (found.clone(), true), "{what}: not kept");
        (found, was_kept)
    }

    fn renamed(&self, from: (NodeId, &str), to: (NodeId, &str), mode: RenameMode) {
        self.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode).expect("rename");
    }

    fn removed(&self, parent: NodeId, name: &str) {
        self.fs.remove_tree(parent, name.as_bytes(), &ROOT).expect("remove");
    }

    fn cloned(&self, source: NodeId, parent: NodeId, name: &str) -> NodeId {
        self.fs.clone_tree(source, parent, name.as_bytes(), &ROOT).expect("clone").node
    }
}

/// A workspace and its base, each in a directory of its own: `home/ws` and `data/base`.
struct Pair {
    bench: Bench,
    data: NodeId,
}

impl Pair {
    fn new() -> Self {
        let bench = Bench::new(0);
        let original = bench.dir(NodeId::ROOT, "original");
        let sub = bench.dir(original, "sub");
        for name in ["a", "b"] {
            bench.file(original, name);
            bench.file(sub, name);
        }
        let (home, data) = (bench.dir(NodeId::ROOT, "home"), bench.dir(NodeId::ROOT, "data"));
        let ws = bench.cloned(original, home, "ws");
        bench.cloned(ws, data, "base");
        let pair = Self { bench, data };
        assert_eq!(pair.agrees("at first"), (vec![], false));
        pair
    }

    fn home(&self) -> NodeId {
        self.bench.look(NodeId::ROOT, "home")
    }

    fn ws(&self) -> NodeId {
        self.bench.look(self.home(), "ws")
    }

    fn base(&self) -> NodeId {
        self.bench.look(self.data, "base")
    }

    #[track_caller]
    fn agrees(&self, what: &str) -> (Differences, bool) {
        self.bench.agrees(self.base(), self.ws(), what)
    }

    /// A change that ends the answer.
    #[track_caller]
    fn ends_with(&self, what: &str, change: impl FnOnce(&Bench)) {
        self.agrees(what);
        change(&self.bench);
        let (found, was_kept) = self.agrees(what);
        assert!(!was_kept, "{what}: {found:?}");
    }
}

/// A change that a test makes.
type ChangeOf<'a> = &'a dyn Fn(&Bench);

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

#[test]
fn a_change_in_either_tree_is_seen() {
    let pair = Pair::new();
    for (tree, top) in [("workspace", pair.ws()), ("base", pair.base())] {
        let sub = pair.bench.look(top, "sub");
        let file = pair.bench.look(sub, "a");
        let changes: [(&str, ChangeOf<'_>); 9] = [
            ("create", &|bench| assert_ne!(bench.file(sub, "new"), sub)),
            ("write", &|bench| assert_eq!(bench.fs.write(file, 0, b"text", false).expect("write"), 4)),
            ("chmod", &|bench| assert_eq!(bench.fs.setattr(sub, &mode(0o700)).expect("chmod").mode, 0o700)),
            ("unlink", &|bench| bench.fs.unlink(sub, b"b").expect("unlink")),
            ("rename", &|bench| bench.renamed((sub, "new"), (top, "moved"), RenameMode::Replace)),
            ("link", &|bench| assert_eq!(bench.fs.link(file, top, b"second").expect("link").node, file)),
            ("symlink", &|bench| {
                assert_ne!(bench.fs.symlink(top, b"l", b"x", &ROOT).expect("symlink").node, top)
            }),
            ("clone", &|bench| assert_ne!(bench.cloned(sub, top, "copy"), sub)),
            ("removal", &|bench| bench.removed(top, "copy")),
        ];
        for (what, change) in changes {
            pair.ends_with(&format!("{what} in the {tree}"), change);
        }
        let bytes = [b'x'; 300];
        pair.ends_with(tree, |bench| {
            bench.fs.setxattr(file, b"user.x", &bytes, XattrMode::Set, false).expect("setxattr");
        });
    }
}

#[test]
fn what_happens_elsewhere_ends_no_answer() {
    let pair = Pair::new();
    let original = pair.bench.look(NodeId::ROOT, "original");
    pair.bench.file(original, "new");
    pair.bench.file(pair.home(), "beside");
    pair.bench.cloned(original, pair.home(), "ws2");
    pair.bench.cloned(pair.ws(), pair.home(), "copy");
    pair.bench.removed(pair.home(), "ws2");
    // A read changes times of the last read only.
    let file = pair.bench.look(pair.ws(), "a");
    pair.bench.fs.read(file, 0, &mut [0; 10]).expect("read");
    pair.bench.fs.syncfs().expect("sync");
    pair.bench.store.checkpoint().expect("checkpoint");
    assert_eq!(pair.agrees("elsewhere"), (vec![], true));
    // With hard links the area of the root serves all. Files without names lie in it, too.
    let file = pair.bench.look(pair.home(), "beside");
    pair.bench.fs.link(file, pair.home(), b"second").expect("link");
    pair.agrees("with links");
    let open = pair.bench.file(pair.home(), "open");
    pair.bench.fs.write(open, 0, &[1; 5000], false).expect("write");
    pair.bench.fs.unlink(pair.home(), b"open").expect("unlink");
    assert_eq!(pair.agrees("beside files without names"), (vec![], true));
}

#[test]
fn a_change_of_a_tree_around_is_seen() {
    let pair = Pair::new();
    pair.ends_with("chmod -R above", |bench| {
        let change =
            ModeChange { keep_directories: 0o7700, add_directories: 0, keep_files: 0o7700, ..no_change() };
        bench.fs.chmod_tree(pair.home(), change, &ROOT).expect("chmod");
    });
    pair.ends_with("chown -R above", |bench| {
        let change = OwnerChange { uid: Some(9), gid: None };
        bench.fs.chown_tree(pair.data, change, &ROOT).expect("chown");
    });
    pair.ends_with("another tree in place of that around", |bench| {
        let (copy, elsewhere) =
            (bench.cloned(pair.home(), NodeId::ROOT, "copy"), bench.look(pair.home(), "ws"));
        bench.file(bench.look(copy, "ws"), "in the copy");
        bench.file(elsewhere, "in the first");
        bench.renamed((NodeId::ROOT, "copy"), (NodeId::ROOT, "home"), RenameMode::Exchange);
        bench.renamed((NodeId::ROOT, "copy"), (NodeId::ROOT, "home"), RenameMode::Exchange);
    });
}

fn no_change() -> ModeChange {
    ModeChange {
        keep_directories: 0o7777,
        add_directories: 0,
        keep_files: 0o7777,
        add_files: 0,
        add_executables: 0,
    }
}

#[test]
fn another_tree_at_the_same_path_is_compared_anew() {
    let pair = Pair::new();
    let bench = &pair.bench;
    let other = bench.cloned(pair.ws(), pair.home(), "other");
    bench.file(other, "of the other");
    pair.ends_with("exchange", |bench| {
        bench.renamed((pair.home(), "ws"), (pair.home(), "other"), RenameMode::Exchange);
    });
    pair.ends_with("removed and cloned again", |bench| {
        bench.removed(pair.home(), "ws");
        bench.cloned(pair.base(), pair.home(), "ws");
    });
    pair.ends_with("moved away, and another one made", |bench| {
        bench.renamed((pair.home(), "ws"), (pair.home(), "away"), RenameMode::NoReplace);
        bench.dir(pair.home(), "ws");
    });
    // An empty directory has no key of its own below it.
    pair.ends_with("an empty one replaced", |bench| {
        bench.renamed((pair.home(), "away"), (pair.home(), "ws"), RenameMode::Replace);
    });
    pair.ends_with("another base", |bench| {
        bench.removed(pair.data, "base");
        bench.cloned(bench.look(NodeId::ROOT, "original"), pair.data, "base");
        bench.file(pair.base(), "of the new base");
    });
}

#[test]
fn a_restored_tree_is_compared_anew_and_snapshots_always_are() {
    let pair = Pair::new();
    let bench = &pair.bench;
    let snapshot = |name: &str| bench.fs.snapshot_tree(pair.ws(), name, false, &ROOT).expect("snapshot");
    let compared = |name: &str| {
        let known = bench.fs.snapshot_of(pair.ws(), name).expect("snapshot");
        let before = bench.fs.open_snapshot(&known, 1 << 20).expect("open");
        let diff = bench.fs.diff_trees_again(&before, NodeId::ROOT, pair.ws(), &ROOT);
        let mut diff = diff.expect("diff");
        let count = std::iter::from_fn(|| diff.next().expect("difference")).count();
        assert!(!diff.is_kept());
        count
    };
    snapshot("s");
    bench.file(pair.ws(), "later");
    assert_eq!((compared("s"), compared("s")), (1, 1));
    // Another snapshot with the name of one that was deleted.
    bench.fs.snapshot_tree_delete(pair.ws(), "s", &ROOT).expect("delete");
    snapshot("s");
    assert_eq!(compared("s"), 0);
    bench.file(pair.ws(), "still later");
    pair.ends_with("restore", |bench| {
        let restored = bench.fs.restore_tree(pair.home(), b"ws", "s", &ROOT).expect("restore");
        bench.fs.forget(restored.node, 1);
    });
    assert_eq!(compared("s"), 0);
    bench.fs.snapshot_tree(pair.home(), "around", false, &ROOT).expect("snapshot");
    bench.file(pair.ws(), "even later");
    pair.ends_with("restore of the tree around", |bench| {
        let restored = bench.fs.restore_tree(NodeId::ROOT, b"home", "around", &ROOT).expect("restore");
        bench.fs.forget(restored.node, 1);
    });
}

#[test]
fn a_change_through_a_name_outside_is_seen() {
    let pair = Pair::new();
    let bench = &pair.bench;
    let file = bench.look(pair.ws(), "a");
    bench.fs.link(file, NodeId::ROOT, b"outside").expect("link");
    // Its attributes lie in the area of the root.
    pair.agrees("linked");
    let outside = bench.look(NodeId::ROOT, "outside");
    pair.ends_with("write by another name", |bench| {
        bench.fs.write(outside, 0, b"text", false).expect("write");
    });
    pair.ends_with("the name is gone", |bench| bench.fs.unlink(pair.ws(), b"a").expect("unlink"));
}

#[test]
fn a_limit_takes_the_area_along() {
    let pair = Pair::new();
    let bench = &pair.bench;
    let file = bench.look(pair.ws(), "a");
    bench.fs.link(file, pair.ws(), b"second").expect("link");
    pair.agrees("linked");
    let limits = TreeLimits { exclusive: Some(1 << 30), total: None };
    bench.fs.set_quota(pair.ws(), Some(limits), &ROOT, true).expect("limit");
    pair.agrees("limited");
    pair.ends_with("write in the limited tree", |bench| {
        bench.fs.write(file, 0, b"text", false).expect("write");
    });
    bench.fs.set_quota(pair.ws(), None, &ROOT, true).expect("no limit");
    pair.agrees("without the limit");
    pair.ends_with("write afterwards", |bench| {
        bench.fs.write(bench.look(pair.ws(), "second"), 0, b"longer text", false).expect("write");
    });
}

/// What root has asked is not told to a user, and what a user was told not to the next one.
#[test]
fn a_kept_answer_is_for_callers_that_may_ask() {
    let bench = Bench::new(0);
    let [base, ws] = [b"base", b"work"].map(|name| {
        let made = bench.fs.mkdir(NodeId::ROOT, name, 0o755, &USER).expect("mkdir").node;
        bench.fs.mknod(made, b"file", NewNode::Regular, 0o644, &USER).expect("mknod");
        made
    });
    bench.agrees(base, ws, "by root");
    let asked = |caller: &Caller| bench.fs.diff_trees_again(&bench.fs, base, ws, caller);
    assert!(asked(&USER).expect("the owner").is_kept());
    let stranger = Caller { uid: 8, gid: 8, ..USER };
    assert_eq!(asked(&stranger).err().expect("another user").kind(), FsErrorKind::Permission);
    // The top does not lie below itself, so the answer goes on while the right to ask ends.
    bench.fs.setattr(ws, &SetAttr { uid: Some(8), ..SetAttr::default() }).expect("chown");
    assert_eq!(asked(&USER).err().expect("not the owner").kind(), FsErrorKind::Permission);
    assert!(asked(&ROOT).expect("root").is_kept());
}

/// Where a directory was removed another user may have one by now.
#[test]
fn a_removed_directory_shows_nothing_of_the_one_in_its_place() {
    let bench = Bench::new(0);
    let [empty, gone] = [b"empty", b"place"]
        .map(|name| bench.fs.mkdir(NodeId::ROOT, name, 0o755, &USER).expect("mkdir").node);
    bench.fs.rmdir(NodeId::ROOT, b"place").expect("rmdir");
    let stranger = Caller { uid: 8, gid: 8, ..USER };
    let private = bench.fs.mkdir(NodeId::ROOT, b"place", 0o700, &stranger).expect("mkdir").node;
    bench.fs.mknod(private, b"secret", NewNode::Regular, 0o600, &stranger).expect("mknod");
    let kind = |error: espalier_fs::FsError| error.kind();
    for caller in [&USER, &ROOT] {
        let compared = bench.fs.diff_trees(&bench.fs, empty, gone, caller);
        assert_eq!(compared.err().map(kind), Some(FsErrorKind::NotFound));
        let compared = bench.fs.diff_trees_again(&bench.fs, gone, empty, caller);
        assert_eq!(compared.err().map(kind), Some(FsErrorKind::NotFound));
        let held = bench.fs.exclusive_space_of_tree(gone, caller);
        assert_eq!(held.err().map(kind), Some(FsErrorKind::NotFound));
        let changes = bench.fs.changed_paths(gone, b"", caller);
        assert_eq!(changes.err().map(kind), Some(FsErrorKind::NotFound));
    }
    let mut listed = 0;
    let mut each = |_: espalier_fs::TreeEntry<'_>| {
        listed += 1;
        true
    };
    bench.fs.list_tree(gone, &mut each).expect("list");
    assert_eq!(listed, 0);
}

/// A comparison that is told to wait goes on where it was.
#[test]
fn a_comparison_that_is_given_up_for_a_while_loses_nothing() {
    let pair = Pair::new();
    for number in 0..200 {
        pair.bench.file(pair.ws(), &format!("n{number:03}"));
    }
    let mut diff =
        pair.bench.fs.diff_trees_again(&pair.bench.fs, pair.base(), pair.ws(), &ROOT).expect("diff");
    let mut found = 0;
    let mut given_up = 0;
    loop {
        let goes_on = std::cell::Cell::new(false);
        match diff.next_while(&|| goes_on.replace(true)).expect("difference") {
            Some(_) => found += 1,
            None if given_up < 5 => given_up += 1,
            None => break,
        }
    }
    assert_eq!(found, 200);
    assert_eq!(pair.agrees("afterwards").0.len(), 200);
}

#[test]
fn an_answer_is_kept_when_all_of_it_was_found() {
    let pair = Pair::new();
    for name in ["x", "y", "z"] {
        pair.bench.file(pair.ws(), name);
    }
    let (base, ws) = (pair.base(), pair.ws());
    let begin = || pair.bench.fs.diff_trees_again(&pair.bench.fs, base, ws, &ROOT).expect("diff");
    let mut diff = begin();
    assert!(diff.next().expect("difference").is_some() && diff.next().expect("difference").is_some());
    drop(diff);
    let mut diff = begin();
    assert!(!diff.is_kept(), "two of three were found");
    assert_eq!(std::iter::from_fn(|| diff.next().expect("difference")).count(), 3);
    // One that was begun before a change, and is done after it, gives what was there, for once.
    pair.bench.file(ws, "w");
    let mut old = begin();
    pair.bench.fs.unlink(ws, b"w").expect("unlink");
    assert_eq!(std::iter::from_fn(|| old.next().expect("difference")).count(), 4);
    assert!(!begin().is_kept());
    assert_eq!(pair.agrees("afterwards").0.len(), 3);
}

/// What a random run has made: directories in the root.
struct Run {
    bench: Bench,
    seed: u64,
    names: u64,
    tops: Vec<String>,
    done: Vec<String>,
    /// How many answers were kept ones.
    kept: u64,
}

impl Run {
    fn below(&mut self, limit: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % limit.max(1)
    }

    fn top(&mut self) -> (String, NodeId) {
        let at = self.below(self.tops.len());
        let name = self.tops[at].clone();
        let node = self.bench.look(NodeId::ROOT, &name);
        (name, node)
    }

    /// Random entries below a random top, with their directories: one of which anything may be, and
    /// one that is a directory, which may be the top.
    fn entries(&mut self) -> (Option<(NodeId, String, NodeId)>, NodeId) {
        let (_, top) = self.top();
        let (mut all, mut dirs) = (Vec::new(), vec![String::new()]);
        let mut each = |entry: espalier_fs::TreeEntry<'_>| {
            let path = String::from_utf8(entry.path.to_vec()).expect("a name");
            if entry.attr.kind == espalier_fs::FileKind::Directory {
                dirs.push(path.clone());
            }
            all.push(path);
            true
        };
        self.bench.fs.list_tree(top, &mut each).expect("list");
        let at = self.below(dirs.len());
        let dir = match &*dirs[at] {
            "" => top,
            path => self.bench.look(top, path),
        };
        let at = self.below(all.len());
        let entry = all.get(at).map(|path| {
            let (parent, name) = path
                .rsplit_once('/')
                .map_or((top, &**path), |(parent, name)| (self.bench.look(top, parent), name));
            (parent, name.to_owned(), self.bench.look(parent, name))
        });
        (entry, dir)
    }

    /// Does something random below a top; what fails changes nothing.
    fn act(&mut self) {
        let (_, dir) = self.entries();
        // Few names, so that what is gone comes back.
        let name = format!("n{}", self.below(8));
        let (fs, name) = (self.bench.fs.clone(), name.as_bytes());
        let what = self.below(18);
        self.done.push(format!("{what} in {dir:?} as {}", String::from_utf8_lossy(name)));
        match what {
            0..=2 => return drop(fs.mknod(dir, name, NewNode::Regular, 0o644, &ROOT)),
            3 => return drop(fs.mkdir(dir, name, 0o755, &ROOT)),
            _ => {}
        }
        let Some((parent, old, node)) = self.entries().0 else { return };
        self.done.push(format!("  {old} {node:?} of {parent:?}"));
        let old = old.as_bytes();
        match what {
            4 | 5 => drop(fs.write(node, self.below(9000) as u64, b"data", false)),
            6 => drop(fs.unlink(parent, old).or_else(|_| fs.rmdir(parent, old))),
            7..=9 => drop(fs.link(node, dir, name)),
            10 => drop(fs.setattr(node, &mode(0o600 | self.below(64) as u32))),
            11 => drop(fs.rename(parent, old, dir, name, RenameMode::Replace)),
            12 => drop(fs.rename(parent, old, dir, name, RenameMode::Exchange)),
            13 => drop(fs.clone_tree(node, dir, name, &ROOT)),
            14 => drop(fs.remove_tree(parent, old, &ROOT)),
            15 => {
                let change = ModeChange { keep_files: 0o700, add_files: self.below(8) as u32, ..no_change() };
                drop(fs.chmod_tree(node, change, &ROOT));
            }
            16 => {
                let mtime = Some(SetTime::At(self.below(99) as i64));
                drop(fs.setattr(node, &SetAttr { mtime, ..SetAttr::default() }));
            }
            _ => drop(fs.background_tick()),
        }
    }

    /// Does something random with whole trees.
    fn act_on_tops(&mut self) {
        let ((one, node), (other, _)) = (self.top(), self.top());
        let fs = self.bench.fs.clone();
        self.names += 1;
        let new = format!("top{}", self.names);
        let what = self.below(8);
        self.done.push(format!("top {what}: {one} {other} {new}"));
        match what {
            0 | 1 if self.tops.len() < 4 => {
                self.bench.cloned(node, NodeId::ROOT, &new);
                self.tops.push(new);
            }
            2 => {
                self.bench.renamed((NodeId::ROOT, &one), (NodeId::ROOT, &new), RenameMode::NoReplace);
                self.tops.retain(|top| *top != one);
                self.tops.push(new);
            }
            3 if one != other => {
                self.bench.renamed((NodeId::ROOT, &one), (NodeId::ROOT, &other), RenameMode::Exchange);
            }
            // The same name at once for something else.
            4 if one != other => {
                self.bench.removed(NodeId::ROOT, &one);
                self.bench.cloned(self.bench.look(NodeId::ROOT, &other), NodeId::ROOT, &one);
            }
            5 => {
                let limits = TreeLimits { exclusive: Some(1 << 30), total: None };
                let limits = (self.below(2) == 0).then_some(limits);
                drop(fs.set_quota(node, limits, &ROOT, true));
            }
            6 => {
                let snapshots = fs.snapshots_of(node).expect("snapshots");
                match snapshots.first() {
                    None => fs.snapshot_tree(node, "s", false, &ROOT).expect("snapshot"),
                    Some(_) if self.below(3) == 0 => {
                        drop(fs.snapshot_tree_delete(node, "s", &ROOT).expect("delete"));
                    }
                    Some(_) => {
                        // It fails if the limit is in the way.
                        if let Ok(made) = fs.restore_tree(NodeId::ROOT, one.as_bytes(), "s", &ROOT) {
                            fs.forget(made.node, 1);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Compares some of the tops.
    fn compare(&mut self) {
        for _ in 0..3 {
            let ((one, old), (other, new)) = (self.top(), self.top());
            let done = &self.done[self.done.len().saturating_sub(30)..];
            let (_, was_kept) = self.bench.agrees(old, new, &format!("{one} {other} {done:#?}"));
            self.kept += u64::from(was_kept);
        }
    }
}

#[test]
fn kept_answers_are_those_of_comparisons() {
    let seeds: u64 = std::env::var("ESPALIER_SEEDS").map_or(3, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let bench = Bench::with(0, OpenOptions::default());
        let mut run = Run { bench, seed, names: 0, tops: Vec::new(), done: Vec::new(), kept: 0 };
        for name in ["one", "two"] {
            run.bench.dir(NodeId::ROOT, name);
            run.tops.push(name.into());
        }
        for step in 0..STEPS {
            let work = std::panic::AssertUnwindSafe(|| {
                match run.below(6) {
                    0 => run.act_on_tops(),
                    _ => run.act(),
                }
                run.compare();
            });
            if std::panic::catch_unwind(work).is_err() {
                panic!("seed {seed}, step {step}");
            }
        }
        println!("seed {seed}: {} answers were kept", run.kept);
        assert!(run.kept > STEPS as u64 / 4, "{}", run.kept);
    }
}
