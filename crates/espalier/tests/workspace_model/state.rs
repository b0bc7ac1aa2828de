//! What the model knows, and what each command makes of it.

use crate::tree::{Tree, merge};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// What the model knows of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) base: Rc<Tree>,
    pub(crate) tree: Rc<Tree>,
    pub(crate) checkpoints: Vec<Rc<Tree>>,
}

impl Known {
    /// Which names share a file is no change by itself.
    pub(crate) fn is_changed(&self) -> bool {
        self.base.things != self.tree.things
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
    Create(String),
    Checkpoint(String),
    /// To the checkpoint with this number.
    Undo(String, u64),
    Apply(String),
    Promote(String),
    /// By force if anything was not applied.
    Discard(String),
}

impl Act {
    /// The workspace that it is about.
    pub(crate) fn name(&self) -> &str {
        let (Self::Create(name)
        | Self::Checkpoint(name)
        | Self::Undo(name, _)
        | Self::Apply(name)
        | Self::Promote(name)
        | Self::Discard(name)) = self;
        name
    }

    /// About how many changes of files the command makes at most.
    pub(crate) fn changes(&self) -> u64 {
        match self {
            Self::Create(_) => 14,
            Self::Checkpoint(_) => 6,
            Self::Undo(..) => 12,
            Self::Apply(_) => 30,
            Self::Promote(_) => 14,
            Self::Discard(_) => 5,
        }
    }

    /// The command line.
    pub(crate) fn words(&self, original: &Path) -> String {
        match self {
            Self::Create(name) => format!("create {name} --from {}", original.display()),
            Self::Checkpoint(name) => format!("checkpoint {name}"),
            Self::Undo(name, number) => format!("undo {name} {number}"),
            Self::Apply(name) => format!("apply {name}"),
            Self::Promote(name) => format!("promote {name}"),
            Self::Discard(name) => format!("discard {name} --force"),
        }
    }
}

impl State {
    /// The states that a command passes, in order; the last is that after it. None if it changes
    /// nothing because of a conflict.
    pub(crate) fn after(&self, act: &Act) -> Vec<Self> {
        let mut done = self.clone();
        let name = act.name().to_owned();
        if let Act::Create(_) = act {
            let (base, tree) = (self.original.clone(), self.original.clone());
            done.known.insert(name, Known { base, tree, checkpoints: Vec::new() });
            return vec![done];
        }
        let one = done.known.get_mut(&name).expect("the workspace is there");
        match act {
            Act::Create(_) => {}
            Act::Checkpoint(_) => one.checkpoints.push(one.tree.clone()),
            Act::Undo(_, number) => {
                one.checkpoints.push(one.tree.clone());
                // What there is to undo the undo comes first.
                let kept = self.with(&name, one.clone());
                one.tree = one.checkpoints[*number as usize - 1].clone();
                return vec![kept, done];
            }
            Act::Apply(_) => {
                let Ok(merged) = merge(&one.base, &self.original, &one.tree) else { return Vec::new() };
                let mut applied = self.clone();
                applied.original = Rc::new(merged);
                done.original = applied.original.clone();
                one.base = one.tree.clone();
                // The base follows; what was applied already is no conflict.
                return vec![applied, done];
            }
            Act::Promote(_) => std::mem::swap(&mut one.tree, &mut done.original),
            Act::Discard(_) => drop(done.known.remove(&name)),
        }
        vec![done]
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
