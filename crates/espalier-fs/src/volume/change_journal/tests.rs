use super::*;
use crate::model::layout::METADATA;
use espalier_engine::IndexId;

const SECOND: Duration = Duration::from_secs(1);
const INDEX: IndexId = IndexId { volume: 1, index: METADATA };

/// Commits a batch that was made by `fill`, at `now`.
fn commit(journal: &ChangeJournal, now: Duration, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    let planned = journal.plan(&batch).expect("watched");
    let mut id = 100;
    journal.note(planned, now, || {
        id += 1;
        id
    });
}

fn touch(journal: &ChangeJournal, now: Duration, key: &[u8]) {
    commit(journal, now, |batch| batch.delete(INDEX, key));
}

/// A journal that watches `w/` for so long that its tokens are good, and such a token.
fn watched() -> (ChangeJournal, String) {
    let journal = ChangeJournal::new();
    assert!(journal.plan(&Batch::new()).is_none());
    let first = journal.watch(b"w\x01", 7, SECOND);
    let second =
        journal.changed(b"w\x01", of_tree(first.token.as_bytes()), 5 * SECOND, None).expect("watched");
    assert!(first.everything && second.everything);
    (journal, second.token)
}

fn of_tree(token: &[u8]) -> (&[u8], Knowledge) {
    (token, Knowledge::OfTree)
}

