use super::*;

#[test]
fn a_request_for_work_is_heard_by_a_worker_that_is_about_to_rest() {
    let (signal, limit) = (WorkSignal::default(), Duration::from_millis(500));
    signal.request_work();
    signal.request_work();
    assert!(!signal.wait_for_work(limit));
    assert!(!signal.is_work_requested.load(Ordering::Relaxed));
    signal.request_work();
    assert!(!signal.wait_for_work(limit));
}
