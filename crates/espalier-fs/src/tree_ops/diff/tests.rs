use super::Change;
use crate::FileSystem;
use crate::model::types::{Caller, FileKind, NewNode, NodeId, RenameMode, XattrMode};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 12;
const STEPS: usize = 160;
const WORKSPACES: usize = 40;

/// However soon after a clone: what tells is the time of the change.
#[test]
fn a_file_that_was_written_right_after_a_clone_is_changed() {
    let (_, _, fs) = crate::test_support::empty();
    let caller = Caller::default();
    for n in 0..20 {
        let (name, clone) = (format!("a{n}"), format!("b{n}"));
        let dir = fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &caller).unwrap().node;
        let file = fs.mknod(dir, b"file", NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(file, 0, b"old", false).unwrap();
        let clone = fs.clone_tree(dir, NodeId::ROOT, clone.as_bytes(), &caller).unwrap().node;
        fs.write(file, 0, b"new", false).unwrap();
        let first = fs.diff_trees(&fs, clone, dir, &caller).unwrap().next().unwrap();
        assert!(first.is_some(), "round {n}");
    }
}

/// A tree as users see it: kind, mode and owner of every path, and of files size and times.
fn listed(fs: &FileSystem, dir: NodeId) -> BTreeMap<Vec<u8>, (FileKind, u32, u32, [i64; 3])> {
    let mut all = BTreeMap::new();
    fs.list_tree(dir, &mut |entry| {
        let attr = &entry.attr;
        let content = match attr.kind {
            FileKind::Directory => [0; 3],
            _ => [attr.size.cast_signed(), attr.mtime, attr.ctime],
        };
        all.insert(entry.path.to_vec(), (attr.kind, attr.mode, attr.uid, content));
        true
    })
    .unwrap();
    all
}

/// Random changes of trees in which most files have several names, inside one tree and across.
struct Trees {
    fs: std::sync::Arc<FileSystem>,
    random: u64,
    names: u64,
    /// Directories with clones of them.
    copies: Vec<[Vec<u8>; 2]>,
}

impl Trees {
    fn pick(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!("n{}", self.names).into_bytes()
    }

    /// All paths from the root on, of directories or of files.
    fn paths(&self, directories: bool) -> Vec<Vec<u8>> {
        let all = listed(&self.fs, NodeId::ROOT).into_iter();
        all.filter(|(_, found)| (found.0 == FileKind::Directory) == directories)
            .map(|(path, _)| path)
            .collect()
    }

    fn node(&self, path: &[u8]) -> NodeId {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.fold(NodeId::ROOT, |at, name| self.fs.lookup(at, name).unwrap().node)
    }

    fn parent<'a>(&self, path: &'a [u8]) -> (NodeId, &'a [u8]) {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (dir, name) = at.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
        (self.node(dir), name)
    }

    fn step(&mut self) {
        let (dirs, files) = (self.paths(true), self.paths(false));
        let dir = dirs[self.pick(dirs.len())].clone();
        let (caller, name, choice) = (Caller::default(), self.name(), self.pick(16));
        let at = self.node(&dir);
        if files.is_empty() || choice < 2 {
            self.fs.mknod(at, &name, NewNode::Regular, 0o644, &caller).unwrap();
            return;
        }
        let file = files[self.pick(files.len())].clone();
        match choice {
            2..=6 => drop(self.fs.link(self.node(&file), at, &name).unwrap()),
            7..=9 => drop(self.fs.write(self.node(&file), 0, &name, false).unwrap()),
            10 | 11 => {
                let (parent, name) = self.parent(&file);
                self.fs.unlink(parent, name).unwrap();
            }
            12 if dirs.len() < 12 => drop(self.fs.mkdir(at, &name, 0o755, &caller).unwrap()),
            13 if dirs.len() < 24 => {
                // Of a directory that is not around the new place.
                let source = dirs[self.pick(dirs.len())].clone();
                if !dir.starts_with(&source) {
                    self.fs.clone_tree(self.node(&source), at, &name, &caller).unwrap();
                    self.copies.push([source, [&dir, &b"/"[..], &name].concat()]);
                }
            }
            14 => self.fs.background_tick().unwrap(),
            _ if dirs.len() > 8 => {
                let (parent, name) = self.parent(&dir);
                self.fs.remove_tree(parent, name, &caller).unwrap();
            }
            _ => {}
        }
    }

    /// Compares two directories by listing both.
    #[track_caller]
    fn check(&self, old: &[u8], new: &[u8], seed: u64) {
        let (before, after) = (listed(&self.fs, self.node(old)), listed(&self.fs, self.node(new)));
        let mut expected = BTreeSet::new();
        for path in before.keys().chain(after.keys()) {
            let change = match (before.get(path), after.get(path)) {
                (None, _) => Change::Added,
                (_, None) => Change::Removed,
                (old, new) if old != new => Change::Changed,
                _ => continue,
            };
            expected.insert((path.clone(), format!("{change:?}")));
        }
        let mut diff =
            self.fs.diff_trees(&self.fs, self.node(old), self.node(new), &Caller::default()).unwrap();
        let mut found = BTreeSet::new();
        while let Some((change, path)) = diff.next().unwrap() {
            found.insert((path, format!("{change:?}")));
        }
        let show = |all: &BTreeSet<(Vec<u8>, String)>| {
            all.iter().map(|(path, change)| format!("{change} {}", path.escape_ascii())).collect::<Vec<_>>()
        };
        assert_eq!(
            show(&found),
            show(&expected),
            "seed {seed}: {} {}",
            old.escape_ascii(),
            new.escape_ascii()
        );
    }
}

