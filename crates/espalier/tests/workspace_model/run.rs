//! A run: random commands and edits on a mount, each compared with the model.

use crate::common::{Place, Random};
use crate::state::{Act, End, Known, State};
use crate::tree::{Rule, Thing, Tree, edit, has_number, merge, new_text, read};
use espalier_workspace::{
    Apply, ApplyOutcome, Collect, Conflict, ConflictKind, Create, Discard, Mounted, Prefer, Processes,
    Registry, Workspace,
};
use rustix::fs::Uid;
use rustix::thread::set_thread_res_uid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Sum;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// An ordinary user.
pub(crate) const USER: u32 = 4321;
/// Workspaces at a time.
const MAX_WORKSPACES: usize = 3;
/// Texts that the original has in the beginning.
const TEXTS: usize = 3;
/// The directory that workspaces are made of.
const ORIGINAL: &str = "original";
/// A directory with further names of files.
const OUTSIDE: &str = "outside";

/// The thread of a test acts as an ordinary user on the file system as long as this lives.
pub(crate) struct AsUser;

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

/// The mount of a place is open to ordinary users.
pub(crate) fn let_users_in(place: &Place) {
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// How often what happened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) applied: usize,
    /// Those of some paths that changed something.
    pub(crate) in_part: usize,
    /// Texts that were merged.
    pub(crate) merged: usize,
    /// Workspaces that `gc` removed.
    pub(crate) collected: usize,
    pub(crate) conflicts: usize,
    /// Names that applies brought and that are names of one file with others.
    pub(crate) linked: usize,
    /// Crashes.
    pub(crate) crashes: usize,
    /// Those after which a command had been done in part, as it may be.
    pub(crate) halfway: usize,
    /// Those after which something that had been begun was not there.
    pub(crate) lost: usize,
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            applied: sum.applied + one.applied,
            in_part: sum.in_part + one.in_part,
            merged: sum.merged + one.merged,
            collected: sum.collected + one.collected,
            conflicts: sum.conflicts + one.conflicts,
            linked: sum.linked + one.linked,
            crashes: sum.crashes + one.crashes,
            halfway: sum.halfway + one.halfway,
            lost: sum.lost + one.lost,
        })
    }
}

/// What is done next.
pub(crate) enum Choice {
    Command(Act),
    EditOriginal,
    EditWorkspace(String),
    WriteOutside,
    /// For the caller: unmount and mount, a crash, or the like.
    Disturb,
}

pub(crate) struct Run {
    /// The directory with everything, of the user.
    pub(crate) top: PathBuf,
    /// The root of the mount.
    mount: PathBuf,
    pub(crate) user: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) state: State,
    /// What was passed since the last sync, oldest first: a crash leaves one of these. The last is
    /// the present one.
    pub(crate) history: Vec<State>,
    made: usize,
    pub(crate) counts: Counts,
}

impl Run {
    /// A run on a new file system, mounted at `mount`, with an original of some files.
    pub(crate) fn new(mount: &Path, seed: u64, user: Option<u32>) -> Self {
        let top = mount.join("top");
        fs::create_dir(&top).unwrap();
        std::os::unix::fs::chown(&top, user, user).unwrap();
        let empty = Rc::new(Tree::default());
        let state = State { original: empty.clone(), outside: empty, known: BTreeMap::new() };
        let mut this = Self {
            top,
            mount: mount.to_owned(),
            user,
            seed,
            random: Random(seed + 1),
            history: vec![state.clone()],
            state,
            made: 0,
            counts: Counts::default(),
        };
        let acting = this.act_as_user();
        fs::create_dir(this.original()).unwrap();
        fs::create_dir(this.outside()).unwrap();
        for number in 0..TEXTS {
            fs::write(this.original().join(format!("n{number}")), new_text()).unwrap();
        }
        (0..25).for_each(|_| this.edit_original());
        drop(acting);
        this.sync();
        this
    }

    pub(crate) fn original(&self) -> PathBuf {
        self.top.join(ORIGINAL)
    }

    fn outside(&self) -> PathBuf {
        self.top.join(OUTSIDE)
    }

    /// Until the end of what it returns this thread is the user's.
    pub(crate) fn act_as_user(&self) -> Option<AsUser> {
        self.user.map(|_| AsUser::begin())
    }

