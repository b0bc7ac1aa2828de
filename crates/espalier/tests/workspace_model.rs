//! Random workspaces against a model with real copies: edits on both sides, checkpoints, applies,
//! promotions, undo, discards, remounts. The model has a three-way rule of its own, which knows
//! trees as maps from paths to what is there.
//!
//! `ESPALIER_SEED=n` runs that seed alone, `ESPALIER_SEEDS=n` the first n.

mod common;

use common::{Place, Random};
use espalier_workspace::{
    Apply, ApplyOutcome, Create, Discard, Mounted, Prefer, Processes, Registry, Workspace,
};
use rustix::fs::Uid;
use rustix::thread::set_thread_res_uid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// An ordinary user.
const USER: u32 = 4321;
/// Steps of a run.
const STEPS: usize = 60;
/// Workspaces at a time.
const MAX_WORKSPACES: usize = 3;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    File(Vec<u8>, u32),
    Directory(u32),
    Link(PathBuf),
}

type Tree = BTreeMap<PathBuf, Thing>;

/// What the model knows of a workspace.
struct Known {
    base: Tree,
    tree: Tree,
    checkpoints: Vec<Tree>,
}

/// Reads a tree, without its top.
fn read(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(top.join(&below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            let full = top.join(&path);
            let metadata = full.symlink_metadata().unwrap();
            let mode = metadata.mode() & 0o7777;
            let thing = if metadata.is_dir() {
                waiting.push(path.clone());
                Thing::Directory(mode)
            } else if metadata.is_symlink() {
                Thing::Link(fs::read_link(&full).unwrap())
            } else {
                Thing::File(fs::read(&full).unwrap(), mode)
            };
            tree.insert(path, thing);
        }
    }
    tree
}

