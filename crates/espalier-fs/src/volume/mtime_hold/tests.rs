use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn mtime(time: SetTime) -> SetAttr {
    SetAttr { mtime: Some(time), ..SetAttr::default() }
}

#[test]
fn a_hold_lasts_until_the_pages_are_flushed() {
    let mut hold = MtimeHold::default();
    assert_eq!(hold.arrival(SECOND), Arrival::Counts);
    hold.set(&mtime(SetTime::At(7)), SECOND);
    let Arrival::Held(Some(number)) = hold.arrival(SECOND) else { panic!("{hold:?}") };
    hold.begin_flush();
    assert_eq!(hold.arrival(2 * SECOND), Arrival::Held(None));
    hold.end_flush(number);
    assert_eq!(hold.arrival(2 * SECOND), Arrival::Counts);
}

#[test]
fn a_flush_ends_only_the_hold_that_it_was_made_for() {
    let mut hold = MtimeHold::default();
    hold.set(&mtime(SetTime::At(7)), SECOND);
    let Arrival::Held(Some(first)) = hold.arrival(SECOND) else { panic!("{hold:?}") };
    hold.begin_flush();
    hold.set(&mtime(SetTime::At(8)), SECOND);
    hold.end_flush(first);
    assert!(matches!(hold.arrival(SECOND), Arrival::Held(Some(second)) if second != first));
}

#[test]
fn a_hold_ends_with_another_time_and_in_any_case() {
    let mut hold = MtimeHold::default();
    let (size, mode) = (SetAttr { size: Some(1), ..SetAttr::default() }, SetAttr::default());
    let at = mtime(SetTime::At(7));
    for other in [mtime(SetTime::Now), size] {
        hold.set(&at, SECOND);
        hold.set(&mode, SECOND);
        assert!(matches!(hold.arrival(SECOND), Arrival::Held(_)), "{other:?}");
        hold.set(&other, SECOND);
        assert_eq!(hold.arrival(SECOND), Arrival::Counts, "{other:?}");
    }
    hold.set(&at, SECOND);
    assert_eq!(hold.arrival(SECOND + LONGEST_HOLD + SECOND), Arrival::Counts);
    hold.end();
    assert_eq!(hold.arrival(SECOND), Arrival::Counts);
}

#[test]
fn a_few_small_files_a_second_are_flushed_at_once() {
    let flushes = PromptFlushes::default();
    assert!(!flushes.take(PROMPT_FLUSH_BYTES + 1, SECOND) && !flushes.take(0, SECOND));
    let taken = (0..1000).filter(|_| flushes.take(1, SECOND)).count();
    assert_eq!(taken, PROMPT_FLUSHES_PER_SECOND as usize);
    assert!(flushes.take(1, 2 * SECOND));
}

#[test]
fn a_hold_goes_on_in_another_server() {
    let mut hold = MtimeHold::default();
    assert_eq!(hold.rest(SECOND), None);
    hold.set(&mtime(SetTime::At(7)), SECOND);
    let rest = hold.rest(5 * SECOND).unwrap();
    assert_eq!(rest, (1, LONGEST_HOLD - 4 * SECOND));
    let now = 1000 * SECOND;
    let resumed = MtimeHold::resume(rest, now);
    assert_eq!(resumed.arrival(now), Arrival::Held(Some(1)));
    assert_eq!(resumed.arrival(now + LONGEST_HOLD - 3 * SECOND), Arrival::Counts);
    assert_eq!(hold.rest(SECOND + 2 * LONGEST_HOLD), None);
}
