use super::*;

const OWNER: u32 = 7;
const LIMIT: Duration = Duration::from_secs(5);

fn places() -> (Places, Instant) {
    (Places::new(OWNER, LIMIT), Instant::now())
}

/// Takes places until there is none, each with a session; returns how many there were.
fn fill(places: &mut Places, uid: u32, from: u64, now: Instant) -> u64 {
    let taken = (from..from + 1000).take_while(|number| {
        let is_taken = places.take(*number, uid, now).is_some();
        places.begin(*number);
        is_taken
    });
    taken.count() as u64
}

#[test]
fn no_other_user_locks_root_and_the_owner_out() {
    let (mut places, now) = places();
    assert_eq!(fill(&mut places, 1, 1000, now), 64);
    assert_eq!(fill(&mut places, 2, 2000, now), 64);
    assert_eq!(fill(&mut places, 3, 3000, now), 0);
    assert_eq!(fill(&mut places, OWNER, 4000, now), 64);
    assert_eq!(fill(&mut places, 0, 5000, now), 128);
    places.leave(1000);
    assert_eq!(fill(&mut places, 3, 6000, now), 1);
}

#[test]
fn connections_without_a_session_give_way_to_later_ones() {
    let (mut places, now) = places();
    for number in 0..16 {
        assert_eq!(places.take(number, 1, now), Some(None));
    }
    assert_eq!(places.take(16, 1, now), Some(Some(0)), "the oldest of the user");
    places.leave(0);
    places.begin(1);
    assert_eq!(places.take(17, 1, now), Some(None));
    assert_eq!(places.take(18, 1, now), Some(Some(2)), "a session is not ended");
    // Of many users, the one with most of them has to give way.
    for number in 100..148 {
        assert_eq!(places.take(number, number as u32, now), Some(None), "{number}");
    }
    assert_eq!(places.take(148, 148, now), Some(Some(3)));
    assert_eq!(places.take(149, 0, now), Some(None), "root and the owner are counted apart");
    assert_eq!(places.take(150, OWNER, now), Some(None));
}

#[test]
fn a_connection_without_a_session_has_its_time() {
    let (mut places, now) = places();
    assert_eq!(places.next_end(), None);
    let second = Duration::from_secs(1);
    for number in 0..3 {
        places.take(number, 0, now + second * number as u32);
    }
    places.begin(1);
    assert_eq!(places.next_end(), Some(now + LIMIT));
    assert_eq!(places.overdue(now + LIMIT - second), []);
    assert_eq!(places.overdue(now + LIMIT), [0]);
    places.begin(0);
    assert_eq!(places.overdue(now + LIMIT), [], "it is told once");
    assert_eq!(places.next_end(), Some(now + LIMIT + 2 * second));
    assert_eq!(places.overdue(now + 10 * LIMIT), [2]);
    assert_eq!(places.next_end(), None);
}