fn paths(journal: &ChangeJournal, prefix: &[u8], token: &str, now: Duration) -> Vec<String> {
    let changed = journal.changed(prefix, of_tree(token.as_bytes()), now, None).expect("watched");
    assert!(!changed.everything);
    changed.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn what_is_told_is_told_again_for_a_second() {
    let (journal, token) = watched();
    touch(&journal, 10 * SECOND, b"w\x01d\x01\0a");
    touch(&journal, 10 * SECOND, b"elsewhere\x01\0a");
    touch(&journal, 10 * SECOND, b"w\x01.git\x01\0index");
    assert_eq!(paths(&journal, b"w\x01", &token, 10 * SECOND), [".git/index", "d/a"]);
    let soon = journal
        .changed(b"w\x01", of_tree(token.as_bytes()), 10 * SECOND + SECOND / 2, None)
        .expect("watched")
        .token;
    assert_eq!(paths(&journal, b"w\x01", &soon, 12 * SECOND), [".git/index", "d/a"]);
    let later =
        journal.changed(b"w\x01", of_tree(token.as_bytes()), 12 * SECOND, None).expect("watched").token;
    assert_eq!(paths(&journal, b"w\x01", &later, 13 * SECOND), Vec::<String>::new());
}

#[test]
fn a_move_takes_the_watch_along() {
    let (journal, token) = watched();
    touch(&journal, 10 * SECOND, b"w\x01\0a");
    commit(&journal, 11 * SECOND, |batch| batch.move_range(INDEX, b"w\x01", b"v\x01"));
    assert_eq!(journal.changed(b"w\x01", of_tree(token.as_bytes()), 12 * SECOND, None), None);
    assert_eq!(paths(&journal, b"v\x01", &token, 12 * SECOND), ["a"]);
    touch(&journal, 13 * SECOND, b"v\x01\0b");
    assert_eq!(paths(&journal, b"v\x01", &token, 14 * SECOND), ["a", "b"]);
}

#[test]
fn a_change_of_a_tree_around_is_everything_and_one_below_a_path() {
    let (journal, token) = watched();
    commit(&journal, 10 * SECOND, |batch| batch.clone_range(INDEX, b"x\x01", b"w\x01d\x01"));
    commit(&journal, 10 * SECOND, |batch| batch.delete_range(INDEX, KeyRange::prefix(b"w\x01e\x01")));
    assert_eq!(paths(&journal, b"w\x01", &token, 11 * SECOND), ["d/", "e/"]);
    journal.note_tree(b"w\x01", 12 * SECOND);
    assert!(
        journal.changed(b"w\x01", of_tree(token.as_bytes()), 13 * SECOND, None).expect("watched").everything
    );
    commit(&journal, 14 * SECOND, |batch| batch.delete_range(INDEX, KeyRange::all()));
    assert_eq!(journal.changed(b"w\x01", of_tree(token.as_bytes()), 15 * SECOND, None), None);
}

#[test]
fn many_changes_are_gathered_and_none_is_lost() {
    let (journal, token) = watched();
    for number in 0..40_000 {
        touch(&journal, 10 * SECOND, format!("w\x01target\x01d{}\x01\0f{number}", number % 7).as_bytes());
    }
    touch(&journal, 10 * SECOND, b"w\x01src\x01\0a");
    let told = paths(&journal, b"w\x01", &token, 11 * SECOND);
    assert_eq!(told, ["src/a", "target/"]);
    // At the top itself there is no directory that stands for all.
    for number in 0..40_000 {
        touch(&journal, 12 * SECOND, format!("w\x01\0f{number}").as_bytes());
    }
    let all = journal.changed(b"w\x01", of_tree(token.as_bytes()), 13 * SECOND, None).expect("watched");
    assert!(all.everything);
    touch(&journal, 20 * SECOND, b"w\x01\0b");
    let told = paths(&journal, b"w\x01", &all.token.replace(":12000000000", ":15000000000"), 21 * SECOND);
    assert_eq!(told, ["b"]);
}

#[test]
fn files_of_link_areas_are_told_by_number() {
    let (journal, token) = watched();
    let key = |area: &[u8], id| layout::entry_key(&layout::area_prefix(area), &layout::area_name(id));
    touch(&journal, 10 * SECOND, &key(b"", 3));
    touch(&journal, 10 * SECOND, &key(b"w\x01", 4));
    touch(&journal, 10 * SECOND, &key(b"w\x01d\x01", 5));
    touch(&journal, 10 * SECOND, &key(b"elsewhere\x01", 6));
    let changed = journal.changed(b"w\x01", of_tree(token.as_bytes()), 11 * SECOND, None).expect("watched");
    let (own, below) = (BTreeSet::from([3, 4]), BTreeSet::from([5]));
    let expected = BTreeMap::from([(b"w\x01".to_vec(), own), (b"w\x01d\x01".to_vec(), below)]);
    assert_eq!((changed.everything, changed.linked), (false, expected));
    // The area goes along with a clone.
    commit(&journal, 12 * SECOND, |batch| batch.clone_range(INDEX, b"w\x01", b"v\x01"));
    let changed = journal.changed(b"v\x01", of_tree(token.as_bytes()), 13 * SECOND, None).expect("watched");
    let all: BTreeSet<u64> = changed.linked.into_values().flatten().collect();
    assert_eq!((changed.everything, all), (false, BTreeSet::from([3, 4, 5])));
}

/// What is noted of many clones is noted once, so their tokens stay good.
#[test]
fn clones_share_the_notes_so_far() {
    let (journal, token) = watched();
    let area = |of: &str, id| layout::entry_key(&layout::area_prefix(of.as_bytes()), &layout::area_name(id));
    for number in 0..5000 {
        touch(&journal, 10 * SECOND, format!("w\x01d{}\x01\0f{number}", number % 50).as_bytes());
    }
    for id in 0..100 {
        touch(&journal, 10 * SECOND, &area("w\x01", id));
    }
    for clone in 0..300u32 {
        let at = (11 + clone) * SECOND;
        let copy = format!("v{clone}\x01");
        commit(&journal, at, |batch| batch.clone_range(INDEX, b"w\x01", copy.as_bytes()));
        touch(&journal, at, format!("{copy}\0own").as_bytes());
        touch(&journal, at, &area(&copy, 1000));
        touch(&journal, at, b"w\x01\0later");
        touch(&journal, at, format!("w\x01\0later{clone}").as_bytes());
    }
    {
        let watches = journal.watches.lock();
        let (notes, linked) = (watches.notes.get(), watches.linked_notes.get());
        assert!(notes < 30_000 && linked < 1000, "{notes} {linked}");
    }
    let at = 400 * SECOND;
    for (clone, later) in [("v0\x01", 0), ("v150\x01", 151), ("v299\x01", 300)] {
        let changed =
            journal.changed(clone.as_bytes(), of_tree(token.as_bytes()), at, None).expect("watched");
        assert!(!changed.everything);
        assert_eq!(changed.paths.len(), 5001 + later, "{clone}");
        let linked: BTreeSet<u64> = changed.linked.into_values().flatten().collect();
        assert_eq!((linked.len(), linked.last()), (101, Some(&1000)));
        // A newer token has less to tell, and what is not needed any more goes.
        let since = token.replace(":4000000000", ":200000000000");
        assert_ne!(since, token);
        let newer = journal.changed(clone.as_bytes(), of_tree(since.as_bytes()), at, None).expect("watched");
        match clone {
            "v299\x01" => assert_eq!((newer.everything, newer.paths.len()), (false, 112)),
            // The number is that of the original, and the clone was made before the instant.
            _ => assert!(newer.everything),
        }
    }
    for clone in 0..300 {
        let copy = format!("v{clone}\x01");
        commit(&journal, at, |batch| batch.delete_range(INDEX, KeyRange::prefix(copy.as_bytes())));
    }
    commit(&journal, at, |batch| batch.delete_range(INDEX, KeyRange::prefix(b"w\x01")));
    let watches = journal.watches.lock();
    assert_eq!((watches.all.len(), watches.notes.get(), watches.linked_notes.get()), (0, 0, 0));
}

/// A reader of a place knows what was there, also what its token does not say.
#[test]
fn what_comes_to_a_place_does_not_pass_for_what_was_there() {
    let exchange = |journal: &ChangeJournal| {
        commit(journal, 13 * SECOND, |batch| {
            batch.move_range(INDEX, b"w\x01", b"aside\x01");
            batch.move_range(INDEX, b"v\x01", b"w\x01");
            batch.move_range(INDEX, b"aside\x01", b"v\x01");
        });
    };
    let replace = |journal: &ChangeJournal| {
        commit(journal, 13 * SECOND, |batch| batch.delete_range(INDEX, KeyRange::prefix(b"w\x01")));
        commit(journal, 13 * SECOND, |batch| batch.move_range(INDEX, b"v\x01", b"w\x01"));
    };
    for comes in [&exchange as &dyn Fn(&ChangeJournal), &replace] {
        let (journal, token) = watched();
        commit(&journal, 11 * SECOND, |batch| batch.clone_range(INDEX, b"w\x01", b"v\x01"));
        assert_eq!(paths(&journal, b"v\x01", &token, 12 * SECOND), Vec::<String>::new());
        // The reader of w/ sees this, and asks only later.
        touch(&journal, 12 * SECOND, b"w\x01\0p");
        comes(&journal);
        let asked = (token.as_bytes(), Knowledge::OfPlace);
        let changed = journal.changed(b"w\x01", asked, 14 * SECOND, None).expect("watched");
        assert!(changed.everything);
        // An index that came along does not know it.
        assert_eq!(paths(&journal, b"w\x01", &token, 14 * SECOND), Vec::<String>::new());
    }
    // At a place that has lost nothing the tokens of the original are good.
    let (journal, token) = watched();
    commit(&journal, 11 * SECOND, |batch| batch.clone_range(INDEX, b"w\x01", b"aside\x01"));
    commit(&journal, 12 * SECOND, |batch| batch.move_range(INDEX, b"aside\x01", b"v\x01"));
    let asked = (token.as_bytes(), Knowledge::OfPlace);
    let changed = journal.changed(b"v\x01", asked, 13 * SECOND, None).expect("watched");
    assert_eq!((changed.everything, changed.paths.len()), (false, 0));
}

/// The files of an area above what is cloned go along, too.
#[test]
fn a_clone_takes_the_files_of_an_area_above() {
    let (journal, token) = watched();
    let files = |of: &[u8]| layout::area_files(of);
    touch(&journal, 10 * SECOND, &layout::entry_key(&layout::area_prefix(b""), &layout::area_name(3)));
    commit(&journal, 11 * SECOND, |batch| {
        batch.clone_range(INDEX, b"w\x01", b"v\x01");
        batch.clone_range(INDEX, &files(b""), &files(b"v\x01"));
    });
    let changed = journal.changed(b"v\x01", of_tree(token.as_bytes()), 12 * SECOND, None).expect("watched");
    let own = BTreeMap::from([(b"v\x01".to_vec(), BTreeSet::from([3]))]);
    assert_eq!((changed.everything, changed.linked), (false, own));
}

#[test]
fn watches_are_bounded() {
    let (journal, token) = watched();
    for number in 0..MAX_WATCHES + 10 {
        journal.watch(format!("other{number}\x01").as_bytes(), 1000, 20 * SECOND);
    }
    assert!(journal.watches.lock().all.len() <= MAX_WATCHES);
    // The one that was not asked about for the longest time is gone.
    assert_eq!(journal.changed(b"w\x01", of_tree(token.as_bytes()), 21 * SECOND, None), None);
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(std::sync::atomic::AtomicU32);

impl ChangeWaiter for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn an_exact_token_is_good_at_once_and_tells_each_change_once() {
    let journal = ChangeJournal::new();
    let first = journal.watch(b"w\x01", 7, SECOND);
    assert_eq!(paths(&journal, b"w\x01", &first.exact, SECOND), Vec::<String>::new());
    touch(&journal, SECOND, b"w\x01\0a");
    let told = journal.changed(b"w\x01", of_tree(first.exact.as_bytes()), SECOND, None).expect("watched");
    assert_eq!(told.paths, [b"a"]);
    assert_eq!(paths(&journal, b"w\x01", &told.exact, SECOND), Vec::<String>::new());
}

#[test]
fn a_waiter_is_woken_once_by_what_concerns_its_directory() {
    let (journal, _) = watched();
    let count = Arc::new(Count::default());
    let waiter: Arc<dyn ChangeWaiter> = count.clone();
    let mut exact = journal.changed(b"w\x01", of_tree(b""), 10 * SECOND, None).expect("watched").exact;
    let mut wait = |at: u32| {
        let changed = journal
            .changed(b"w\x01", of_tree(exact.as_bytes()), at * SECOND, Some(&waiter))
            .expect("watched");
        exact = changed.exact;
        changed.paths.len()
    };
    assert_eq!(wait(11), 0);
    touch(&journal, 12 * SECOND, b"v\x01\0a");
    touch(&journal, 12 * SECOND, b"\0a");
    assert_eq!(count.get(), 0, "that lies elsewhere");
    touch(&journal, 13 * SECOND, b"w\x01d\x01\0a");
    touch(&journal, 13 * SECOND, b"w\x01d\x01\0b");
    assert_eq!(count.get(), 1);
    assert_eq!(wait(14), 2, "with an answer no waiter stays");
    touch(&journal, 15 * SECOND, b"w\x01\0c");
    assert_eq!(count.get(), 1);
    // A tree below it that goes, a file with several names, and a move of the directory.
    let mut woken = 1;
    let mut at = 16;
    let events: [&dyn Fn(&mut Batch); 3] = [
        &|batch| batch.delete_range(INDEX, KeyRange::prefix(b"w\x01d\x01")),
        &|batch| batch.delete(INDEX, &layout::entry_key(&layout::area_prefix(b""), &layout::area_name(3))),
        &|batch| batch.move_range(INDEX, b"w\x01", b"x\x01"),
    ];
    for event in events {
        while wait(at) > 0 {}
        commit(&journal, (at + 1) * SECOND, event);
        woken += 1;
        assert_eq!(count.get(), woken, "at {at}");
        at += 2;
    }
    assert!(journal.changed(b"w\x01", of_tree(exact.as_bytes()), 40 * SECOND, None).is_none());
}

#[test]
fn waiters_that_are_gone_leave_nothing() {
    let (journal, _) = watched();
    let exact = journal.changed(b"w\x01", of_tree(b""), 10 * SECOND, None).expect("watched").exact;
    for _ in 0..1000 {
        let waiter: Arc<dyn ChangeWaiter> = Arc::new(Count::default());
        assert!(journal.changed(b"w\x01", of_tree(exact.as_bytes()), 11 * SECOND, Some(&waiter)).is_some());
    }
    assert_eq!(journal.watches.lock().waiters.len(), 1);
    touch(&journal, 12 * SECOND, b"w\x01\0a");
    assert_eq!(journal.watches.lock().waiters.len(), 0);
}
