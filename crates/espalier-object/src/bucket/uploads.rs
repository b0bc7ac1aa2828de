//! Uploads: how many large puts are on a link at a time, by how long they take, and in what order.
//!
//! Protocol: a large put waits for its [`Turn`], and tells at its end how long it took. Its time
//! limit begins with the turn, so those that wait are not cut.
//!
//! What is under way together shares the link, so puts take the longer the more there are. There is
//! one more after each that ended in a quarter of its time limit, so that what a link carries is
//! used, and half as many after each that was cut: one at least, so the limit is reached only by a
//! link that cannot carry one put in its time.
//!
//! Puts for which callers wait have their turns before those of maintenance, which takes half of
//! the turns at most. So a sync waits for no put of a compaction, unless there is one turn in all.
//! Maintenance has a turn now and then however many callers wait, since what it frees is needed.

use super::Errand;
use espalier_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Puts that are under way at a time, at first and at most.
const FIRST_WIDTH: usize = 4;
const MAX_WIDTH: usize = 16;

/// What part of its time limit a put may take after which there is one more at a time.
const QUICK_PART: u32 = 4;

/// Turns of callers that maintenance lets pass. What it frees must keep up with what they write:
/// with more, a writer without a pause would store several times the live bytes.
const MAX_PASSED: u32 = 3;

/// The turns of large puts.
#[derive(Debug)]
pub(super) struct Uploads(Mutex<Turns>);

/// How many turns there are, and what has or wants one.
#[derive(Debug)]
struct Turns {
    /// How many there shall be: fewer than are taken while puts are under way that began before.
    wanted: usize,
    callers: Queue,
    maintenance: Queue,
    /// Turns of callers since maintenance had one, or did not want one.
    passed: u32,
}

/// Puts of one kind.
#[derive(Debug, Default)]
struct Queue {
    /// Those that have a turn.
    taken: usize,
    /// Those that wait for one, oldest first.
    waiting: VecDeque<oneshot::Sender<Turn>>,
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
        let (callers, maintenance) = Default::default();
        Self(Mutex::new(Turns { wanted: FIRST_WIDTH, callers, maintenance, passed: 0 }))
    }

    /// Waits for a turn. There is one in the end: one at least is kept, and each is given back.
    pub(super) async fn turn(self: &Arc<Self>, errand: Errand) -> Option<Turn> {
        let (sender, receiver) = oneshot::channel();
        {
            let turns = &mut *self.0.lock();
            turns.queue(errand).waiting.push_back(sender);
            turns.hand_out(self);
        }
        receiver.await.ok()
    }
}

impl Turns {
    fn queue(&mut self, errand: Errand) -> &mut Queue {
        match errand {
            Errand::Caller => &mut self.callers,
            Errand::Maintenance => &mut self.maintenance,
        }
    }

    fn free(&self) -> usize {
        self.wanted.saturating_sub(self.callers.taken + self.maintenance.taken)
    }

    /// What has the next turn, if there is one.
    fn next(&self) -> Option<Errand> {
        let may_maintain =
            !self.maintenance.waiting.is_empty() && self.maintenance.taken < self.wanted.div_ceil(2);
        let is_overdue = may_maintain && self.passed >= MAX_PASSED;
        // What maintenance took when there were more turns is no loss of the callers.
        let used = self.callers.taken + self.maintenance.taken.min(self.wanted.div_ceil(2));
        if !self.callers.waiting.is_empty() && !is_overdue && used < self.wanted {
            return Some(Errand::Caller);
        }
        (self.free() > 0 && may_maintain).then_some(Errand::Maintenance)
    }

    /// Gives the turns that are free to what waits for them.
    fn hand_out(&mut self, uploads: &Arc<Uploads>) {
        while let Some(errand) = self.next() {
            let Some(sender) = self.queue(errand).waiting.pop_front() else { return };
            let turn = Turn { uploads: Some(Arc::clone(uploads)), errand };
            // A put that waits no more was given up.
            if let Err(mut unwanted) = sender.send(turn) {
                unwanted.uploads = None;
                continue;
            }
            self.queue(errand).taken += 1;
            let waits = errand == Errand::Caller && !self.maintenance.waiting.is_empty();
            self.passed = if waits { self.passed.saturating_add(1) } else { 0 };
        }
    }
}

