//! Handles that ioctls give out: tokens for directories, and numbers of comparisons under way, or
//! of lists of changed paths that are handed out.

use crate::dispatch::errno::{Errno, or_errno};
use crate::protocol::control::{DIFFERENCES_BYTES, TOKEN_BYTES, Token};
use espalier_fs::{Change, NodeId, TreeDiff, WireReader, WireWriter};
use espalier_sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Tokens that are kept; beyond that the oldest is dropped.
const MAX_TOKENS: usize = 4096;

/// The longest path that a comparison reports, in bytes: the longest that system calls take.
const MAX_PATH_BYTES: usize = 4096;

/// Comparisons under way at a time; beyond that the oldest is dropped.
const MAX_COMPARISONS: usize = 64;

/// A comparison that was not continued for so long is one of a program that has ended.
const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// Comparisons under way, by number, with the user that began them.
#[derive(Default)]
pub(super) struct Comparisons(Mutex<Running>);

#[derive(Default)]
struct Running {
    last: u64,
    all: HashMap<u64, (u32, Differences)>,
    /// When one of them was last begun or continued.
    used: Option<Instant>,
}

/// What is handed out piece by piece.
pub(super) enum Differences {
    /// Of two trees; the first one may have been looked at before it is handed out.
    Trees(Option<(Change, Vec<u8>)>, Box<TreeDiff>),
    /// Changed paths that are known already.
    Paths(std::vec::IntoIter<Vec<u8>>),
}

impl Differences {
    /// Those of a comparison; `None` if nothing differs.
    pub(super) fn some_of(mut diff: TreeDiff) -> espalier_fs::Result<Option<Self>> {
        let first = diff.next()?;
        Ok(first.map(|first| Self::Trees(Some(first), Box::new(diff))))
    }

    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>> {
        match self {
            Self::Trees(first, diff) => match first.take() {
                Some(first) => Ok(Some(first)),
                None => diff.next(),
            },
            Self::Paths(paths) => Ok(paths.next().map(|path| (Change::Changed, path))),
        }
    }

    /// Node headers that were looked at so far.
    fn nodes(&self) -> u64 {
        match self {
            Self::Trees(_, diff) => diff.nodes(),
            Self::Paths(_) => 0,
        }
    }
}

impl Comparisons {
    /// Begins a comparison of user `uid`; the result is its number.
    pub(super) fn begin(&self, uid: u32, diff: Differences) -> u64 {
        let Running { last, all, used } = &mut *self.0.lock();
        *used = Some(Instant::now());
        if all.len() >= MAX_COMPARISONS
            && let Some(oldest) = all.keys().min().copied()
        {
            all.remove(&oldest);
        }
        *last += 1;
        all.insert(*last, (uid, diff));
        *last
    }

    /// True if a comparison has not ended that was begun or continued a moment ago. What a program
    /// that has ended left behind is none.
    pub(super) fn is_one_under_way(&self) -> bool {
        let running = self.0.lock();
        !running.all.is_empty() && running.used.is_some_and(|used| used.elapsed() < ABANDONED_AFTER)
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
    /// comparison is dropped.
    pub(super) fn next(&self, session: u64, uid: u32, answer: &mut Vec<u8>) -> Result<(), Errno> {
        let mut running = self.0.lock();
        running.used = Some(Instant::now());
        let (_, diff) =
            running.all.get_mut(&session).filter(|(by, _)| *by == uid).ok_or(Errno(libc::ESTALE))?;
        let mut data = Vec::new();
        // Each difference needs room for the longest path; its length takes two bytes.
        while data.len() + MAX_PATH_BYTES + 3 <= DIFFERENCES_BYTES {
            let Some((change, path)) = or_errno(diff.next(), String::new)? else { break };
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
        answer.extend_from_slice(&session.to_ne_bytes());
        answer.extend_from_slice(&diff.nodes().to_ne_bytes());
        answer.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        answer.extend_from_slice(&[0; 4]);
        if data.is_empty() {
            running.all.remove(&session);
        }
        data.resize(DIFFERENCES_BYTES, 0);
        answer.extend_from_slice(&data);
        Ok(())
    }
}

/// Tokens that were given out and not used.
#[derive(Default)]
pub(super) struct Tokens(Mutex<VecDeque<(Token, u32, NodeId)>>);

impl Tokens {
    /// A new token of user `uid` for a directory.
    pub(super) fn give(&self, uid: u32, node: NodeId) -> Result<Token, Errno> {
        let mut token = [0; TOKEN_BYTES];
        let length = rustix::rand::getrandom(&mut token[..], rustix::rand::GetRandomFlags::empty());
        if length != Ok(TOKEN_BYTES) {
            return Err(Errno(libc::EIO));
        }
        let mut tokens = self.0.lock();
        if tokens.len() >= MAX_TOKENS {
            tokens.pop_front();
        }
        tokens.push_back((token, uid, node));
        Ok(token)
    }

    /// Appends all tokens.
    pub(super) fn hand_over(&self, out: &mut WireWriter) {
        let tokens = self.0.lock();
        out.len(tokens.len());
        for (token, uid, node) in &*tokens {
            out.bytes(token);
            out.u32(*uid);
            out.u64(node.0);
        }
    }

    /// Takes tokens that another server appended ([`Tokens::hand_over`]).
    pub(super) fn take_over(&self, state: &mut WireReader<'_>) -> espalier_fs::Result<()> {
        let mut tokens = self.0.lock();
        for _ in 0..state.len(20)? {
            let (token, uid, node) = (state.bytes()?.try_into(), state.u32()?, NodeId(state.u64()?));
            // One of another length is of no use to its owner.
            tokens.extend(token.ok().map(|token| (token, uid, node)));
        }
        Ok(())
    }

    /// The directory of a token, which is used up.
    pub(super) fn take(&self, token: &Token, uid: u32) -> Result<NodeId, Errno> {
        let mut tokens = self.0.lock();
        let found = tokens.iter().position(|(known, of, _)| known == token && *of == uid);
        found.and_then(|at| tokens.remove(at)).map(|(_, _, node)| node).ok_or(Errno(libc::ESTALE))
    }
}
