//! Handles that ioctls give out: tokens for directories, and numbers of comparisons under way, or
//! of lists of changed paths that are handed out.
//!
//! A comparison is continued without the lock on all of them: to find the next difference may take
//! as long as to read both trees.

use super::user_entries::{Limits, UserEntries};
use crate::dispatch::errno::{Errno, or_errno};
use crate::protocol::control::{DIFFERENCES_BYTES, TOKEN_BYTES, Token};
use espalier_fs::{Change, NodeId, TreeDiff, WireReader, WireWriter};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens that are kept.
const TOKEN_LIMITS: Limits = Limits { per_user: 1024, total: 4096 };

/// The longest path that a comparison reports, in bytes: the longest that system calls take.
const MAX_PATH_BYTES: usize = 4096;

/// Comparisons under way at a time.
const COMPARISON_LIMITS: Limits = Limits { per_user: 64, total: 256 };

/// A comparison that was not continued for so long is one of a program that has ended.
const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// What is handed out piece by piece.
pub(super) trait Differences: Send {
    /// The next difference, with its path; `None` behind the last one.
    ///
    /// # Errors
    /// What the trees say.
    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>>;

    /// Node headers that were looked at so far.
    fn nodes(&self) -> u64;
}

impl Differences for TreeDiff {
    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>> {
        TreeDiff::next(self)
    }

    fn nodes(&self) -> u64 {
        TreeDiff::nodes(self)
    }
}

/// Differences of two trees, of which the first has been looked at before it is handed out.
struct BegunDiff {
    first: Option<(Change, Vec<u8>)>,
    rest: TreeDiff,
}

impl Differences for BegunDiff {
    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.rest.next(),
        }
    }

    fn nodes(&self) -> u64 {
        self.rest.nodes()
    }
}

/// Changed paths that are known already.
pub(super) struct ChangedPaths(std::vec::IntoIter<Vec<u8>>);

impl ChangedPaths {
    /// These paths.
    pub(super) fn new(paths: Vec<Vec<u8>>) -> Self {
        Self(paths.into_iter())
    }
}

impl Differences for ChangedPaths {
    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>> {
        Ok(self.0.next().map(|path| (Change::Changed, path)))
    }

    fn nodes(&self) -> u64 {
        0
    }
}

/// Those of a comparison; `None` if nothing differs.
///
/// # Errors
/// What the trees say.
pub(super) fn some_of(mut diff: TreeDiff) -> espalier_fs::Result<Option<Box<dyn Differences>>> {
    let first = diff.next()?;
    Ok(first.map(|first| Box::new(BegunDiff { first: Some(first), rest: diff }) as _))
}

/// A comparison under way. A call that continues it holds a reference and the lock.
type Comparison = Arc<Mutex<Box<dyn Differences>>>;

/// Comparisons under way, by number.
pub(super) struct Comparisons(Mutex<Running>);

struct Running {
    last: u64,
    all: UserEntries<(u64, Comparison)>,
    /// When one of them was last begun or continued.
    used: Option<Instant>,
}

impl Default for Comparisons {
    fn default() -> Self {
        Self(Mutex::new(Running { last: 0, all: UserEntries::new(COMPARISON_LIMITS), used: None }))
    }
}

impl Comparisons {
    /// Begins a comparison of user `uid`; the result is its number.
    pub(super) fn begin(&self, uid: u32, differences: Box<dyn Differences>) -> u64 {
        let Running { last, all, used } = &mut *self.0.lock();
        *used = Some(Instant::now());
        *last += 1;
        all.push(uid, (*last, Arc::new(Mutex::new(differences))));
        *last
    }

    /// True if a comparison is being continued, or has not ended and was begun or continued a
    /// moment ago. What a program that has ended left behind is none.
    pub(super) fn is_one_under_way(&self) -> bool {
        let running = self.0.lock();
        let is_continued = running.all.iter().any(|(_, (_, comparison))| Arc::strong_count(comparison) > 1);
        let is_recent = || running.used.is_some_and(|used| used.elapsed() < ABANDONED_AFTER);
        is_continued || (running.all.len() > 0 && is_recent())
    }

    /// The number of the last one.
    pub(super) fn last(&self) -> u64 {
        self.0.lock().last
    }

