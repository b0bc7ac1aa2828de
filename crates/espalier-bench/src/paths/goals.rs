//! What is asked of the figures of a client of the mount.

/// Beside which columns a figure is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// The fastest of the kernel's file systems.
    Best,
    /// The fastest of them in another row, of one client.
    BestIn(&'static str),
    /// Ext4.
    Ext4,
    /// System calls on our mount.
    Mount,
}

/// A goal: so many times faster than the peer, or no goal (0) where the ratio is only told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    pub(super) peer: Peer,
    pub(super) times: f64,
}

const fn goal(peer: Peer, times: f64) -> Goal {
    Goal { peer, times }
}

/// By the name of the step.
const GOALS: &[(&str, Goal)] = &[
    ("create", goal(Peer::BestIn("tar"), 3.0)),
    ("import", goal(Peer::BestIn("tar"), 3.0)),
    ("list cold", goal(Peer::Best, 3.0)),
    ("list warm", goal(Peer::Best, 5.0)),
    ("read cold", goal(Peer::Best, 0.0)),
    ("read warm", goal(Peer::Best, 0.0)),
    ("read shuffled cold", goal(Peer::Mount, 3.0)),
    ("read shuffled warm", goal(Peer::Ext4, 1.0)),
    ("remove", goal(Peer::Best, 0.0)),
    // The time in which the device is read from end to end once, as far as there is content.
    ("export", goal(Peer::BestIn("device"), 0.9)),
];

/// What is asked of a step.
pub(super) fn of(step: &str) -> Option<Goal> {
    GOALS.iter().find(|(name, _)| *name == step).map(|(_, goal)| *goal)
}
