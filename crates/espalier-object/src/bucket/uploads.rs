//! Uploads: how many large puts are on a link at a time, by how long they take.
//!
//! Protocol: a large put waits for its [`Turn`], and tells at its end how long it took. Its time
//! limit begins with the turn, so those that wait are not cut.
//!
//! What is under way together shares the link, so puts take the longer the more there are. There is
//! one more after each that ended in a quarter of its time limit, so that what a link carries is
//! used, and half as many after each that was cut: one at least, so the limit is reached only by a
//! link that cannot carry one put in its time.

use espalier_sync::Mutex;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Puts that are under way at a time, at first and at most.
const FIRST_WIDTH: usize = 4;
const MAX_WIDTH: usize = 16;

/// What part of its time limit a put may take after which there is one more at a time.
const QUICK_PART: u32 = 4;

/// The turns of large puts.
#[derive(Debug)]
pub(super) struct Uploads {
    turns: Semaphore,
    width: Mutex<Width>,
}

/// How many turns there are.
#[derive(Debug)]
struct Width {
    /// How many there shall be.
    wanted: usize,
    /// How many there are: more than wanted while puts are under way that began before.
    issued: usize,
}

/// How a put went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    /// It ended well, long before its time limit.
    Quick,
    /// It says nothing about the link, or that no more puts should be on it.
    Slow,
    /// Its time limit ended it.
    Cut,
}

impl Took {
    /// How a put went that took `time` and may take `limit`; `outcome` is true if it succeeded, and
    /// an error if the limit ended it.
    pub(super) fn of<E>(time: Duration, limit: Duration, outcome: Result<bool, E>) -> Self {
        match outcome {
            Err(_) => Self::Cut,
            Ok(true) if time * QUICK_PART < limit => Self::Quick,
            Ok(_) => Self::Slow,
        }
    }
}

impl Uploads {
    pub(super) fn new() -> Self {
        let width = Width { wanted: FIRST_WIDTH, issued: FIRST_WIDTH };
        Self { turns: Semaphore::new(FIRST_WIDTH), width: Mutex::new(width) }
    }

    /// Waits for a turn. There is one in the end: turns are never closed, and one at least is kept.
    pub(super) async fn turn(&self) -> Option<Turn<'_>> {
        let permit = self.turns.acquire().await.ok()?;
        Some(Turn { uploads: self, permit })
    }
}

/// The turn of one put.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    uploads: &'a Uploads,
    permit: SemaphorePermit<'a>,
}

impl Turn<'_> {
    /// Gives the turn back.
    pub(super) fn ended(self, took: Took) {
        let Self { uploads, permit } = self;
        let width = &mut *uploads.width.lock();
        match took {
            Took::Quick => width.wanted = (width.wanted + 1).min(MAX_WIDTH),
            Took::Slow => {}
            Took::Cut => width.wanted = (width.wanted / 2).max(1),
        }
        if width.issued > width.wanted {
            permit.forget();
            width.issued -= 1;
            width.issued -= uploads.turns.forget_permits(width.issued - width.wanted);
        } else {
            uploads.turns.add_permits(width.wanted - width.issued);
            width.issued = width.wanted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn free(uploads: &Uploads) -> usize {
        uploads.turns.available_permits()
    }

    #[test]
    fn turns_follow_what_the_link_carries() {
        let uploads = Uploads::new();
        let turn = || run(uploads.turn()).unwrap();
        let all: Vec<Turn<'_>> = (0..FIRST_WIDTH).map(|_| turn()).collect();
        assert_eq!(free(&uploads), 0);
        // All of them are cut: one is left.
        all.into_iter().for_each(|turn| turn.ended(Took::Cut));
        assert_eq!(free(&uploads), 1);
        turn().ended(Took::Slow);
        assert_eq!(free(&uploads), 1);
        for more in 2..100 {
            turn().ended(Took::Quick);
            assert_eq!(free(&uploads), more.min(MAX_WIDTH));
        }
        // One is cut, and nothing else is under way.
        turn().ended(Took::Cut);
        assert_eq!(free(&uploads), MAX_WIDTH / 2);
        // One is cut while others are under way, which end well.
        let (first, second, third) = (turn(), turn(), turn());
        first.ended(Took::Cut);
        assert_eq!(free(&uploads), MAX_WIDTH / 4 - 2);
        second.ended(Took::Quick);
        third.ended(Took::Slow);
        assert_eq!(free(&uploads), MAX_WIDTH / 4 + 1);
    }

    #[test]
    fn what_ends_long_before_its_limit_is_quick() {
        let took =
            |seconds, outcome| Took::of(Duration::from_secs(seconds), Duration::from_secs(100), outcome);
        assert_eq!(took(24, Ok::<bool, ()>(true)), Took::Quick);
        assert_eq!(took(26, Ok::<bool, ()>(true)), Took::Slow);
        // A failure is no sign of a link that carries more.
        assert_eq!(took(1, Ok::<bool, ()>(false)), Took::Slow);
        assert_eq!(took(100, Err(())), Took::Cut);
    }
}
