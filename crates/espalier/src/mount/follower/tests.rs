use super::*;
use anyhow::bail;

/// A store whose states are numbers, and the times at which the old ones were last current.
#[derive(Default)]
struct Numbers {
    /// The state of the store; `None` while it is away.
    newest: Option<u32>,
    shown: u32,
    /// A state that cannot be opened.
    broken: Option<u32>,
    old: Vec<Instant>,
    /// True if programs hold every state.
    held: bool,
}

impl Followed for Numbers {
    type State = u32;

    fn close_states(&self, now: Instant) -> usize {
        let stays = |old: &&Instant| self.held && now - **old < GRACE;
        self.old.iter().filter(stays).count()
    }

    fn is_replaced(&self) -> Result<bool> {
        match self.newest {
            Some(newest) => Ok(newest != self.shown),
            None => bail!("the store is away"),
        }
    }

    fn newer(&self) -> Result<Option<u32>> {
        Ok(self.is_replaced()?.then_some(self.newest).flatten())
    }

    fn show(&mut self, state: u32, last_current: Instant) -> Result<()> {
        if self.broken == Some(state) {
            bail!("it cannot be opened");
        }
        self.old.push(last_current);
        self.shown = state;
        Ok(())
    }
}

/// A clock that shows whole seconds since the beginning.
struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: u64) -> Instant {
        self.0 + Duration::from_secs(seconds)
    }
}

#[test]
fn the_time_of_a_state_counts_from_the_last_look_that_found_it_current() {
    let clock = Clock(Instant::now());
    let mut store = Numbers { newest: Some(0), ..Default::default() };
    let mut last_current = clock.at(0);
    let mut step = |store: &mut Numbers, second| step(store, clock.at(second), &mut last_current);
    step(&mut store, 2).unwrap();
    step(&mut store, 4).unwrap();
    store.newest = Some(1);
    step(&mut store, 6).unwrap();
    assert_eq!((store.shown, &store.old[..]), (1, &[clock.at(4)][..]));
    // What was shown by that look was current then.
    store.newest = Some(2);
    step(&mut store, 8).unwrap();
    assert_eq!((store.shown, store.old[1]), (2, clock.at(6)));
    // The store is away, and the state is replaced at any time meanwhile.
    step(&mut store, 10).unwrap();
    store.newest = None;
    for second in (12..500).step_by(2) {
        step(&mut store, second).unwrap_err();
    }
    store.newest = Some(7);
    step(&mut store, 500).unwrap();
    assert_eq!((store.shown, store.old[2]), (7, clock.at(10)));
    // A state that cannot be opened has still replaced the one before.
    (store.newest, store.broken) = (Some(8), Some(8));
    step(&mut store, 502).unwrap_err();
    step(&mut store, 504).unwrap_err();
    store.newest = Some(9);
    step(&mut store, 506).unwrap();
    assert_eq!((store.shown, store.old[3]), (9, clock.at(500)));
}

#[test]
fn a_state_that_is_held_back_at_the_limit_does_not_get_more_time() {
    let clock = Clock(Instant::now());
    let mut store = Numbers { newest: Some(0), held: true, ..Default::default() };
    let mut last_current = clock.at(0);
    let mut step = |store: &mut Numbers, second| step(store, clock.at(second), &mut last_current);
    for state in 1..=MAX_OLD_STATES as u32 {
        store.newest = Some(state);
        step(&mut store, u64::from(state)).unwrap();
    }
    let shown = store.shown;
    // At the limit the root is asked for: the state is that of the store for four minutes more.
    for second in 5..240 {
        step(&mut store, second).unwrap();
    }
    store.newest = Some(100);
    for second in 240..GRACE.as_secs() {
        step(&mut store, second).unwrap();
        assert_eq!(store.shown, shown);
    }
    // The first old state ends; the one that is shown was last current long before.
    step(&mut store, GRACE.as_secs()).unwrap();
    assert_eq!((store.shown, store.old.last()), (100, Some(&clock.at(239))));
}