    fn find(&self, name: &str) -> Workspace {
        let registry = Registry::around(&self.top).unwrap();
        registry.find(name.as_ref()).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
    }

    /// Notes what was passed; the last state is the present one.
    pub(crate) fn pass(&mut self, states: Vec<State>) {
        self.history.extend(states);
        self.state = self.history.last().expect("it is never empty").clone();
    }

    /// Makes everything durable.
    pub(crate) fn sync(&mut self) {
        fs::File::open(&self.mount).unwrap().sync_all().unwrap();
        self.history = vec![self.state.clone()];
    }

    /// Forgets what was passed, where no crash may come.
    pub(crate) fn forget(&mut self) {
        self.history = vec![self.state.clone()];
    }

    /// What to do next, at random.
    pub(crate) fn choose(&mut self) -> Choice {
        let what = self.random.below(24);
        if what == 11 {
            return Choice::Disturb;
        }
        let names: Vec<String> = self.state.known.keys().cloned().collect();
        if names.is_empty() || what <= 1 && names.len() < MAX_WORKSPACES {
            self.made += 1;
            let end = [End::Never, End::Never, End::Expired, End::Process][self.random.below(4) as usize];
            return Choice::Command(Act::Create(format!("w{}", self.made), end));
        }
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        let count = self.state.known[&name].checkpoints.len() as u64;
        match what {
            2..=3 => Choice::Command(Act::Checkpoint(name)),
            4..=5 if count > 0 => Choice::Command(Act::Undo(name, 1 + self.random.below(count))),
            6..=8 => {
                let merges_texts = what >= 7;
                Choice::Command(Act::Apply(name, Rule { paths: Vec::new(), merges_texts }))
            }
            20..=22 => {
                let rule = Rule { paths: self.choose_paths(&name, what == 22), merges_texts: what >= 21 };
                Choice::Command(Act::Apply(name, rule))
            }
            23 => Choice::Command(Act::Collect),
            9 => Choice::Command(Act::Promote(name)),
            10 => Choice::Command(Act::Discard(name)),
            12..=14 => Choice::EditOriginal,
            15..=16 => Choice::WriteOutside,
            _ => Choice::EditWorkspace(name),
        }
    }

    /// Paths of a workspace, most of them with changes at or below them; if that can be, with other
    /// ones in the original.
    fn choose_paths(&mut self, name: &str, on_both_sides: bool) -> Vec<PathBuf> {
        let known = &self.state.known[name];
        let (base, tree) = (&known.base.things, &known.tree.things);
        let all: BTreeSet<&PathBuf> = base.keys().chain(tree.keys()).collect();
        let mut changed: Vec<&PathBuf> =
            all.into_iter().filter(|path| base.get(*path) != tree.get(*path)).collect();
        let ours = &self.state.original.things;
        let is_clash = |path: &&PathBuf| ours.contains_key(*path) && ours.get(*path) != base.get(*path);
        if on_both_sides && changed.iter().any(is_clash) {
            changed.retain(is_clash);
        }
        let any = |random: &mut Random| match changed.get(random.below(changed.len().max(1) as u64) as usize)
        {
            None => PathBuf::from("n0"),
            Some(path) => match path.parent().filter(|above| !above.as_os_str().is_empty()) {
                Some(above) if random.below(3) == 0 => above.to_owned(),
                _ => (*path).clone(),
            },
        };
        (0..=self.random.below(2)).map(|_| any(&mut self.random)).collect()
    }

    /// Does what was chosen, as the user; nothing for what is for the caller.
    pub(crate) fn carry_out(&mut self, choice: &Choice) {
        let _acting = self.act_as_user();
        match choice {
            Choice::Command(act) => self.command(act),
            Choice::EditOriginal => self.edit_original(),
            Choice::EditWorkspace(name) => (0..3).for_each(|_| self.edit_workspace(name)),
            Choice::WriteOutside => self.write_outside(),
            Choice::Disturb => {}
        }
    }

    /// Carries a command out by the library.
    fn command(&mut self, act: &Act) {
        match act {
            Act::Create(name, end) => self.create(name, *end),
            Act::Checkpoint(name) => drop(self.find(name).checkpoint(&Mounted, "").unwrap()),
            Act::Undo(name, number) => {
                self.find(name).undo(&Mounted, Some(*number), &Processes::default(), false).unwrap();
            }
            Act::Apply(name, rule) => return self.apply(name, rule),
            Act::Promote(name) => {
                self.find(name).promote(&Mounted, &Processes::default(), false).unwrap();
            }
            Act::Discard(name) => self.discard(name),
            Act::Collect => self.collect(),
        }
        self.pass(self.state.after(act));
    }

