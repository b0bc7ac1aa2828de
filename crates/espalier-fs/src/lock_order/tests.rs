use super::*;

fn is_refused(take: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(take).is_err()
}

#[test]
fn locks_are_taken_in_the_order_of_their_ranks() {
    let names = RankedMutex::new(Rank::Names, 1);
    let state = RankedMutex::with_key(Rank::State, 7, 2);
    let first = names.lock();
    let second = state.lock();
    drop((first, second));
    let _state = state.lock();
    assert!(is_refused(std::panic::AssertUnwindSafe(|| drop(names.lock()))));
}

#[test]
fn locks_of_one_rank_are_taken_in_the_order_of_their_keys() {
    let states = [3, 7].map(|id| RankedMutex::with_key(Rank::State, id, ()));
    {
        let _both = (states[0].lock(), states[1].lock());
    }
    let _second = states[1].lock();
    assert!(is_refused(std::panic::AssertUnwindSafe(|| drop(states[0].lock()))));
}
