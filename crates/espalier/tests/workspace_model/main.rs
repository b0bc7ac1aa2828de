//! Random workspaces against a model with real copies: edits on both sides, checkpoints, applies,
//! promotions, undo, discards, remounts, and files with names in several places. The model has a
//! three-way rule of its own, which knows trees as maps from paths to what is there.
//!
//! `ESPALIER_SEED=n` runs that seed alone, `ESPALIER_SEEDS=n` the first n.

#[path = "../common/mod.rs"]
mod common;
mod tree;

use common::{Place, Random};
use espalier_workspace::{
    Apply, ApplyOutcome, Create, Discard, Mounted, Prefer, Processes, Registry, Workspace,
};
use rustix::fs::Uid;
use rustix::thread::set_thread_res_uid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use tree::{Thing, Tree, edit, merge, read};

/// An ordinary user.
const USER: u32 = 4321;
/// Steps of a run.
const STEPS: usize = 60;
/// Workspaces at a time.
const MAX_WORKSPACES: usize = 3;
/// A directory with further names of files.
const OUTSIDE: &str = "outside";

/// What the model knows of a workspace.
struct Known {
    base: Tree,
    tree: Tree,
    checkpoints: Vec<Tree>,
}

impl Known {
    /// Which names share a file is no change by itself.
    fn is_changed(&self) -> bool {
        self.base.things != self.tree.things
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
    /// Names that applies brought and that are names of one file with others.
    linked: usize,
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
        fs::create_dir(top.join(OUTSIDE)).unwrap();
        let mut random = Random(seed + 1);
        (0..25).for_each(|_| edit(&original, &top.join(OUTSIDE), &mut random));
        let original = read(&original);
        let (known, made, applied, conflicts, linked) = (BTreeMap::new(), 0, 0, 0, 0);
        Self { place, top, user, seed, random, original, known, made, applied, conflicts, linked }
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
            around: &self.top,
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
            (ApplyOutcome::Applied(done), Ok(merged)) => {
                self.linked += done.iter().filter(|one| merged.has_names(&one.path)).count();
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
        let (base, tree) = (&known.base.things, &known.tree.things);
        let paths: BTreeSet<&PathBuf> = base.keys().chain(tree.keys()).collect();
        for path in paths {
            if base.get(path) != tree.get(path) {
                let (found, wanted) = (now.things.get(path), tree.get(path));
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

    /// Writes a file by a name outside: the tree that has another name of it changes, and no other.
    fn write_outside(&mut self) {
        let names = fs::read_dir(self.path(OUTSIDE)).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<PathBuf> = names.collect();
        names.sort();
        let Some(file) = names.get(self.random.below(names.len().max(1) as u64) as usize) else { return };
        let number = file.metadata().unwrap().ino();
        fs::write(file, self.random.bytes(1 + self.random.0 as usize % 9)).unwrap();
        if tree::has_number(&self.path("original"), number) {
            self.original = read(&self.path("original"));
        }
        for (name, known) in &mut self.known {
            if tree::has_number(&self.top.join(name), number) {
                known.tree = read(&self.top.join(name));
            }
        }
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
                let has_changes = self.known[&name].is_changed();
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
                edit(&self.path("original"), &self.path(OUTSIDE), &mut self.random);
                self.original = read(&self.path("original"));
            }
            15..=16 => self.write_outside(),
            _ => {
                let (top, outside) = (self.path(&name), self.path(OUTSIDE));
                (0..3).for_each(|_| edit(&top, &outside, &mut self.random));
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
            let is_changed = known.is_changed();
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

fn run_all(count: u64, user: Option<u32>) -> (usize, usize, usize) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("ESPALIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESPALIER_SEEDS").unwrap_or(count),
    };
    let (mut applied, mut conflicts, mut linked) = (0, 0, 0);
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
        linked += run.linked;
    }
    (applied, conflicts, linked)
}

#[test]
fn random_workspaces_are_as_real_copies_merged_by_another_rule() {
    let (applied, conflicts, linked) = run_all(8, None);
    let is_whole = ["ESPALIER_SEED", "ESPALIER_SEEDS"].iter().all(|name| std::env::var_os(name).is_none());
    assert!(
        !is_whole || applied > 20 && conflicts > 5 && linked > 5,
        "{applied} applied, {conflicts} conflicts, {linked} names"
    );
}

#[test]
fn those_of_an_ordinary_user_are_too() {
    let (applied, ..) = run_all(2, Some(USER));
    assert!(applied > 0);
}
