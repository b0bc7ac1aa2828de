use super::*;
use crate::protocol::Header;
use crate::protocol::flags::opcode;
use std::sync::Arc;
use std::time::Duration;

/// The header of a request of this thread.
fn header(code: u32) -> Header {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut bytes = [0; 40];
    bytes[4..8].copy_from_slice(&code.to_ne_bytes());
    bytes[32..36].copy_from_slice(&thread.to_ne_bytes());
    Header::decode(&bytes).unwrap()
}

/// A request of kind `code`.
fn serve_one(recorder: &Recorder, code: u32, served: Served) -> Option<Duration> {
    let (header, arrival) = (header(code), recorder.wait().arrived());
    let begun = recorder.begin(&header, &arrival, false);
    recorder.served(&header, &arrival, begun, &served)
}

#[test]
fn a_snapshot_adds_up_all_workers_also_those_that_are_gone() {
    let metrics = Arc::new(Metrics::default());
    let serve = |code, served| {
        let recorder = Recorder::new(&metrics);
        serve_one(&recorder, code, served);
    };
    let read = Served { errno: 0, bytes_in: 0, bytes_out: 4096 };
    let (one, other) = (Recorder::new(&metrics), Recorder::new(&metrics));
    for recorder in [&one, &other] {
        serve_one(recorder, opcode::READ, read);
    }
    drop(one);
    serve(opcode::READ, read);
    serve(opcode::UNLINK, Served { errno: 2, bytes_in: 5, bytes_out: 0 });
    let kinds = metrics.snapshot();
    let names: Vec<_> = kinds.iter().map(|kind| (kind.kind, kind.requests)).collect();
    assert_eq!(names, [("unlink", 1), ("read", 3)]);
    assert_eq!((kinds[0].errors, kinds[0].bytes_in), (1, 5));
    assert_eq!((kinds[1].errors, kinds[1].bytes_out), (0, 3 * 4096));
    assert_eq!(metrics.workers(), 2, "a new worker takes over what an old one had");
    // The first request of each recorder is in the sample, where the kernel counts such times.
    assert!(kinds[1].queue.count() <= 2);
    assert_eq!(metrics.each().collect::<Vec<_>>(), [("unlink", 1), ("read", 3)]);
}

#[test]
fn callers_are_recorded_while_they_are_asked_for() {
    let metrics = Arc::new(Metrics::default());
    let recorder = Recorder::new(&metrics);
    let serve = || {
        let served = Served { errno: 0, bytes_in: 3, bytes_out: 4 };
        serve_one(&recorder, opcode::LOOKUP, served);
    };
    serve();
    assert_eq!(metrics.callers(9), []);
    serve();
    serve();
    let callers = metrics.callers(9);
    assert_eq!(callers.len(), 1);
    assert_eq!((callers[0].pid, callers[0].requests, callers[0].bytes), (std::process::id(), 2, 14));
}

#[test]
fn all_are_counted_and_a_sample_is_timed() {
    let metrics = Arc::new(Metrics::default());
    let recorder = Recorder::new(&metrics);
    let served = Served { errno: 0, bytes_in: 1, bytes_out: 2 };
    let count = 100_000;
    let timed = |code| (0..count).filter(|_| serve_one(&recorder, code, served).is_some()).count() as u64;
    let (of_look_ups, of_syncs) = (timed(opcode::LOOKUP), timed(opcode::FSYNC));
    assert!((count / 20..count / 12).contains(&of_look_ups), "{of_look_ups}: one in sixteen");
    assert_eq!(of_syncs, count);
    let [look_ups, syncs] = metrics.snapshot().try_into().unwrap();
    assert_eq!((look_ups.requests, look_ups.bytes_in, look_ups.bytes_out), (count, count, 2 * count));
    // The first ones stand for themselves.
    assert_eq!(look_ups.work.count(), 16 + 16 * (of_look_ups - 16));
    assert_eq!((syncs.requests, syncs.work.count()), (count, count));
    // Where each is to be timed, the histogram still has the sample.
    let (header, arrival) = (header(opcode::LOOKUP), recorder.wait().arrived());
    let times = |snapshot: &KindSnapshot| snapshot.work.count();
    let begun = recorder.begin(&header, &arrival, true);
    assert!(recorder.served(&header, &arrival, begun, &served).is_some());
    assert!([0, 16].contains(&(times(&metrics.snapshot()[0]) - times(&look_ups))));
}