/// The turn of one put. One that is dropped has said nothing about the link.
#[derive(Debug)]
pub(super) struct Turn {
    /// `None` once it was given back.
    uploads: Option<Arc<Uploads>>,
    errand: Errand,
}

impl Turn {
    /// Gives the turn back.
    pub(super) fn ended(mut self, took: Took) {
        self.give_back(took);
    }

    fn give_back(&mut self, took: Took) {
        let Some(uploads) = self.uploads.take() else { return };
        let turns = &mut *uploads.0.lock();
        match took {
            Took::Quick => turns.wanted = (turns.wanted + 1).min(MAX_WIDTH),
            Took::Slow => {}
            Took::Cut => turns.wanted = (turns.wanted / 2).max(1),
        }
        let queue = turns.queue(self.errand);
        queue.taken = queue.taken.saturating_sub(1);
        turns.hand_out(&uploads);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.give_back(Took::Slow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn free(uploads: &Uploads) -> usize {
        uploads.0.lock().free()
    }

    #[test]
    fn turns_follow_what_the_link_carries() {
        let uploads = Arc::new(Uploads::new());
        let turn = || run(uploads.turn(Errand::Caller)).unwrap();
        let all: Vec<Turn> = (0..FIRST_WIDTH).map(|_| turn()).collect();
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

    fn polled<T>(future: &mut Pin<Box<impl Future<Output = Option<T>>>>) -> Option<T> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => None,
        }
    }

    /// The errands of the puts that have their turns when one after the other ends, in that order.
    fn order(uploads: &Arc<Uploads>, first: Vec<Turn>, waiting: &[Errand]) -> Vec<Errand> {
        let mut futures: Vec<_> = waiting.iter().map(|errand| Box::pin(uploads.turn(*errand))).collect();
        futures.iter_mut().for_each(|future| assert!(polled(future).is_none(), "there is no turn left"));
        let (mut turns, mut order) = (VecDeque::from(first), Vec::new());
        while let Some(turn) = turns.pop_front() {
            turn.ended(Took::Slow);
            futures.retain_mut(|future| {
                let Some(turn) = polled(future) else { return true };
                order.push(turn.errand);
                turns.push_back(turn);
                false
            });
        }
        order
    }

    #[test]
    fn puts_of_callers_pass_those_of_maintenance() {
        use Errand::{Caller, Maintenance};
        let uploads = Arc::new(Uploads::new());
        let all = || (0..FIRST_WIDTH).map(|_| run(uploads.turn(Caller)).unwrap()).collect::<Vec<Turn>>();
        let waiting = [Maintenance, Maintenance, Maintenance, Caller, Maintenance, Caller];
        assert_eq!(
            order(&uploads, all(), &waiting),
            [Caller, Caller, Maintenance, Maintenance, Maintenance, Maintenance]
        );
        // However many wait, maintenance takes half of the turns, and the others are at hand.
        let mut compaction: Vec<_> = (0..8).map(|_| Box::pin(uploads.turn(Maintenance))).collect();
        let begun: Vec<Turn> = compaction.iter_mut().filter_map(polled).collect();
        assert_eq!((begun.len(), free(&uploads)), (FIRST_WIDTH / 2, FIRST_WIDTH / 2));
        let sync = run(uploads.turn(Caller)).unwrap();
        assert_eq!(free(&uploads), FIRST_WIDTH / 2 - 1);
        // Those that are given up leave no turn behind.
        drop((compaction, begun, sync));
        assert_eq!(free(&uploads), FIRST_WIDTH);
    }

    #[test]
    fn callers_without_end_leave_maintenance_a_turn_now_and_then() {
        use Errand::{Caller, Maintenance};
        let uploads = Arc::new(Uploads::new());
        let all = (0..FIRST_WIDTH).map(|_| run(uploads.turn(Caller)).unwrap()).collect::<Vec<Turn>>();
        let waiting: Vec<Errand> = [Maintenance; 2].into_iter().chain([Caller; 40]).collect();
        let order = order(&uploads, all, &waiting);
        let places: Vec<usize> = (0..order.len()).filter(|at| order[*at] == Maintenance).collect();
        assert_eq!(places.len(), 2);
        assert_eq!(places, [3, 7]);
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