/// A random edit of a tree on disk.
fn edit(top: &Path, random: &mut Random) {
    let tree = read(top);
    let paths: Vec<&PathBuf> = tree.keys().collect();
    let any = |random: &mut Random| paths.get(random.below(paths.len().max(1) as u64) as usize).copied();
    let parents: Vec<PathBuf> = std::iter::once(PathBuf::new())
        .chain(tree.iter().filter(|(_, thing)| matches!(thing, Thing::Directory(_))).map(|(p, _)| p.clone()))
        .collect();
    let parent = parents[random.below(parents.len() as u64) as usize].clone();
    let new = top.join(&parent).join(format!("n{}", random.below(12)));
    let there = new.symlink_metadata().is_ok();
    match (random.below(10), any(random)) {
        (0..=2, _) if !there => {
            let length = [0, 5, 4096, 20_000, 300_000][random.below(5) as usize];
            fs::write(&new, random.bytes(length)).unwrap();
        }
        (3, _) if !there => fs::create_dir(&new).unwrap(),
        (4, _) if !there => symlink(format!("to{}", random.below(3)), &new).unwrap(),
        (5, Some(path)) => {
            let path = top.join(path);
            let is_dir = path.symlink_metadata().unwrap().is_dir();
            if is_dir { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        (6, Some(path)) if !there && !parent.starts_with(path) => fs::rename(top.join(path), &new).unwrap(),
        (7, Some(path)) if !top.join(path).symlink_metadata().unwrap().is_symlink() => {
            let mode = [0o700, 0o755, 0o711, 0o750][random.below(4) as usize];
            fs::set_permissions(top.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        (_, Some(path)) if matches!(tree[path], Thing::File(..)) => {
            fs::write(top.join(path), random.bytes(1 + random.0 as usize % 9)).unwrap();
        }
        _ => {}
    }
}

/// The merge of two trees that come from `base`, or the paths on which they contradict each other.
/// Unlike the library, it makes the result of every path first, and asks then whether it is a tree.
fn merge(base: &Tree, ours: &Tree, theirs: &Tree) -> Result<Tree, BTreeSet<PathBuf>> {
    let paths: BTreeSet<&PathBuf> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    let (mut merged, mut clashes) = (Tree::new(), BTreeSet::new());
    for path in paths {
        match merge_thing(base.get(path), ours.get(path), theirs.get(path)) {
            Ok(Some(thing)) => drop(merged.insert(path.clone(), thing)),
            Ok(None) => {}
            Err(()) => drop(clashes.insert(path.clone())),
        }
    }
    for path in merged.keys() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let is_fine = parent.is_none_or(|parent| {
            clashes.contains(parent) || matches!(merged.get(parent), Some(Thing::Directory(_)))
        });
        if !is_fine {
            clashes.insert(path.clone());
        }
    }
    if clashes.is_empty() { Ok(merged) } else { Err(clashes) }
}

fn merge_thing(
    base: Option<&Thing>,
    ours: Option<&Thing>,
    theirs: Option<&Thing>,
) -> Result<Option<Thing>, ()> {
    if ours == theirs || theirs == base {
        return Ok(ours.cloned());
    }
    if ours == base {
        return Ok(theirs.cloned());
    }
    let one = |base: u32, ours: u32, theirs: u32| match () {
        () if ours == theirs || theirs == base => Ok(ours),
        () if ours == base => Ok(theirs),
        () => Err(()),
    };
    match (base, ours, theirs) {
        (Some(Thing::File(base, old)), Some(Thing::File(ours, mode)), Some(Thing::File(theirs, other))) => {
            let content = match () {
                () if ours == theirs || theirs == base => ours,
                () if ours == base => theirs,
                () => return Err(()),
            };
            Ok(Some(Thing::File(content.clone(), one(*old, *mode, *other)?)))
        }
        (Some(Thing::Directory(old)), Some(Thing::Directory(mode)), Some(Thing::Directory(other))) => {
            Ok(Some(Thing::Directory(one(*old, *mode, *other)?)))
        }
        _ => Err(()),
    }
}

/// The thread of a test acts as an ordinary user on the file system as long as this lives.
struct AsUser;

impl AsUser {
    fn begin() -> Self {
        set_user(USER);
        Self
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        set_user(0);
    }
}

/// Of this thread alone; the saved user stays root, so there is a way back.
fn set_user(user: u32) {
    let (root, user) = (Uid::from_raw(0), Uid::from_raw(user));
    set_thread_res_uid(user, user, root).unwrap();
}

struct Run {
    place: Place,
    /// The directory with everything, of the user.
    top: PathBuf,
    user: Option<u32>,
    seed: u64,
    random: Random,
    original: Tree,
    known: BTreeMap<String, Known>,
    made: usize,
    applied: usize,
    conflicts: usize,
}

impl Run {
    fn new(seed: u64, user: Option<u32>) -> Self {
        let place = Place::mounted("512M");
        fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let top = place.dir.join("top");
        fs::create_dir(&top).unwrap();
        std::os::unix::fs::chown(&top, user, user).unwrap();
        let _acting = user.map(|_| AsUser::begin());
        let original = top.join("original");
        fs::create_dir(&original).unwrap();
        let mut random = Random(seed + 1);
        (0..25).for_each(|_| edit(&original, &mut random));
        let original = read(&original);
        let (known, made, applied, conflicts) = (BTreeMap::new(), 0, 0, 0);
        Self { place, top, user, seed, random, original, known, made, applied, conflicts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    fn find(&self, name: &str) -> Workspace {
        let registry = Registry::around(&self.top).unwrap();
        registry.find(name.as_ref()).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
    }

    fn create(&mut self) {
        self.made += 1;
        let name = format!("w{}", self.made);
        let create = Create {
            quota: None,
            name: &name,
            from: &self.path("original"),
            place: None,
            time_to_live: None,
            prepare_git: true,
            hook: None,
            process: None,
        };
        create.run(&Mounted).unwrap();
        let tree = self.original.clone();
        self.known.insert(name, Known { base: tree.clone(), tree, checkpoints: Vec::new() });
    }

    fn apply(&mut self, name: &str) {
        let outcome = Apply::default().run(&Mounted, &mut self.find(name)).unwrap();
        let known = self.known.get_mut(name).unwrap();
        let expected = merge(&known.base, &self.original, &known.tree);
        match (outcome, expected) {
            (ApplyOutcome::Applied(_), Ok(merged)) => {
                self.original = merged;
                known.base = known.tree.clone();
                self.applied += 1;
            }
            (ApplyOutcome::Conflicts(found), expected) => {
                // Moves that contradict each other are told of too, though every path agrees.
                let renames = found.iter().all(|c| c.kind == espalier_workspace::ConflictKind::Rename);
                assert!(expected.is_err() || renames, "seed {}: {found:?}", self.seed);
                self.conflicts += 1;
                self.settle(name);
            }
            (ApplyOutcome::Applied(done), Err(clashes)) => {
                panic!("seed {}: applied {done:?} in spite of {clashes:?}", self.seed)
            }
        }
    }

    /// Sides with the workspace, after which what it changed is in the original as in it.
    fn settle(&mut self, name: &str) {
        let apply = Apply { prefer: Prefer::Workspace, ..Apply::default() };
        let outcome = apply.run(&Mounted, &mut self.find(name)).unwrap();
        assert!(matches!(outcome, ApplyOutcome::Applied(_)), "seed {}: {outcome:?}", self.seed);
        let known = self.known.get_mut(name).unwrap();
        let now = read(&self.top.join("original"));
        let paths: BTreeSet<&PathBuf> = known.base.keys().chain(known.tree.keys()).collect();
        for path in paths {
            if known.base.get(path) != known.tree.get(path) {
                let (found, wanted) = (now.get(path), known.tree.get(path));
                let mixed = matches!((found, wanted), (Some(Thing::File(..)), Some(Thing::File(..))))
                    || matches!((found, wanted), (Some(Thing::Directory(_)), Some(Thing::Directory(_))));
                assert!(found == wanted || mixed, "seed {}: {}", self.seed, path.display());
            }
        }
        known.base = known.tree.clone();
        self.original = now;
    }

    fn undo(&mut self, name: &str) {
        let count = self.known[name].checkpoints.len() as u64;
        if count == 0 {
            return;
        }
        let number = 1 + self.random.below(count);
        self.find(name).undo(&Mounted, Some(number), &Processes::default(), false).unwrap();
        let known = self.known.get_mut(name).unwrap();
        known.checkpoints.push(known.tree.clone());
        known.tree = known.checkpoints[number as usize - 1].clone();
    }

    fn step(&mut self) {
        let what = self.random.below(20);
        if what == 11 {
            self.place.remount();
        } else {
            let _acting = self.user.map(|_| AsUser::begin());
            self.act(what);
        }
    }

    fn act(&mut self, what: u64) {
        let names: Vec<String> = self.known.keys().cloned().collect();
        if names.is_empty() {
            return self.create();
        }
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        match what {
            0..=1 if names.len() < MAX_WORKSPACES => self.create(),
            2..=3 => {
                self.find(&name).checkpoint(&Mounted, "").unwrap();
                let known = self.known.get_mut(&name).unwrap();
                known.checkpoints.push(known.tree.clone());
            }
            4..=5 => self.undo(&name),
            6..=8 => self.apply(&name),
            9 => {
                self.find(&name).promote(&Mounted, &Processes::default(), false).unwrap();
                let known = self.known.get_mut(&name).unwrap();
                std::mem::swap(&mut known.tree, &mut self.original);
            }
            10 => {
                let has_changes = self.known[&name].base != self.known[&name].tree;
                let discard = Discard { force: false };
                let done = discard.run(&Mounted, &mut self.find(&name), &Processes::default());
                assert_eq!(done.is_err(), has_changes, "seed {}: {done:?}", self.seed);
                if has_changes {
                    Discard { force: true }
                        .run(&Mounted, &mut self.find(&name), &Processes::default())
                        .unwrap();
                }
                self.known.remove(&name);
            }
            12..=14 => {
                edit(&self.path("original"), &mut self.random);
                self.original = read(&self.path("original"));
            }
            _ => {
                (0..3).for_each(|_| edit(&self.path(&name), &mut self.random));
                self.known.get_mut(&name).unwrap().tree = read(&self.path(&name));
            }
        }
    }

    fn compare(&self, step: usize) {
        let _acting = self.user.map(|_| AsUser::begin());
        assert_eq!(read(&self.path("original")), self.original, "seed {}, step {step}", self.seed);
        let registry = Registry::around(&self.top).unwrap();
        let names: Vec<&str> = registry.workspaces().iter().map(|w| &*w.record().name).collect();
        let expected: Vec<&str> = self.known.keys().map(|name| &**name).collect();
        assert_eq!(names, expected, "seed {}, step {step}", self.seed);
        for workspace in registry.workspaces() {
            let known = &self.known[&workspace.record().name];
            let name = &workspace.record().name;
            assert_eq!(read(&workspace.place()), known.tree, "seed {}, step {step}: {name}", self.seed);
            let is_changed = known.base != known.tree;
            let differences = workspace.differences(&Mounted).unwrap();
            assert_eq!(
                !differences.is_empty(),
                is_changed,
                "seed {}, step {step}: {name}: {differences:?}",
                self.seed
            );
        }
    }
}

fn run_all(count: u64, user: Option<u32>) -> (usize, usize) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("ESPALIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESPALIER_SEEDS").unwrap_or(count),
    };
    let (mut applied, mut conflicts) = (0, 0);
    for seed in seeds {
        let mut run = Run::new(seed, user);
        for step in 0..STEPS {
            run.step();
            run.compare(step);
        }
        run.place.remount();
        run.compare(STEPS);
        applied += run.applied;
        conflicts += run.conflicts;
    }
    (applied, conflicts)
}

#[test]
fn random_workspaces_are_as_real_copies_merged_by_another_rule() {
    let (applied, conflicts) = run_all(8, None);
    let is_whole = ["ESPALIER_SEED", "ESPALIER_SEEDS"].iter().all(|name| std::env::var_os(name).is_none());
    assert!(!is_whole || applied > 20 && conflicts > 5, "{applied} applied, {conflicts} conflicts");
}

#[test]
fn those_of_an_ordinary_user_are_too() {
    let (applied, _) = run_all(2, Some(USER));
    assert!(applied > 0);
}