#[test]
fn files_with_several_names_are_compared_as_two_lists_would_be() {
    for seed in 1..=SEEDS {
        let (_, _, fs) = crate::test_support::empty();
        let mut trees =
            Trees { fs, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), names: 0, copies: Vec::new() };
        for name in ["a", "b"] {
            trees.fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &Caller::default()).unwrap();
        }
        for _ in 0..STEPS {
            trees.step();
            let dirs = trees.paths(true);
            if dirs.len() < 2 {
                let name = trees.name();
                trees.fs.mkdir(NodeId::ROOT, &name, 0o755, &Caller::default()).unwrap();
                continue;
            }
            // What has much in common, if there is such.
            trees.copies.retain(|pair| pair.iter().all(|dir| dirs.contains(dir)));
            let [old, new] = match trees.copies.len() {
                0 => [0, 1].map(|_| dirs[trees.pick(dirs.len())].clone()),
                count => {
                    let at = trees.pick(count);
                    trees.copies[at].clone()
                }
            };
            trees.check(&old, &new, seed);
            trees.check(&new, &old, seed);
        }
    }
}

/// A tree of so many directories with a hundred files each; with hard links inside it, and to a
/// file outside.
fn unpacked(fs: &FileSystem, directories: usize, has_links: bool) -> NodeId {
    let caller = Caller::default();
    let top = fs.mkdir(NodeId::ROOT, b"original", 0o755, &caller).unwrap().node;
    for n_dir in 0..directories {
        let dir = fs.mkdir(top, format!("dir{n_dir:03}").as_bytes(), 0o755, &caller).unwrap().node;
        for n in 0..100 {
            let name = format!("a-file-{n:04}");
            fs.mknod(dir, name.as_bytes(), NewNode::Regular, 0o644, &caller).unwrap();
        }
        if has_links {
            let first = fs.lookup(dir, b"a-file-0000").unwrap().node;
            fs.link(first, dir, b"second").unwrap();
            if n_dir % 10 == 0 {
                fs.link(first, NodeId::ROOT, format!("outside{n_dir}").as_bytes()).unwrap();
            }
        }
    }
    top
}

/// Makes a workspace as the commands do: a tree that is cloned as its base, and moved twice.
fn workspace(fs: &FileSystem, original: NodeId, number: usize) -> [NodeId; 2] {
    let caller = Caller::default();
    let home = fs.lookup(NodeId::ROOT, b".home").unwrap().node;
    let (new, id) = (format!("new-{number:04}"), format!("{number:04}"));
    let dir = fs.mkdir(home, new.as_bytes(), 0o700, &caller).unwrap().node;
    let tree = fs.clone_tree(original, dir, b"tree", &caller).unwrap().node;
    let base = fs.clone_tree(tree, dir, b"base", &caller).unwrap().node;
    fs.setxattr(tree, b"user.number", id.as_bytes(), XattrMode::Set, false).unwrap();
    let mode = RenameMode::NoReplace;
    fs.rename(home, new.as_bytes(), home, id.as_bytes(), mode).unwrap();
    fs.rename(dir, b"tree", NodeId::ROOT, id.as_bytes(), mode).unwrap();
    [base, tree]
}

/// Compares, and gives the number of differences. Few keys more are looked up. Of parts that only
/// one side sees few are passed over: those at the borders, and one for each change.
#[track_caller]
fn compared(fs: &FileSystem, [base, tree]: [NodeId; 2], what: &str) -> u64 {
    let mut diff = fs.diff_trees(fs, base, tree, &Caller::default()).unwrap();
    let mut found = 0;
    while diff.next().unwrap().is_some() {
        found += 1;
    }
    let (keys, entries) = (diff.keys(), diff.entries());
    println!("{what}: {found} differences, {keys} keys, {entries} entries, {} nodes", diff.nodes());
    assert!(keys <= found + 64, "{what}: {keys} keys for {found} differences");
    assert!(entries <= 1500 * (found + 1), "{what}: {entries} entries for {found} differences");
    found
}

/// Also where the parts at the borders were written anew, as the entries beside them changed.
#[test]
fn a_workspace_is_compared_without_a_look_at_what_it_shares() {
    for has_links in [false, true] {
        let (store, _, fs) = crate::test_support::empty();
        fs.mkdir(NodeId::ROOT, b".home", 0o700, &Caller::default()).unwrap();
        let original = unpacked(&fs, 50, has_links);
        let settle = || while store.step().unwrap() {};
        settle();
        let made: Vec<_> = (0..WORKSPACES)
            .map(|number| {
                let made = workspace(&fs, original, number);
                settle();
                made
            })
            .collect();
        for (number, pair) in made.iter().enumerate() {
            assert_eq!(compared(&fs, *pair, &format!("links {has_links}, {number}")), 0);
        }
        store.checkpoint().unwrap();
        settle();
        for (number, [base, tree]) in made.iter().enumerate() {
            let what = format!("links {has_links}, {number}, stored");
            assert_eq!(compared(&fs, [*base, *tree], &what), 0);
            if number % 8 > 0 {
                continue;
            }
            for n in 0..5 {
                let dir = fs.lookup(*tree, format!("dir{:03}", n * 9).as_bytes()).unwrap().node;
                let file = fs.lookup(dir, b"a-file-0050").unwrap().node;
                fs.write(file, 0, b"changed", false).unwrap();
            }
            assert_eq!(compared(&fs, [*base, *tree], &format!("{what}, 5 changes")), 5);
            settle();
            assert_eq!(compared(&fs, [*base, *tree], &format!("{what}, 5 changes, settled")), 5);
        }
    }
}
