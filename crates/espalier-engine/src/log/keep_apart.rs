//! Ranges whose large values share value parts with no others.
//!
//! A group writes its values in the order of their keys, so what concurrent writers store in
//! different places would meet in one value part at the borders of these places. Where space is
//! counted (a limited tree of a file system) a part must not hold what belongs to others. The
//! ranges are advice: a part that mixes is right, and only counts for neither.

use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::IndexId;
use crate::model::key::Key;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Prefixes by owner.
type Prefixes = BTreeMap<(IndexId, Key), usize>;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct KeepApart {
    state: RankedMutex<State, { rank::KEEP_APART }>,
}

#[derive(Debug, Default)]
struct State {
    /// The prefix of each owner.
    of: HashMap<u64, (IndexId, Key)>,
    /// How many owners have a prefix.
    prefixes: Arc<Prefixes>,
}

impl KeepApart {
    /// Gives `owner` a prefix in place of the one that it had, or takes that away.
    pub(crate) fn set(&self, owner: u64, prefix: Option<(IndexId, Key)>) {
        let mut state = self.state.lock();
        let old = match prefix.clone() {
            Some(prefix) => state.of.insert(owner, prefix),
            None => state.of.remove(&owner),
        };
        if old == prefix {
            return;
        }
        let prefixes = Arc::make_mut(&mut state.prefixes);
        if let Some(old) = old
            && let Some(owners) = prefixes.get_mut(&old)
        {
            *owners -= 1;
            if *owners == 0 {
                prefixes.remove(&old);
            }
        }
        if let Some(new) = prefix {
            *prefixes.entry(new).or_default() += 1;
        }
    }

    /// The prefixes as they are now.
    pub(crate) fn now(&self) -> ApartNow {
        ApartNow(self.state.lock().prefixes.clone())
    }
}

/// The prefixes of one instant.
pub(crate) struct ApartNow(Arc<Prefixes>);

impl ApartNow {
    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest prefix that a key begins with.
    pub(crate) fn prefix_of(&self, index: IndexId, key: &Key) -> Option<&Key> {
        let mut bound = key.clone();
        loop {
            let ((of, prefix), _) = self.0.range(..=(index, bound.clone())).next_back()?;
            if *of != index {
                return None;
            }
            if key.starts_with(prefix) {
                return Some(prefix);
            }
            // What begins the key is no longer than what the two have in common.
            let common = prefix.iter().zip(key.iter()).take_while(|(a, b)| a == b).count();
            bound = key[..common].into();
        }
    }
}

#[cfg(test)]
mod tests;
