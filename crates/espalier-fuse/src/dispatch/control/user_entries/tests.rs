use super::*;

const LIMITS: Limits = Limits { per_user: 3, total: 7 };

fn all(entries: &UserEntries<u32>) -> Vec<(u32, u32)> {
    entries.iter().map(|(uid, entry)| (uid, *entry)).collect()
}

#[test]
fn a_flood_of_one_user_drops_only_entries_of_that_user() {
    let mut entries = UserEntries::new(LIMITS);
    entries.push(1, 10);
    (0..100).for_each(|n| entries.push(2, n));
    entries.push(1, 11);
    assert_eq!(all(&entries), [(1, 10), (2, 97), (2, 98), (2, 99), (1, 11)]);
}

#[test]
fn of_too_many_entries_the_oldest_of_the_user_with_most_is_dropped() {
    let mut entries = UserEntries::new(LIMITS);
    [(1, 0), (2, 1), (2, 2), (2, 3), (3, 4), (3, 5), (4, 6)]
        .into_iter()
        .for_each(|(uid, n)| entries.push(uid, n));
    assert_eq!(entries.len(), 7);
    entries.push(5, 7);
    assert_eq!(all(&entries), [(1, 0), (2, 2), (2, 3), (3, 4), (3, 5), (4, 6), (5, 7)]);
    entries.push(1, 8);
    assert_eq!(all(&entries), [(1, 0), (2, 2), (2, 3), (3, 5), (4, 6), (5, 7), (1, 8)]);
}

#[test]
fn entries_are_those_of_their_user_alone() {
    let mut entries = UserEntries::new(LIMITS);
    entries.push(1, 5);
    assert_eq!((entries.find(2, |n| *n == 5), entries.find(1, |n| *n == 5)), (None, Some(&5)));
    assert_eq!((entries.remove(2, |n| *n == 5), entries.remove(1, |n| *n == 4)), (None, None));
    assert_eq!((entries.remove(1, |n| *n == 5), entries.len()), (Some(5), 0));
}