    fn create(&self, name: &str, end: End) {
        // It ends when its input does.
        let begin = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = (end == End::Process).then(begin);
        let create = Create {
            quota: None,
            name,
            from: &self.original(),
            around: &self.top,
            place: None,
            time_to_live: (end == End::Expired).then_some(Duration::ZERO),
            prepare_git: true,
            hook: None,
            process: process.as_ref().map(|process| process.id().cast_signed()),
        };
        create.run(&Mounted).unwrap();
        if let Some(mut process) = process {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
    }

    fn collect(&mut self) {
        let mut registry = Registry::around(&self.top).unwrap();
        let gone = registry.collect(&Mounted, &Processes::default(), Collect::default()).unwrap();
        assert!(gone.iter().all(|one| one.kept.is_none()), "seed {}: {gone:?}", self.seed);
        self.counts.collected += gone.len();
    }

    fn discard(&self, name: &str) {
        let has_changes = self.state.known[name].is_unapplied();
        let discard = Discard { force: false };
        let done = discard.run(&Mounted, &mut self.find(name), &Processes::default());
        assert_eq!(done.is_err(), has_changes, "seed {}: {done:?}", self.seed);
        if has_changes {
            let discard = Discard { force: true };
            discard.run(&Mounted, &mut self.find(name), &Processes::default()).unwrap();
        }
    }

    fn apply(&mut self, name: &str, rule: &Rule) {
        let apply = Apply { paths: &rule.paths, merge: rule.merges_texts, ..Apply::default() };
        let outcome = apply.run(&Mounted, &mut self.find(name)).unwrap();
        let known = &self.state.known[name];
        let expected = merge(&known.base, &self.state.original, &known.tree, rule);
        match (outcome, expected) {
            (ApplyOutcome::Applied(done), Ok(merged)) => {
                self.counts.linked += done.iter().filter(|one| merged.has_names(&one.path)).count();
                self.counts.merged += done.iter().filter(|one| one.merged).count();
                match rule.paths.is_empty() {
                    true => self.counts.applied += 1,
                    false => self.counts.in_part += usize::from(!done.is_empty()),
                }
                self.pass(self.state.after(&Act::Apply(name.to_owned(), rule.clone())));
            }
            (ApplyOutcome::Conflicts(found), expected) => {
                // Moves that contradict each other are told of too, though every path agrees.
                let of_renames = |conflict: &Conflict| conflict.kind == ConflictKind::Rename;
                let agrees = expected.is_ok() && !found.iter().all(of_renames);
                assert!(!agrees, "seed {}: {found:?}", self.seed);
                self.counts.conflicts += 1;
                if rule.paths.is_empty() {
                    self.settle(name);
                }
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
        let now = read(&self.original());
        let known = &self.state.known[name];
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
        let mut applied = self.state.clone();
        applied.original = Rc::new(now);
        let mut done = applied.clone();
        let known = done.known.get_mut(name).expect("it is there");
        known.base = known.tree.clone();
        known.has_loose_base = false;
        known.set_aside.clear();
        self.pass(vec![applied, done]);
    }

    fn edit_original(&mut self) {
        self.edit(None);
    }

    fn edit_workspace(&mut self, name: &str) {
        self.edit(Some(name));
    }

    /// Edits a workspace, or the original, and notes what every call leaves.
    fn edit(&mut self, name: Option<&str>) {
        let (top, outside) = (name.map_or(self.original(), |name| self.top.join(name)), self.outside());
        let (mut states, mut state) = (Vec::new(), self.state.clone());
        edit(&top, &outside, &mut self.random, &mut || {
            let tree = Rc::new(read(&top));
            match name {
                None => state.original = tree,
                Some(name) => state.known.get_mut(name).expect("it is there").tree = tree,
            }
            state.outside = Rc::new(read(&outside));
            states.push(state.clone());
        });
        self.pass(states);
    }

    /// Writes a file by a name outside: the tree that has another name of it changes, and no other.
    fn write_outside(&mut self) {
        let names = fs::read_dir(self.outside()).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<PathBuf> = names.collect();
        names.sort();
        let Some(file) = names.get(self.random.below(names.len().max(1) as u64) as usize) else { return };
        let number = file.metadata().unwrap().ino();
        let bytes = self.random.bytes(1 + self.random.0 as usize % 9);
        let mut states = Vec::new();
        let (top, outside, before) = (self.top.clone(), self.outside(), self.state.clone());
        crate::tree::put(file, &bytes, &mut || {
            let mut state = before.clone();
            if has_number(&top.join(ORIGINAL), number) {
                state.original = Rc::new(read(&top.join(ORIGINAL)));
            }
            for (name, known) in &mut state.known {
                if has_number(&top.join(name), number) {
                    known.tree = Rc::new(read(&top.join(name)));
                }
            }
            state.outside = Rc::new(read(&outside));
            states.push(state);
        });
        self.pass(states);
    }

    /// Everything as it is found on the mount.
    pub(crate) fn look(&self) -> State {
        let _acting = self.act_as_user();
        let registry = Registry::around(&self.top).unwrap();
        let known = registry.workspaces().iter().map(|workspace| {
            let record = workspace.record();
            let data = self.home().join(&record.id);
            let checkpoint = |number: u64| Rc::new(read(&data.join(format!("checkpoint-{number}"))));
            let known = Known {
                base: Rc::new(read(&data.join("base"))),
                has_loose_base: false,
                end: match (record.expires, record.process) {
                    (Some(_), _) => End::Expired,
                    (None, Some(_)) => End::Process,
                    (None, None) => End::Never,
                },
                tree: Rc::new(read(&workspace.place())),
                checkpoints: record.checkpoints.iter().map(|kept| checkpoint(kept.number)).collect(),
                set_aside: {
                    let set_aside = record.checkpoints.iter().filter(|kept| kept.set_aside);
                    set_aside.map(|kept| kept.number).collect()
                },
            };
            (record.name.clone(), known)
        });
        State {
            known: known.collect(),
            original: Rc::new(read(&self.original())),
            outside: Rc::new(read(&self.outside())),
        }
    }

    /// Where the data about the workspaces lies.
    pub(crate) fn home(&self) -> PathBuf {
        match self.user {
            None => self.mount.join(".espalier-0"),
            Some(user) => self.top.join(format!(".espalier-{user}")),
        }
    }

    /// Everything is as the model has it.
    pub(crate) fn compare(&self, step: usize) {
        let found = self.look();
        let differences = found.differences(&self.state);
        assert!(found == self.state, "seed {}, step {step}: {differences:#?}", self.seed);
        let _acting = self.act_as_user();
        for workspace in Registry::around(&self.top).unwrap().workspaces() {
            let name = &workspace.record().name;
            let differences = workspace.differences(&Mounted).unwrap();
            let is_changed = self.state.known[name].is_changed();
            let context = format!("seed {}, step {step}: {name}: {differences:?}", self.seed);
            assert_eq!(!differences.is_empty(), is_changed, "{context}");
        }
    }

    /// Completes what the crash interrupted, as each command does first that looks at a workspace.
    fn tidy(&self) {
        let _acting = self.act_as_user();
        for known in Registry::around(&self.top).unwrap().workspaces() {
            let mut workspace = Registry::locate(&self.top, known.place().as_os_str()).unwrap();
            workspace.tidy(&Mounted).unwrap();
        }
    }

    /// Finds which of the states that a crash may leave it has left, the last if several are alike,
    /// and goes on from there.
    pub(crate) fn recover(&mut self, allowed: &[State], what: &str) -> usize {
        self.tidy();
        let found = self.look();
        let Some(which) = allowed.iter().rposition(|state| *state == found) else {
            let last = allowed.last().map(|state| found.differences(state));
            let first = allowed.first().map(|state| found.differences(state));
            panic!(
                "seed {}, {what}: none of {} states; found, and the last: {last:#?}; found, and the first: {first:#?}",
                self.seed,
                allowed.len()
            );
        };
        self.counts.crashes += 1;
        self.counts.lost += usize::from(which + 1 < allowed.len());
        println!("seed {}, {what}: state {} of {}", self.seed, which + 1, allowed.len());
        self.state = found;
        self.history = vec![self.state.clone()];
        which
    }
}
