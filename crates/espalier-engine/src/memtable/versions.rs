//! The versions of a key in a memtable, oldest first. Most keys have one, which takes no piece of
//! memory of its own.

use super::message_version::MessageVersion;
use crate::model::ids::Msn;

type Version = (Msn, MessageVersion);

/// See the [module](self).
pub(super) enum Versions {
    One([Version; 1]),
    Others(Vec<Version>),
}

impl Versions {
    /// One version.
    pub(super) fn of(msn: Msn, version: MessageVersion) -> Self {
        Self::One([(msn, version)])
    }

    pub(super) fn all(&self) -> &[Version] {
        match self {
            Self::One(one) => one,
            Self::Others(others) => others,
        }
    }

    pub(super) fn all_mut(&mut self) -> &mut [Version] {
        match self {
            Self::One(one) => one,
            Self::Others(others) => others,
        }
    }

    fn take_all(&mut self) -> Vec<Version> {
        match std::mem::replace(self, Self::Others(Vec::new())) {
            Self::One(one) => Vec::from(one),
            Self::Others(others) => others,
        }
    }

    /// Adds a newer version.
    pub(super) fn push(&mut self, msn: Msn, version: MessageVersion) {
        if self.all().is_empty() {
            *self = Self::of(msn, version);
            return;
        }
        let mut all = self.take_all();
        all.push((msn, version));
        *self = Self::Others(all);
    }

    /// Takes the newest version away.
    pub(super) fn pop(&mut self) -> Option<Version> {
        match self {
            Self::Others(others) => others.pop(),
            Self::One(_) => self.take_all().pop(),
        }
    }

    /// Takes the versions from `at` on away; returns the bytes that they held.
    pub(super) fn drop_from(&mut self, at: usize) -> usize {
        match self {
            Self::Others(others) => others.drain(at..).map(|(_, version)| version.bytes()).sum(),
            Self::One(_) if at > 0 => 0,
            Self::One(_) => self.take_all().iter().map(|(_, version)| version.bytes()).sum(),
        }
    }

    /// Takes version `at` away.
    pub(super) fn remove(&mut self, at: usize) {
        let mut all = self.take_all();
        all.remove(at);
        *self = Self::Others(all);
    }
}
