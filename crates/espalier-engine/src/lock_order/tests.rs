use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Outer = RankedMutex<u32, { rank::COMMIT }>;
type Inner = RankedRwLock<u32, { rank::INDEX_TABLE }>;

fn panics(work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn locks_are_taken_from_the_outside_in() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    for _ in 0..2 {
        let held = outer.lock();
        assert_eq!((*held, *inner.read()), (1, 2));
        *inner.write() += 0;
    }
    // Given back in the other order.
    let (first, second) = (outer.lock(), inner.read());
    drop(first);
    drop(second);
    drop(outer.lock());
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
fn the_other_way_round_panics() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    assert!(panics(|| {
        let _inner = inner.read();
        outer.lock();
    }));
    // Nothing is held any more.
    drop((outer.lock(), inner.read()));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
fn the_same_rank_twice_panics() {
    let (one, other) = (Inner::new(1), Inner::new(2));
    assert!(panics(|| {
        let _one = one.read();
        other.read();
    }));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
fn what_does_not_wait_may_be_of_any_rank_and_counts_afterwards() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    let held = inner.read();
    let first = outer.try_lock().expect("nothing holds it");
    drop(held);
    drop(inner.read());
    assert!(panics(|| {
        Outer::new(3).lock();
    }));
    drop(first);
}

#[test]
fn unlocked_gives_the_rank_back() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    let mut held = outer.lock();
    held.unlocked(|| drop(outer.lock()));
    assert!(panics(|| held.unlocked(|| panic!("in the meantime"))));
    drop(inner.read());
    drop(held);
    drop(outer.lock());
}
