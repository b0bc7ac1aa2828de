use super::*;
use std::sync::atomic::AtomicUsize;

const FAR: Duration = Duration::from_secs(60);

fn answer(slot: usize, cpu: usize) -> HeldAnswer {
    HeldAnswer { slot, cpu, commit_id: 7, payload: None }
}

/// Returns when so many answers are held.
fn wait_for_held(hold: &Hold, count: usize) {
    while hold.with_held(<[_]>::len) < count {
        std::thread::yield_now();
    }
}

#[test]
fn answers_are_held_until_it_is_open_again() {
    let hold = Hold::closed(1);
    (0..3).for_each(|_| hold.add_registered(0));
    let (passed, far) = (AtomicUsize::new(0), Instant::now() + FAR);
    std::thread::scope(|scope| {
        for slot in 0..3 {
            let (hold, passed) = (&hold, &passed);
            scope.spawn(move || {
                for _ in 0..50 {
                    hold.pass(|| answer(slot, 0));
                    passed.fetch_add(1, Ordering::SeqCst);
                    // Between two commits a thread waits for a request.
                    while hold.stage.load(Ordering::SeqCst) == OPEN {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for round in 0..50 {
            hold.begin(&[0]);
            assert!(hold.close(far, || true));
            assert!(!hold.close(Instant::now(), || false), "the time is over");
            assert_eq!(passed.load(Ordering::SeqCst), 3 * round);
            hold.open();
            while passed.load(Ordering::SeqCst) < 3 * (round + 1) {
                std::thread::yield_now();
            }
        }
        hold.begin(&[0]);
    });
    hold.open();
    hold.pass(|| unreachable!("it is open"));
    hold.wait_while_closed();
}

#[test]
fn it_closes_when_queues_of_cpus_that_are_on_are_full_and_asks_the_rest_then() {
    let hold = Hold::opened(3);
    for cpu in [0, 0, 1, 2] {
        hold.add_registered(cpu);
    }
    hold.begin(&[0, 1, 9]);
    assert_eq!(hold.missing(), [(0, 2), (1, 1)]);
    let full = |state: &HoldState| state.missing == 0 && state.held.len() == 3;
    std::thread::scope(|scope| {
        let hold = &hold;
        for (slot, cpu) in [(0, 0), (2, 1)] {
            scope.spawn(move || hold.pass(|| answer(slot, cpu)));
        }
        wait_for_held(hold, 2);
        assert_eq!(hold.missing(), [(0, 1)]);
        let asked = || unreachable!("one queue is not full");
        assert!(!hold.close(Instant::now(), asked));
        assert!(!hold.close(Instant::now() + LOOK_INTERVAL, asked));
        let closes = scope.spawn(move || {
            let asked = AtomicUsize::new(0);
            let is_idle = || asked.fetch_add(1, Ordering::SeqCst) == 1;
            (hold.close(Instant::now() + FAR, is_idle), asked.into_inner())
        });
        scope.spawn(move || hold.pass(|| answer(1, 0)));
        assert_eq!(closes.join().unwrap(), (true, 2));
        assert!(full(&hold.state.lock()));
        hold.open();
    });
    assert!(hold.missing().is_empty());
    assert_eq!([0, 1, 2].map(|cpu| hold.registered(cpu)), [2, 1, 1]);
}

#[test]
fn what_is_gone_is_not_waited_for_and_nothing_is_registered_while_answers_are_held() {
    let hold = Hold::opened(2);
    for cpu in [0, 0, 1] {
        hold.register(cpu, || Ok(())).unwrap();
    }
    assert!(hold.register(1, || Err(std::io::ErrorKind::OutOfMemory.into())).is_err());
    assert_eq!([0, 1].map(|cpu| hold.registered(cpu)), [2, 1]);
    hold.begin(&[0]);
    std::thread::scope(|scope| {
        let hold = &hold;
        scope.spawn(move || hold.pass(|| answer(0, 0)));
        wait_for_held(hold, 1);
        let closes = scope.spawn(move || hold.close(Instant::now() + FAR, || true));
        let registers = scope.spawn(move || hold.register(1, || Ok(())));
        hold.remove_registered(0);
        assert!(closes.join().unwrap(), "the other entry of the queue is gone");
        assert_eq!(hold.unexpected(), None);
        assert_eq!((hold.registered(1), registers.is_finished()), (1, false));
        hold.open();
        registers.join().unwrap().unwrap();
    });
    assert_eq!([0, 1].map(|cpu| hold.registered(cpu)), [1, 2]);
}

#[test]
fn an_answer_of_a_cpu_that_is_none_of_those_on_shows() {
    let hold = Hold::opened(2);
    (0..2).for_each(|cpu| hold.add_registered(cpu));
    hold.begin(&[0]);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let hold = &hold;
            scope.spawn(move || hold.pass(|| answer(cpu, cpu)));
        }
        wait_for_held(&hold, 2);
        assert!(hold.close(Instant::now() + FAR, || true));
        assert_eq!(hold.unexpected(), Some(1));
        hold.open();
    });
    assert_eq!(hold.unexpected(), None);
}
