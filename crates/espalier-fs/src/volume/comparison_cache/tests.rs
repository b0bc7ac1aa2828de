use super::*;
use espalier_engine::IndexId;

const ATIME: Concern = Concern::Links;

fn index(index: u8) -> IndexId {
    IndexId { volume: 1, index }
}

fn prefix(path: &str) -> Vec<u8> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.flat_map(|name| [name.as_bytes(), &[layout::CONTENT]].concat()).collect()
}

/// Directories `base` and `ws`, whose names the area of the root serves.
fn trees() -> Trees {
    let [base, ws] = ["base", "home/ws"].map(|path| Arc::from(prefix(path)));
    Trees { tops: [base, ws], served_by: Some([Arc::from([]), Arc::from([])]) }
}

fn entry(directory: &str, name: &str) -> Batch {
    let mut batch = Batch::new();
    batch.insert(index(METADATA), &layout::entry_key(&prefix(directory), name.as_bytes()), vec![1]);
    batch
}

fn ranges(change: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::new();
    change(&mut batch);
    batch
}

#[track_caller]
fn unknown(cache: &Arc<ComparisonCache>) -> Comparing {
    match cache.ask(trees()) {
        Asked::Unknown(comparing) => comparing,
        Asked::Known(_) => panic!("the answer is known"),
        Asked::Changing => panic!("a change is under way"),
    }
}

fn is_known(cache: &Arc<ComparisonCache>) -> bool {
    matches!(cache.ask(trees()), Asked::Known(_))
}

/// A cache that knows the answer.
fn filled() -> Arc<ComparisonCache> {
    let cache = Arc::new(ComparisonCache::new());
    let mut comparing = unknown(&cache);
    assert!(comparing.add(Change::Added, b"new") && comparing.add(Change::Changed, b"old"));
    comparing.keep();
    cache
}

/// Sources and answers are those that are needed.
fn check(cache: &ComparisonCache) {
    let table = cache.table.lock();
    let users: usize = table.sources.values().map(|source| source.users).sum();
    assert_eq!(users, table.kept.keys().map(|trees| trees.sources().count()).sum::<usize>());
    assert_eq!(table.bytes, table.kept.values().map(|kept| kept.bytes).sum::<usize>());
    assert_eq!(table.by_use.len(), table.kept.len());
}

#[test]
fn an_answer_is_given_as_it_was_found() {
    let cache = filled();
    let Asked::Known(answer) = cache.ask(trees()) else { panic!("the answer is not known") };
    assert_eq!(*answer, [(Change::Added, b"new".to_vec()), (Change::Changed, b"old".to_vec())]);
    let other = Trees { served_by: None, ..trees() };
    assert!(!matches!(cache.ask(other), Asked::Known(_)), "another area serves them");
    check(&cache);
}

#[test]
fn a_change_of_a_source_ends_an_answer_and_another_one_does_not() {
    let area = |names: &[u8]| layout::area_prefix(names);
    let whole = |path: &str| KeyRange::prefix(&prefix(path));
    let delete = |range: KeyRange| ranges(|batch| batch.delete_range(index(METADATA), range));
    let copy =
        |from: &str, to: &str| ranges(|batch| batch.clone_range(index(METADATA), &prefix(from), &prefix(to)));
    let insert = |index: IndexId, key: &[u8]| ranges(|batch| batch.insert(index, key, vec![1]));
    let area_file = layout::entry_key(&area(b""), &layout::area_name(7));
    let ends = [
        ("an entry of the older tree", entry("base", "a")),
        ("an entry of the newer tree", entry("home/ws", "a")),
        ("an entry far below", entry("home/ws/a/b/c", "d")),
        ("the second of two keys", {
            let mut batch = entry("other", "a");
            batch.insert(index(METADATA), &layout::entry_key(&prefix("base"), b"a"), vec![1]);
            batch
        }),
        ("a name of the links index", insert(index(LINKS), &layout::entry_key(&prefix("base"), b"a"))),
        ("the mark of an area", insert(index(LINKS), &prefix("home/ws"))),
        ("a file of the area", insert(index(METADATA), &area_file)),
        ("a range of a tree", delete(whole("home/ws"))),
        ("a range below", delete(whole("home/ws/a"))),
        ("a range above", delete(whole("home"))),
        ("a range of several entries", delete(KeyRange::new(prefix("b"), prefix("c")))),
        ("a range that begins in a tree", delete(KeyRange::new(prefix("base/z"), prefix("c")))),
        ("everything", delete(KeyRange { start: vec![].into(), end: None })),
        ("a clone in place of a tree", copy("other", "base")),
        ("a clone around a tree", copy("other", "home")),
        ("a clone below a tree", copy("other", "home/ws/a")),
    ];
    for (what, batch) in ends {
        let cache = filled();
        drop(cache.begin_change(&batch, Concern::All));
        assert!(!is_known(&cache), "{what}");
        check(&cache);
    }
    let goes_on = [
        ("the entry of the tree", entry("home", "ws")),
        ("an entry of the directory above", entry("home", "a")),
        ("a neighbour", entry("home/ws2", "a")),
        ("a name that begins like it", entry("bas", "e")),
        ("content", insert(index(layout::DATA), &layout::entry_key(&prefix("base"), b"a"))),
        ("a range beside", delete(whole("home/w"))),
        ("an empty range", delete(KeyRange::new(prefix("base"), prefix("base")))),
        ("a clone of a tree", copy("base", "other")),
    ];
    for (what, batch) in goes_on {
        let cache = filled();
        drop(cache.begin_change(&batch, Concern::All));
        assert!(is_known(&cache), "{what}");
        check(&cache);
    }
}

