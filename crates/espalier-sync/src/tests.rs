use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_panic_leaves_the_locks_usable() {
    let mutex = Mutex::new(1);
    let lock = RwLock::new(1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        *mutex.lock() = 2;
        *lock.write() = 2;
        let _held = (mutex.lock(), lock.write());
        panic!("with both locks");
    }));
    assert!(panicked.is_err());
    assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
    assert_eq!(*lock.write(), 2);
    assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
    assert_eq!((mutex.into_inner(), lock.into_inner()), (2, 2));
}

#[test]
fn unlocked_lets_others_in_and_takes_the_lock_again() {
    let mutex = Mutex::new(1);
    let mut guard = mutex.lock();
    assert!(mutex.is_locked() && mutex.try_lock().is_none());
    assert_eq!(MutexGuard::unlocked(&mut guard, || std::mem::replace(&mut *mutex.lock(), 2)), 1);
    assert!(mutex.is_locked());
    assert_eq!(*guard, 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        MutexGuard::unlocked(&mut guard, || panic!("without the lock"));
    }));
    assert!(panicked.is_err() && mutex.is_locked());
    drop(guard);
    assert!(!mutex.is_locked());
}

#[test]
fn limits_on_waiting_are_kept() {
    let mutex = Mutex::new(());
    let changed = Condvar::new();
    let limit = Duration::from_millis(5);
    let mut guard = mutex.lock();
    assert!(thread::scope(|scope| scope.spawn(|| mutex.try_lock_for(limit).is_none()).join().unwrap()));
    // A wake-up without a notification is allowed, so it is asked again.
    let begin = Instant::now();
    while !changed.wait_for(&mut guard, limit).timed_out() {}
    while !changed.wait_until(&mut guard, begin + limit).timed_out() {}
    assert!(begin.elapsed() >= limit);
    assert!(mutex.is_locked());
    drop(guard);
    assert!(mutex.try_lock_for(Duration::ZERO).is_some());
}

#[test]
fn each_change_is_seen_by_the_thread_that_waits_for_it() {
    const ROUNDS: u32 = 2_000;
    let shared = Arc::new((Mutex::new(0_u32), Condvar::new()));
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            for _ in 0..ROUNDS {
                let mut turn = shared.0.lock();
                shared.1.wait_while(&mut turn, |turn| *turn % 2 == 0);
                *turn += 1;
                shared.1.notify_one();
            }
        })
    };
    for round in 0..ROUNDS {
        let mut turn = shared.0.lock();
        while *turn % 2 == 1 {
            shared.1.wait(&mut turn);
        }
        assert_eq!(*turn, 2 * round);
        *turn += 1;
        shared.1.notify_all();
    }
    other.join().unwrap();
    assert_eq!(*shared.0.lock(), 2 * ROUNDS);
}

/// Threads that share, share again and own one lock, each for a moment.
#[test]
fn a_shared_lock_is_owned_by_one_thread_that_no_other_shares_it_with() {
    const ROUNDS: u32 = 3_000;
    let lock = SharedLock::default();
    let (shared, owned) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let outer = lock.share();
                    shared.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(owned.load(Ordering::SeqCst), 0);
                    if round % 3 == 0 {
                        // An owner may have come in between; it waits for both.
                        thread::yield_now();
                        drop(lock.share_again());
                    }
                    assert_eq!(owned.load(Ordering::SeqCst), 0);
                    shared.fetch_sub(1, Ordering::SeqCst);
                    drop(outer);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let _guard = lock.own();
                    assert_eq!(owned.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    assert_eq!(shared.load(Ordering::SeqCst), 0);
                    owned.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    drop((lock.own(), ()));
    drop((lock.share(), lock.share_again()));
}

#[test]
fn a_thread_shares_a_lock_again_while_another_waits_to_own_it() {
    let lock = SharedLock::default();
    let guard = lock.share();
    thread::scope(|scope| {
        let owner = scope.spawn(|| drop(lock.own()));
        while !lock.is_wanted() {
            thread::yield_now();
        }
        let third = scope.spawn(|| drop(lock.share()));
        drop(lock.share_again());
        assert!(!owner.is_finished() && !third.is_finished());
        drop(guard);
        owner.join().unwrap();
        third.join().unwrap();
    });
}
