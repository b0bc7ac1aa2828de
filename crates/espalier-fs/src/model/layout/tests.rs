use super::*;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![1u8, 2, 3, b'.', b'a', 0xff]), 1..4)
}

fn path() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(name(), 0..4)
}

fn prefix_of(path: &[Vec<u8>]) -> Vec<u8> {
    path.iter().fold(Vec::new(), |prefix, name| content_prefix(&prefix, name))
}

/// The order of a walk that lists a directory's entries first, then its subdirectories, each by
/// name.
fn walk_order(a: (&[Vec<u8>], &[u8]), b: (&[Vec<u8>], &[u8])) -> std::cmp::Ordering {
    match (a.0.split_first(), b.0.split_first()) {
        (None, None) => a.1.cmp(b.1),
        (None, Some(_)) => std::cmp::Ordering::Less,
        (Some(_), None) => std::cmp::Ordering::Greater,
        (Some((x, xs)), Some((y, ys))) => x.cmp(y).then_with(|| walk_order((xs, a.1), (ys, b.1))),
    }
}

proptest! {
    #[test]
    fn escaping_keeps_order_and_inverts(a in name(), b in name()) {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        escape(&a, &mut x);
        escape(&b, &mut y);
        prop_assert_eq!(a.cmp(&b), x.cmp(&y));
        prop_assert!(x.iter().all(|byte| *byte > 1));
        prop_assert_eq!(unescape(&x), Some(a));
    }

    #[test]
    fn keys_are_in_the_order_of_a_walk(p in path(), n in name(), q in path(), m in name()) {
        let (a, b) = (entry_key(&prefix_of(&p), &n), entry_key(&prefix_of(&q), &m));
        prop_assert_eq!(a.cmp(&b), walk_order((&p, &n), (&q, &m)));
    }

    #[test]
    fn names_in_a_directory_are_those_of_parsed_keys(
        p in path(), q in path(), n in name(), block in any::<u64>()
    ) {
        let entry = entry_key(&prefix_of(&q), &n);
        for key in [&entry[..], &block_key(&entry, block)] {
            let parsed = parse(key).unwrap();
            let expected = (*parsed.prefix == prefix_of(&p)).then_some(parsed.name);
            prop_assert_eq!(name_in(&prefix_of(&p), key).map(|name| name.into_owned()), expected);
        }
    }

    #[test]
    fn a_subtree_is_one_prefix(p in path(), q in path(), n in name(), block in any::<u64>()) {
        let inside = q.starts_with(&p);
        let range = content_range(&prefix_of(&p));
        let entry = entry_key(&prefix_of(&q), &n);
        prop_assert_eq!(range.contains(&entry), inside);
        prop_assert_eq!(range.contains(&block_key(&entry, block)), inside);
        prop_assert_eq!(entries_range(&prefix_of(&p)).contains(&entry), p == q);
    }

    #[test]
    fn files_own_their_range(p in path(), n in name(), q in path(), m in name(), a in any::<u64>(), b in any::<u64>()) {
        let (x, y) = (entry_key(&prefix_of(&p), &n), entry_key(&prefix_of(&q), &m));
        prop_assert_eq!(file_range(&x).contains(&block_key(&y, a)), x == y);
        prop_assert_eq!(file_range(&x).contains(&xattr_key(&y, &m)), x == y);
        prop_assert_eq!(blocks_from(&x, b).contains(&block_key(&y, a)), x == y && a >= b);
        prop_assert!(!blocks_from(&x, b).contains(&xattr_key(&y, &m)));
        prop_assert!(!file_range(&x).contains(&y));
    }

    #[test]
    fn keys_say_what_they_are(p in path(), n in name(), block in any::<u64>()) {
        let prefix = prefix_of(&p);
        let base = entry_key(&prefix, &n);
        let key = block_key(&base, block);
        let parsed = parse(&key).expect("it was made by the layout");
        prop_assert_eq!(parsed.prefix, &*prefix);
        prop_assert_eq!(&parsed.directory, &p);
        prop_assert_eq!(parsed.base, &*base);
        prop_assert_eq!(&parsed.name, &n);
        prop_assert_eq!(block_number(parsed.rest), Some(block));
    }

    #[test]
    fn parsing_survives_anything(key in prop::collection::vec(0u8..5, 0..12)) {
        if let Some(parsed) = parse(&key) {
            prop_assert_eq!([parsed.base, parsed.rest].concat(), key);
        }
    }

    #[test]
    fn area_names_invert(id in any::<u64>()) {
        prop_assert_eq!(area_id(&area_name(id)), Some(id));
        prop_assert_eq!(&orphan_key(id)[..], entry_key(ORPHAN_AREA, &area_name(id)));
    }
}

#[test]
fn areas_lie_outside_every_directory() {
    assert_eq!(entry_key(&[], &[]), ROOT_KEY);
    assert_eq!(entry_key(ORPHAN_AREA, &[]), STATE_KEY);
    assert_eq!(content_prefix(&[], &[]), area_prefix(&[]));
    assert_eq!(content_prefix(&area_prefix(&[]), &[]), ORPHAN_AREA);
    assert!(!entries_range(&[]).contains(ROOT_KEY));
    assert!(!entries_range(ORPHAN_AREA).contains(STATE_KEY));
    assert!(!entries_range(&area_prefix(&[])).contains(STATE_KEY));
}
