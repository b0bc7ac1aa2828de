//! Many renames at once, on the file system and on the model.

use crate::run::Run;
use crate::tree::{Id, Object, Tree};
use espalier_fs::{Caller, FsErrorKind as Kind, NodeId, RenameAction, RenameMode, RenameStep};
use std::collections::{BTreeMap, BTreeSet};

/// Steps of one call, at most.
const MAX_STEPS: usize = 4;

/// What the steps of a call have moved so far.
struct Moved {
    /// With the time of change before.
    objects: BTreeMap<Id, i64>,
    names: BTreeSet<(Id, Vec<u8>)>,
}

impl Tree {
    /// All of the steps; on failure the tree is of no use any more.
    fn rename_all(
        &mut self,
        target: Id,
        staging: Id,
        steps: &[RenameStep],
        caller: &Caller,
    ) -> Result<(), Kind> {
        let objects = [target, staging].map(|id| (id, self.objects[id].ctime)).into();
        let mut moved = Moved { objects, names: BTreeSet::new() };
        for step in steps {
            self.rename_step(target, staging, step, caller, &mut moved)?;
        }
        Ok(())
    }

    fn rename_step(
        &mut self,
        target: Id,
        staging: Id,
        step: &RenameStep,
        caller: &Caller,
        moved: &mut Moved,
    ) -> Result<(), Kind> {
        let (name, above) = step.place.split_last().expect("a place has names");
        let mut dirs = vec![target];
        for name in above {
            let next = self.lookup(*dirs.last().expect("not empty"), name)?;
            if moved.objects.contains_key(&next) {
                return Err(Kind::Invalid);
            }
            if !self.objects[next].is_dir() {
                return Err(Kind::NotDirectory);
            }
            dirs.push(next);
        }
        let dir = dirs[dirs.len() - 1];
        for dir in dirs.iter().chain([&staging]) {
            let object = &self.objects[*dir];
            if caller.uid != 0 && (object.uid != caller.uid || object.mode & 0o300 != 0o300) {
                return Err(Kind::AccessDenied);
            }
        }
        let place_name = name.clone();
        let there = self.lookup(dir, name).ok();
        let staged = self.lookup(staging, &step.staged).ok();
        let mut concerned: Vec<(Id, (Id, Vec<u8>))> = Vec::new();
        if step.action != RenameAction::Enter {
            let there = there.ok_or(Kind::NotFound)?;
            // What was changed is expected to be as it was before the call.
            let changed = moved.objects.get(&there).copied().unwrap_or(self.objects[there].ctime);
            if changed != step.expected.1 {
                return Err(Kind::Stale);
            }
            concerned.push((there, (dir, name.clone())));
        }
        if step.action != RenameAction::Leave {
            concerned.push((staged.ok_or(Kind::NotFound)?, (staging, step.staged.clone())));
        }
        // Of a file with several names each moves for itself.
        let is_moved = |(id, name): &(Id, (Id, Vec<u8>))| {
            let has_names = !self.objects[*id].is_dir() && self.objects[*id].names > 1;
            moved.objects.contains_key(id) && (!has_names || moved.names.contains(name))
        };
        if concerned.iter().any(is_moved) {
            return Err(Kind::Invalid);
        }
        let ((from, name), (to, new), mode) = match step.action {
            RenameAction::Enter => ((staging, &step.staged), (dir, name), RenameMode::NoReplace),
            RenameAction::Leave => ((dir, name), (staging, &step.staged), RenameMode::NoReplace),
            RenameAction::Exchange => ((dir, name), (staging, &step.staged), RenameMode::Exchange),
            RenameAction::ExchangeAttributes => {
                return self.exchange_attributes(concerned[0].0, concerned[1].0, caller);
            }
        };
        let may_move = |object: &Object| {
            let shift = if object.gid == caller.gid { 3 } else { 0 };
            !object.is_dir() || [0, object.uid].contains(&caller.uid) || object.mode >> shift & 0o2 != 0
        };
        if dir != staging && !concerned.iter().all(|(id, _)| may_move(&self.objects[*id])) {
            return Err(Kind::AccessDenied);
        }
        moved.names.extend([(dir, place_name), (staging, step.staged.clone())]);
        for (id, _) in concerned {
            moved.objects.entry(id).or_insert(self.objects[id].ctime);
        }
        self.rename(from, name, to, new, mode)
    }

    fn exchange_attributes(&mut self, one: Id, other: Id, caller: &Caller) -> Result<(), Kind> {
        if !self.objects[one].is_dir() || !self.objects[other].is_dir() || one == other {
            return Err(Kind::NotDirectory);
        }
        let (here, there) = (self.objects[one].clone(), self.objects[other].clone());
        if caller.uid != 0 && [here.uid, there.uid] != [caller.uid; 2] {
            return Err(Kind::Permission);
        }
        if here.flags.protect() || there.flags.protect() {
            return Err(Kind::Permission);
        }
        for (id, new) in [(one, &there), (other, &here)] {
            let now = self.now;
            let object = &mut self.objects[id];
            (object.mode, object.uid, object.gid) = (new.mode, new.uid, new.gid);
            object.xattrs.clone_from(&new.xattrs);
            object.ctime = later_than(object.ctime, now);
        }
        Ok(())
    }
}

/// A change within the tick of the last one has a time of its own.
pub(crate) fn later_than(last: i64, now: i64) -> i64 {
    if (now..now + 10_000_000).contains(&last) { last + 1 } else { now }
}

