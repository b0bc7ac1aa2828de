use super::*;

#[test]
fn keys_never_change_the_interval_the_other_way() {
    let begun = Instant::now();
    let seconds = Duration::from_secs_f64;
    for (interval, longer, shorter) in
        [(1.0, 2.0, 0.5), (40.0, 60.0, 20.0), (3600.0, 3600.0, 1800.0), (0.3, 0.6, 0.25), (0.1, 0.2, 0.1)]
    {
        let mut pace = Pace::new(seconds(interval), begun);
        pace.lengthen();
        assert_eq!(pace.interval, seconds(longer));
        let mut pace = Pace::new(seconds(interval), begun);
        pace.shorten();
        assert_eq!(pace.interval, seconds(shorter));
    }
}

#[test]
fn a_shorter_interval_does_not_wait_for_the_old_one() {
    let begun = Instant::now();
    let seconds = Duration::from_secs;
    let mut pace = Pace::new(seconds(64), begun);
    assert_eq!(pace.due, begun + MAX_FIRST_INTERVAL);
    pace.shorten();
    assert_eq!(pace.due, begun + MAX_FIRST_INTERVAL, "not later than before");
    pace.go_on(begun);
    assert_eq!(pace.due, begun + seconds(32));
    pace.shorten();
    assert_eq!(pace.due, begun + seconds(16));
    pace.lengthen();
    assert_eq!((pace.interval, pace.due), (seconds(32), begun + seconds(16)), "the next one is longer");
}
