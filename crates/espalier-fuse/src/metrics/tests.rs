use super::*;
use crate::protocol::Header;
use crate::protocol::flags::opcode;
use std::sync::Arc;

/// The header of a request of this thread.
fn header(code: u32) -> Header {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut bytes = [0; 40];
    bytes[4..8].copy_from_slice(&code.to_ne_bytes());
    bytes[32..36].copy_from_slice(&thread.to_ne_bytes());
    Header::decode(&bytes).unwrap()
}

#[test]
fn a_snapshot_adds_up_all_workers_also_those_that_are_gone() {
    let metrics = Arc::new(Metrics::default());
    let serve = |code, served| {
        let recorder = Recorder::new(&metrics);
        let arrival = recorder.wait().arrived();
        recorder.served(&header(code), &arrival, &served);
    };
    let read = Served { errno: 0, bytes_in: 0, bytes_out: 4096 };
    let (one, other) = (Recorder::new(&metrics), Recorder::new(&metrics));
    for recorder in [&one, &other] {
        recorder.served(&header(opcode::READ), &recorder.wait().arrived(), &read);
    }
    drop(one);
    serve(opcode::READ, read);
    serve(opcode::UNLINK, Served { errno: 2, bytes_in: 5, bytes_out: 0 });
    let kinds = metrics.snapshot();
    let names: Vec<_> = kinds.iter().map(|kind| (kind.kind, kind.work.count())).collect();
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
        recorder.served(&header(opcode::LOOKUP), &recorder.wait().arrived(), &served);
    };
    serve();
    assert_eq!(metrics.callers(9), []);
    serve();
    serve();
    let callers = metrics.callers(9);
    assert_eq!(callers.len(), 1);
    assert_eq!((callers[0].pid, callers[0].requests, callers[0].bytes), (std::process::id(), 2, 14));
}