#[test]
fn times_of_the_last_read_do_not_count_but_links_do() {
    let cache = filled();
    drop(cache.begin_change(&entry("base", "a"), ATIME));
    assert!(is_known(&cache));
    let mark = ranges(|batch| batch.insert(index(LINKS), &prefix("base"), vec![1]));
    drop(cache.begin_change(&mark, ATIME));
    assert!(!is_known(&cache));
}

#[test]
fn an_answer_ends_when_a_change_begins_and_not_when_it_is_done() {
    let cache = filled();
    let change = cache.begin_change(&entry("base", "a"), Concern::All);
    assert!(matches!(cache.ask(trees()), Asked::Changing), "its snapshot may be from before the change");
    drop(change);
    unknown(&cache).keep();
    assert!(is_known(&cache));
}

#[test]
fn what_is_found_while_something_changes_is_not_kept() {
    // The snapshot may be from before the change.
    let cache = Arc::new(ComparisonCache::new());
    let comparing = unknown(&cache);
    drop(cache.begin_change(&entry("base", "a"), Concern::All));
    comparing.keep();
    assert!(!is_known(&cache));
    check(&cache);
    // A change that began before anything was asked, when no source was known.
    let cache = Arc::new(ComparisonCache::new());
    let change = cache.begin_change(&entry("base", "a"), Concern::All);
    assert!(matches!(cache.ask(trees()), Asked::Changing));
    drop(change);
    // One that concerns nothing of it does no harm.
    let comparing = unknown(&cache);
    drop(cache.begin_change(&entry("other", "a"), Concern::All));
    comparing.keep();
    assert!(is_known(&cache));
}

#[test]
fn a_comparison_that_is_given_up_leaves_nothing() {
    let cache = Arc::new(ComparisonCache::new());
    drop(unknown(&cache));
    assert!(cache.table.lock().sources.is_empty() && !is_known(&cache));
}

#[test]
fn answers_are_bounded_and_the_one_used_last_stays() {
    let cache = filled();
    let mut long = unknown_of(&cache, "long").expect("unknown");
    let path = vec![b'x'; MAX_ANSWER_BYTES / 4];
    assert!(long.add(Change::Added, &path) && long.add(Change::Added, &path), "there is room for two");
    assert!(!(0..2).all(|_| long.add(Change::Added, &path)), "one answer takes too much");
    drop(long);
    for number in 0..2 * MAX_BYTES / MAX_ANSWER_BYTES {
        let mut comparing = unknown_of(&cache, &format!("other{number}")).expect("unknown");
        assert!((0..3).all(|_| comparing.add(Change::Added, &path)));
        comparing.keep();
        assert!(is_known(&cache), "{number}");
        assert!(cache.table.lock().bytes <= MAX_BYTES);
    }
    check(&cache);
    assert!(unknown_of(&cache, "other0").is_some(), "it was not used for the longest time");
}

fn unknown_of(cache: &Arc<ComparisonCache>, path: &str) -> Option<Comparing> {
    let top: Arc<[u8]> = prefix(path).into();
    match cache.ask(Trees { tops: [top.clone(), top], served_by: None }) {
        Asked::Unknown(comparing) => Some(comparing),
        _ => None,
    }
}

#[test]
fn what_is_not_asked_for_any_more_costs_changes_nothing() {
    let cache = filled();
    let change = entry("other", "a");
    let change_often = || {
        cache.table.lock().changes += MAX_CHANGES_UNASKED - 1;
        drop(cache.begin_change(&change, Concern::All));
        assert!(!cache.table.lock().sources.is_empty(), "not yet");
        drop(cache.begin_change(&change, Concern::All));
    };
    // A comparison under way keeps its sources.
    let comparing = unknown_of(&cache, "base").expect("unknown");
    change_often();
    assert!(cache.table.lock().kept.is_empty() && cache.in_use.load(Ordering::SeqCst));
    drop(cache.begin_change(&entry("base", "a"), Concern::All));
    comparing.keep();
    unknown_of(&cache, "base").expect("it has changed").keep();
    check(&cache);
    change_often();
    assert!(!cache.in_use.load(Ordering::SeqCst));
    unknown(&cache).keep();
    assert!(is_known(&cache));
}
