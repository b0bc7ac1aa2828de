use super::*;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread::ThreadId;

/// Runs so many jobs at a time; returns the threads that did them.
fn at_a_time(threads: &StreamThreads, count: usize) -> Vec<ThreadId> {
    let (barrier, (sender, receiver)) = (Arc::new(Barrier::new(count)), channel());
    for _ in 0..count {
        let (barrier, sender) = (Arc::clone(&barrier), sender.clone());
        let job = move || {
            barrier.wait();
            sender.send(std::thread::current().id()).unwrap();
        };
        threads.run(Box::new(job)).unwrap();
    }
    drop(sender);
    receiver.iter().collect()
}

#[test]
fn no_job_waits_for_another_one_and_threads_are_used_again() {
    let threads = StreamThreads::default();
    let mut first = at_a_time(&threads, 20);
    first.sort_by_key(|id| format!("{id:?}"));
    first.dedup();
    assert_eq!(first.len(), 20);
    // Until the threads wait, and those that are too many have ended.
    while threads.shared.state.lock().idle < MAX_IDLE_THREADS {
        std::thread::yield_now();
    }
    let second = at_a_time(&threads, MAX_IDLE_THREADS);
    assert!(second.iter().all(|id| first.contains(id)), "no thread was started");
    let done = Arc::new(Mutex::new(0));
    for _ in 0..100 {
        let done = Arc::clone(&done);
        threads.run(Box::new(move || *done.lock() += 1)).unwrap();
    }
    drop(threads);
    assert_eq!(*done.lock(), 100, "what was begun is done");
}