impl Run {
    /// The path of an entry below a directory; mostly one where something is, if that is wanted.
    fn a_place(&mut self, target: Id, taken: bool) -> Vec<Vec<u8>> {
        let (mut place, mut at) = (Vec::new(), target);
        loop {
            let names: Vec<Vec<u8>> = self.tree.objects[at].entries.keys().cloned().collect();
            if names.is_empty() || !taken && self.random.chance(2) || self.random.chance(20) {
                place.push(self.name());
                return place;
            }
            let name = self.random.pick(&names).clone();
            at = self.tree.objects[at].entries[&name];
            place.push(name);
            if !self.tree.objects[at].is_dir() || taken && self.random.chance(2) {
                return place;
            }
        }
    }

    fn a_step(&mut self, (target, node): (Id, NodeId), staging: Id) -> RenameStep {
        use RenameAction::{Enter, Exchange, ExchangeAttributes, Leave};
        let action = *self.random.pick(&[Enter, Enter, Leave, Exchange, Exchange, ExchangeAttributes]);
        let place = self.a_place(target, action != Enter);
        let names: Vec<Vec<u8>> = self.tree.objects[staging].entries.keys().cloned().collect();
        let staged = match names.is_empty() || action == Leave || self.random.chance(20) {
            true => self.name(),
            false => self.random.pick(&names).clone(),
        };
        let expected = self.expected_at(node, &place);
        RenameStep { action, place, staged, expected }
    }

    /// Steps that move names of one file, if one has several below a directory.
    fn steps_of_names(&mut self, (target, node): (Id, NodeId), staging: Id) -> Vec<RenameStep> {
        let mut places: BTreeMap<Id, Vec<Vec<Vec<u8>>>> = BTreeMap::new();
        let mut waiting = vec![(target, Vec::new())];
        while let Some((dir, place)) = waiting.pop() {
            for (name, id) in &self.tree.objects[dir].entries {
                let below = [&place[..], std::slice::from_ref(name)].concat();
                match self.tree.objects[*id].is_dir() {
                    true => waiting.push((*id, below)),
                    false => places.entry(*id).or_default().push(below),
                }
            }
        }
        let several: Vec<Vec<Vec<Vec<u8>>>> = places.into_values().filter(|all| all.len() > 1).collect();
        if several.is_empty() {
            return Vec::new();
        }
        let places = self.random.pick(&several).clone();
        let staged: Vec<Vec<u8>> = self.tree.objects[staging].entries.keys().cloned().collect();
        let mut steps = Vec::new();
        for (number, place) in places.into_iter().take(MAX_STEPS).enumerate() {
            let expected = self.expected_at(node, &place);
            let (action, staged) = match staged.get(number) {
                Some(name) if self.random.chance(2) => (RenameAction::Exchange, name.clone()),
                _ => (RenameAction::Leave, [b"left", self.name().as_slice()].concat()),
            };
            steps.push(RenameStep { action, place, staged, expected });
        }
        steps
    }

    /// What users see of the entry at a place below a directory: number and time of change.
    fn expected_at(&mut self, node: NodeId, place: &[Vec<u8>]) -> (u64, i64) {
        let mut expected = (0, 0);
        let mut at = node;
        let mut held = Vec::new();
        for name in place {
            let Ok(entry) = self.fs.lookup(at, name) else { break };
            held.push(entry.node);
            (at, expected) = (entry.node, (entry.attr.ino, entry.attr.ctime));
        }
        if held.len() < place.len() {
            expected = (0, 0);
        }
        held.into_iter().for_each(|node| self.fs.forget(node, 1));
        if self.random.chance(30) {
            expected.1 += 1;
        }
        expected
    }

    pub(crate) fn rename_all(&mut self) {
        let (target, staging) = (self.a_dir(), self.a_dir());
        if !self.tree.objects[target.0].is_dir() || !self.tree.objects[staging.0].is_dir() {
            return;
        }
        let count = 1 + self.random.below(MAX_STEPS);
        let steps: Vec<RenameStep> = match self.of_links && self.random.chance(2) {
            true => self.steps_of_names(target, staging.0),
            false => (0..count).map(|_| self.a_step(target, staging.0)).collect(),
        };
        let names = steps.iter().filter(|step| step.action != RenameAction::ExchangeAttributes).count();
        let of_one_file = names > 1 && {
            let mut numbers: Vec<u64> = steps.iter().map(|step| step.expected.0).collect();
            numbers.dedup();
            numbers.len() == 1 && numbers[0] != 0
        };
        let caller = if self.random.chance(4) { self.tree_caller() } else { Caller::default() };
        // Large extended attributes are refused, and the model does not know which are large.
        let large = self.tree.objects.iter().any(|o| o.is_dir() && o.xattrs.values().any(|v| v.len() > 64));
        if large && steps.iter().any(|step| step.action == RenameAction::ExchangeAttributes) {
            return;
        }
        self.last = format!("rename_all {steps:?} below {target:?} with {staging:?} by {}", caller.uid);
        let mut after = self.tree.clone();
        let expected = after.rename_all(target.0, staging.0, &steps, &caller);
        // Link areas stay merged that were merged for a call that then failed. That shows in link
        // counts of what is removed while in use, and the model does not follow it.
        if expected.is_err() && after.joined != self.tree.joined {
            return;
        }
        let got = self.ask(|fs| fs.rename_all(target.1, staging.1, &steps, &caller));
        // Which of several reasons is given is not part of the promise.
        let (seed, step) = (self.seed, self.step);
        assert_eq!(
            got.is_ok(),
            expected.is_ok(),
            "seed {seed}, step {step}: {}: {got:?} {expected:?}",
            self.last
        );
        if expected.is_ok() {
            self.tree = after;
            self.renamed_all += usize::from(steps.len() > 1);
            self.renamed_names += usize::from(of_one_file);
        }
    }
}
