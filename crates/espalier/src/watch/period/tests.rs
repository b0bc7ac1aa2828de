use super::*;
use crate::watch::figures::BackPressureFigures;
use crate::watch::samples::{figures, object_figures};

/// What a server says that took the mount over from that of [`figures`].
fn of_a_new_server(up_seconds: f64) -> Figures {
    let mut new = figures();
    new.up_seconds = up_seconds;
    new.mount.pid += 1;
    new.kinds.truncate(1);
    new.callers = vec![CallerFigures { requests: 4100, ..new.callers[0].clone() }];
    new.back_pressure = BackPressureFigures { slowed_seconds: 0.1, ..BackPressureFigures::default() };
    new
}

#[test]
fn figures_of_a_new_server_count_from_its_beginning() {
    let before = figures();
    // It may have served for longer than the one before, when that was asked last.
    for up_seconds in [0.5, 50.0] {
        let after = of_a_new_server(up_seconds);
        let period = Period::between(Some(&before), &after);
        assert_eq!(period.seconds, up_seconds);
        assert_eq!(period.totals()[0], 9001);
        assert_eq!(period.callers[0].requests, 4100);
        assert_eq!(period.stalls, [0.0, 0.1, 0.0]);
        assert_eq!(period.device.syncs.count(), 11);
    }
}

#[test]
fn no_figure_of_a_period_is_negative() {
    let mut after = figures();
    after.up_seconds += 1.0;
    after.back_pressure.slowed_seconds -= 0.1;
    let period = Period::between(Some(&figures()), &after);
    assert_eq!((period.seconds, period.stalls), (1.0, [0.0; 3]));
    assert_eq!(period.totals(), [0; 4]);
}

#[test]
fn requests_to_an_object_store_are_those_of_the_period() {
    assert!(Period::between(None, &figures()).json()["objects"].is_null());
    let before = object_figures();
    let mut after = before.clone();
    after.up_seconds += 1.0;
    let objects = after.objects.as_mut().unwrap();
    (objects.puts, objects.put_bytes, objects.dead_bytes) = (30, 50 << 20, 2 << 30);
    let told = &Period::between(Some(&before), &after).json()["objects"];
    assert_eq!((&told["puts"], &told["put_bytes"]), (&json!(6), &json!(2 << 20)), "{told}");
    assert_eq!((&told["gets"], &told["repeats"]), (&json!(0), &json!(0)), "{told}");
    assert_eq!((&told["live_bytes"], &told["dead_bytes"]), (&json!(8_u64 << 30), &json!(2_u64 << 30)));
    assert_eq!(told["journal_records"], 321);
}
