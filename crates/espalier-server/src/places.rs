//! Places: which connections the server has room for, and how long one may be without a session.
//!
//! Each user has so many places, and all users together, but root and the owner of the mount, whose
//! places are their own: others cannot lock them out. A connection is *new* until its session has
//! begun. A client says Hello at once, so a connection that stays new is ended when its time is up,
//! or before, if there are too many new ones: then the oldest one of the user with most of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Connections of root, and of all users but root and the owner of the mount,
const MAX_PLACES: usize = 128;
/// and of one user other than root.
const MAX_PLACES_OF_USER: usize = 64;
/// New connections of one user,
const MAX_NEW_OF_USER: usize = 16;
/// and of all users but root and the owner of the mount.
const MAX_NEW: usize = 64;

/// The connections that are there.
#[derive(Debug)]
pub(crate) struct Places {
    /// The owner of the mount.
    owner: u32,
    /// How long a connection may be new.
    new_limit: Duration,
    all: HashMap<u64, Place>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    uid: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New {
        until: Instant,
    },
    Session,
    /// It is being ended.
    Ending,
}

impl Places {
    pub(crate) fn new(owner: u32, new_limit: Duration) -> Self {
        Self { owner, new_limit, all: HashMap::new() }
    }

    /// Gives a place to the connection of a user, whose number is higher than those before; returns
    /// another connection that has to be ended for it. `None` if there is no place.
    pub(crate) fn take(&mut self, number: u64, uid: u32, now: Instant) -> Option<Option<u64>> {
        let has_own = |uid: u32| uid == 0 || uid == self.owner;
        let own = self.all.values().filter(|place| place.uid == uid).count();
        let others = self.all.values().filter(|place| !has_own(place.uid)).count();
        let is_full = own >= if uid == 0 { MAX_PLACES } else { MAX_PLACES_OF_USER };
        if is_full || !has_own(uid) && others >= MAX_PLACES {
            return None;
        }
        let mut new: HashMap<u32, usize> = HashMap::from([(uid, 1)]);
        for place in self.all.values().filter(|place| matches!(place.state, State::New { .. })) {
            *new.entry(place.uid).or_default() += 1;
        }
        let of_others = new.iter().filter(|(uid, _)| !has_own(**uid));
        let most = of_others.clone().max_by_key(|(_, count)| **count).map(|(uid, _)| *uid);
        let ends_one_of = if new[&uid] > MAX_NEW_OF_USER {
            Some(uid)
        } else if !has_own(uid) && of_others.map(|(_, count)| count).sum::<usize>() > MAX_NEW {
            most
        } else {
            None
        };
        let ended = ends_one_of.and_then(|uid| {
            let is_new = |place: &Place| place.uid == uid && matches!(place.state, State::New { .. });
            self.all.iter().filter(|(_, place)| is_new(place)).map(|(number, _)| *number).min()
        });
        if let Some(place) = ended.and_then(|number| self.all.get_mut(&number)) {
            place.state = State::Ending;
        }
        self.all.insert(number, Place { uid, state: State::New { until: now + self.new_limit } });
        Some(ended)
    }

    /// A session has begun.
    pub(crate) fn begin(&mut self, number: u64) {
        if let Some(place) = self.all.get_mut(&number)
            && place.state != State::Ending
        {
            place.state = State::Session;
        }
    }

    /// A connection has ended.
    pub(crate) fn leave(&mut self, number: u64) {
        self.all.remove(&number);
    }

    /// When the first new connection has had its time.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.all
            .values()
            .filter_map(|place| match place.state {
                State::New { until } => Some(until),
                _ => None,
            })
            .min()
    }

    /// The connections that have had their time, and have to be ended.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<u64> {
        let mut found = Vec::new();
        for (number, place) in &mut self.all {
            if matches!(place.state, State::New { until } if until <= now) {
                place.state = State::Ending;
                found.push(*number);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