    /// Later numbers are above `last`.
    pub(super) fn go_on_after(&self, last: u64) {
        self.0.lock().last = last;
    }

    /// Appends to `answer` as many further differences as one answer has room for. At the end the
    /// comparison is dropped. Fails with EBUSY while another call continues it.
    pub(super) fn next(&self, session: u64, uid: u32, answer: &mut Vec<u8>) -> Result<(), Errno> {
        let is_it = |(number, _): &(u64, Comparison)| *number == session;
        let known = self.0.lock().all.find(uid, is_it).map(|(_, comparison)| Arc::clone(comparison));
        let comparison = known.ok_or(Errno(libc::ESTALE))?;
        let mut differences = comparison.try_lock().ok_or(Errno(libc::EBUSY))?;
        let part = next_part(&mut **differences);
        let mut running = self.0.lock();
        running.used = Some(Instant::now());
        let mut data = part?;
        answer.extend_from_slice(&session.to_ne_bytes());
        answer.extend_from_slice(&differences.nodes().to_ne_bytes());
        answer.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        answer.extend_from_slice(&[0; 4]);
        if data.is_empty() {
            running.all.remove(uid, is_it);
        }
        data.resize(DIFFERENCES_BYTES, 0);
        answer.extend_from_slice(&data);
        Ok(())
    }
}

/// As many further differences as one answer has room for.
fn next_part(differences: &mut dyn Differences) -> Result<Vec<u8>, Errno> {
    let mut data = Vec::new();
    // Each difference needs room for the longest path; its length takes two bytes.
    while data.len() + MAX_PATH_BYTES + 3 <= DIFFERENCES_BYTES {
        let Some((change, path)) = or_errno(differences.next(), String::new)? else { break };
        if path.len() > MAX_PATH_BYTES {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        data.push(match change {
            Change::Added => b'+',
            Change::Removed => b'-',
            _ => b'~',
        });
        data.extend_from_slice(&(path.len() as u16).to_ne_bytes());
        data.extend_from_slice(&path);
    }
    Ok(data)
}

/// Tokens that were given out and not used.
pub(super) struct Tokens(Mutex<UserEntries<(Token, NodeId)>>);

impl Default for Tokens {
    fn default() -> Self {
        Self(Mutex::new(UserEntries::new(TOKEN_LIMITS)))
    }
}

impl Tokens {
    /// A new token of user `uid` for a directory.
    pub(super) fn give(&self, uid: u32, node: NodeId) -> Result<Token, Errno> {
        let mut token = [0; TOKEN_BYTES];
        let length = rustix::rand::getrandom(&mut token[..], rustix::rand::GetRandomFlags::empty());
        if length != Ok(TOKEN_BYTES) {
            return Err(Errno(libc::EIO));
        }
        self.0.lock().push(uid, (token, node));
        Ok(token)
    }

    /// Appends all tokens.
    pub(super) fn hand_over(&self, out: &mut WireWriter) {
        let tokens = self.0.lock();
        out.len(tokens.len());
        for (uid, (token, node)) in tokens.iter() {
            out.bytes(token);
            out.u32(uid);
            out.u64(node.0);
        }
    }

    /// Takes tokens that another server appended ([`Tokens::hand_over`]).
    pub(super) fn take_over(&self, state: &mut WireReader<'_>) -> espalier_fs::Result<()> {
        let mut tokens = self.0.lock();
        for _ in 0..state.len(20)? {
            let (token, uid, node) = (state.bytes()?.try_into(), state.u32()?, NodeId(state.u64()?));
            // One of another length is of no use to its owner.
            if let Ok(token) = token {
                tokens.push(uid, (token, node));
            }
        }
        Ok(())
    }

    /// The directory of a token, which stays.
    pub(super) fn find(&self, token: &Token, uid: u32) -> Result<NodeId, Errno> {
        let tokens = self.0.lock();
        tokens.find(uid, |(known, _)| known == token).map(|(_, node)| *node).ok_or(Errno(libc::ESTALE))
    }

    /// The directory of a token, which is used up.
    pub(super) fn take(&self, token: &Token, uid: u32) -> Result<NodeId, Errno> {
        let taken = self.0.lock().remove(uid, |(known, _)| known == token);
        taken.map(|(_, node)| node).ok_or(Errno(libc::ESTALE))
    }
}

#[cfg(test)]
mod tests;
