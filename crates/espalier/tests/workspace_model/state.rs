//! What the model knows, and what each command makes of it.

use crate::tree::{Rule, Tree, merge};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

/// What ends a workspace without a command about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Never,
    /// Its time is over as soon as it is there.
    Expired,
    /// The process that it was made for has ended.
    Process,
}

/// What the model knows of a workspace.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) base: Rc<Tree>,
    /// Only what is at the paths of the base is known, and not which names share a file: so it is
    /// after an apply of some paths.
    pub(crate) has_loose_base: bool,
    pub(crate) tree: Rc<Tree>,
    pub(crate) checkpoints: Vec<Rc<Tree>>,
    /// The numbers of those that an undo has set aside, since everything was applied last.
    pub(crate) set_aside: BTreeSet<u64>,
    pub(crate) end: End,
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        let is_loose = self.has_loose_base || other.has_loose_base;
        let same_base =
            self.base.things == other.base.things && (is_loose || self.base.files == other.base.files);
        let rest = |known: &Self| {
            (known.tree.clone(), known.checkpoints.clone(), known.set_aside.clone(), known.end)
        };
        same_base && rest(self) == rest(other)
    }
}

impl Eq for Known {}

impl Known {
    /// Which names share a file is no change by itself.
    pub(crate) fn is_changed(&self) -> bool {
        self.base.things != self.tree.things
    }

    /// True if something would be lost with it.
    pub(crate) fn is_unapplied(&self) -> bool {
        let is_other = |number: &u64| self.checkpoints[*number as usize - 1].things != self.base.things;
        self.is_changed() || self.set_aside.iter().any(is_other)
    }

    /// True if `gc` removes it.
    fn is_due(&self) -> bool {
        match self.end {
            End::Never => false,
            End::Expired => true,
            End::Process => !self.is_unapplied(),
        }
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) original: Rc<Tree>,
    /// The directory with further names of files.
    pub(crate) outside: Rc<Tree>,
    pub(crate) known: BTreeMap<String, Known>,
}

/// A command about workspaces.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Create(String, End),
    Checkpoint(String),
    /// To the checkpoint with this number.
    Undo(String, u64),
    Apply(String, Rule),
    Promote(String),
    /// By force if anything was not applied.
    Discard(String),
    /// `gc`.
    Collect,
}

impl Act {
    /// The workspace that it is about, if it is about one.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Create(name, _)
            | Self::Checkpoint(name)
            | Self::Undo(name, _)
            | Self::Apply(name, _)
            | Self::Promote(name)
            | Self::Discard(name) => Some(name),
            Self::Collect => None,
        }
    }

    /// About how many changes of files the command makes at most.
    pub(crate) fn changes(&self) -> u64 {
        match self {
            Self::Create(..) => 14,
            Self::Checkpoint(_) => 6,
            Self::Undo(..) => 12,
            Self::Apply(..) => 30,
            Self::Promote(_) => 14,
            Self::Discard(_) => 5,
            Self::Collect => 10,
        }
    }

    /// The command line.
    pub(crate) fn words(&self, original: &Path) -> String {
        match self {
            Self::Create(name, end) => {
                let from = format!("create {name} --from {}", original.display());
                match end {
                    End::Never => from,
                    End::Expired => format!("{from} --ttl 0s"),
                    End::Process => format!("{from} -- true"),
                }
            }
            Self::Checkpoint(name) => format!("checkpoint {name}"),
            Self::Undo(name, number) => format!("undo {name} {number}"),
            Self::Apply(name, rule) => {
                let merge = if rule.merges_texts { " --merge" } else { "" };
                let paths: String = rule.paths.iter().map(|path| format!(" {}", path.display())).collect();
                format!("apply {name}{merge}{paths}")
            }
            Self::Promote(name) => format!("promote {name}"),
            Self::Discard(name) => format!("discard {name} --force"),
            Self::Collect => "gc".into(),
        }
    }
}

impl State {
    /// The states that a command passes, in order; the last is that after it. None if it changes
    /// nothing because of a conflict.
    pub(crate) fn after(&self, act: &Act) -> Vec<Self> {
        let mut done = self.clone();
        let Some(name) = act.name().map(str::to_owned) else { return self.after_collect() };
        if let Act::Create(_, end) = act {
            let (base, tree) = (self.original.clone(), self.original.clone());
            let (checkpoints, set_aside) = (Vec::new(), BTreeSet::new());
            let known = Known { base, has_loose_base: false, tree, checkpoints, set_aside, end: *end };
            done.known.insert(name, known);
            return vec![done];
        }
        let one = done.known.get_mut(&name).expect("the workspace is there");
        match act {
            Act::Create(..) | Act::Collect => {}
            Act::Checkpoint(_) => one.checkpoints.push(one.tree.clone()),
            Act::Undo(_, number) => {
                one.checkpoints.push(one.tree.clone());
                one.set_aside.insert(one.checkpoints.len() as u64);
                // What there is to undo the undo comes first.
                let kept = self.with(&name, one.clone());
                one.tree = one.checkpoints[*number as usize - 1].clone();
                return vec![kept, done];
            }
            Act::Apply(_, rule) => {
                let Ok(merged) = merge(&one.base, &self.original, &one.tree, rule) else { return Vec::new() };
                done.original = Rc::new(merged);
                one.has_loose_base = !rule.paths.is_empty();
                one.base = match one.has_loose_base {
                    true => {
                        let things = rule.part(&one.base, &one.tree, |_| true);
                        Rc::new(Tree { things, ..Tree::default() })
                    }
                    false => one.tree.clone(),
                };
                if !one.has_loose_base {
                    one.set_aside.clear();
                }
            }
            Act::Promote(_) => {
                std::mem::swap(&mut one.tree, &mut done.original);
                one.end = End::Never;
            }
            Act::Discard(_) => drop(done.known.remove(&name)),
        }
        vec![done]
    }

    /// One after the other goes what is due.
    fn after_collect(&self) -> Vec<Self> {
        let (mut states, mut state) = (Vec::new(), self.clone());
        for name in self.known.iter().filter(|(_, known)| known.is_due()).map(|(name, _)| name) {
            state.known.remove(name);
            states.push(state.clone());
        }
        if states.is_empty() { vec![state] } else { states }
    }

    fn with(&self, name: &str, known: Known) -> Self {
        let mut changed = self.clone();
        changed.known.insert(name.to_owned(), known);
        changed
    }

    /// What differs, in words that fit on a screen.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut all = Vec::new();
        all.extend(self.original.differences(&other.original, "original"));
        all.extend(self.outside.differences(&other.outside, "outside"));
        let (names, others): (Vec<_>, Vec<_>) = (self.known.keys().collect(), other.known.keys().collect());
        if names != others {
            all.push(format!("workspaces {names:?}, {others:?}"));
        }
        for (name, one) in &self.known {
            let Some(two) = other.known.get(name) else { continue };
            all.extend(one.base.differences(&two.base, &format!("base of {name}")));
            all.extend(one.tree.differences(&two.tree, name));
            if one.checkpoints.len() != two.checkpoints.len() {
                let (one, two) = (one.checkpoints.len(), two.checkpoints.len());
                all.push(format!("checkpoints of {name}: {one}, {two}"));
            }
            for (number, (one, two)) in (1..).zip(one.checkpoints.iter().zip(&two.checkpoints)) {
                all.extend(one.differences(two, &format!("checkpoint {number} of {name}")));
            }
        }
        all
    }
}
