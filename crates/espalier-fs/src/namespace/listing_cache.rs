//! Recent listings of directories: which cookie stands for which name, and whole listings of
//! directories that have not changed since.

use crate::model::types::{FileKind, NodeId};
use crate::namespace::lookup::Stamp;
use espalier_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Answers that are remembered.
const REMEMBERED_MAX_ANSWERS: usize = 1024;
/// Names that are remembered, in all answers.
const REMEMBERED_MAX_NAMES: usize = 64 << 10;
/// The newest answers, among which a listing that is asked for again is looked for.
const RECENT_ANSWERS: usize = 8;

/// Answers to recent listings, newest first.
#[derive(Default)]
pub(crate) struct ListingCache(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    newest_first: VecDeque<Answer>,
    names: usize,
}

/// An answer to one call.
pub(crate) struct Answer {
    pub(crate) dir: NodeId,
    pub(crate) entries: Arc<Vec<ListedEntry>>,
    /// Each entry came with its node.
    pub(crate) has_nodes: bool,
    /// The state of the directory that was listed.
    pub(crate) stamp: Stamp,
    /// It began with the first entry.
    pub(crate) from_start: bool,
    /// Nothing follows.
    pub(crate) to_end: bool,
}

/// An entry that was part of an answer.
pub(crate) struct ListedEntry {
    pub(crate) cookie: u64,
    pub(crate) name: Arc<[u8]>,
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
}

impl ListingCache {
    pub(crate) fn remember(&self, answer: Answer) {
        if answer.entries.is_empty() {
            return;
        }
        let mut answers = self.0.lock();
        answers.names += answer.entries.len();
        answers.newest_first.push_front(answer);
        while answers.newest_first.len() > REMEMBERED_MAX_ANSWERS
            || (answers.names > REMEMBERED_MAX_NAMES && answers.newest_first.len() > 1)
        {
            answers.names -= answers.newest_first.pop_back().map_or(0, |a| a.entries.len());
        }
    }

    /// The name behind which a cookie leads, if a remembered answer had it.
    pub(crate) fn name(&self, dir: NodeId, cookie: u64) -> Option<Arc<[u8]>> {
        let answers = self.0.lock();
        let mut of_dir = answers.newest_first.iter().filter(|a| a.dir == dir);
        of_dir.find_map(|a| a.entries.iter().rev().find(|e| e.cookie == cookie).map(|e| e.name.clone()))
    }

    /// True if nothing follows `cookie` in the directory whose state is `stamp`.
    pub(crate) fn is_last(&self, dir: NodeId, stamp: Stamp, cookie: u64) -> bool {
        let last = |a: &Answer| a.to_end && a.entries.last().is_some_and(|last| last.cookie == cookie);
        let answers = self.0.lock();
        let mut recent = answers.newest_first.iter().take(RECENT_ANSWERS);
        recent.any(|a| a.dir == dir && a.stamp == stamp && last(a))
    }

    /// All entries of the directory whose state is `stamp`, if one answer gave them, and whether
    /// with their nodes.
    pub(crate) fn whole(&self, dir: NodeId, stamp: Stamp) -> Option<(Arc<Vec<ListedEntry>>, bool)> {
        let whole = |a: &&Answer| a.dir == dir && a.stamp == stamp && a.from_start && a.to_end;
        let answers = self.0.lock();
        let mut recent = answers.newest_first.iter().take(RECENT_ANSWERS);
        recent.find(whole).map(|a| (a.entries.clone(), a.has_nodes))
    }
}
