//! Tests of prefixes that are kept apart.

use super::KeepApart;
use crate::model::ids::IndexId;
use crate::model::key::Key;

const DATA: IndexId = IndexId { volume: 1, index: 1 };

fn key(text: &str) -> Key {
    text.as_bytes().into()
}

#[test]
fn the_longest_prefix_counts_until_its_last_owner_gives_it_up() {
    let apart = KeepApart::default();
    let found = |text: &str| apart.now().prefix_of(DATA, &key(text)).cloned();
    assert!(apart.now().is_empty());
    apart.set(1, Some((DATA, key("a/"))));
    apart.set(2, Some((DATA, key("a/b/"))));
    apart.set(3, Some((DATA, key("a/b/"))));
    assert_eq!(found("a/a"), Some(key("a/")));
    assert_eq!(found("a/b/x"), Some(key("a/b/")));
    assert_eq!(found("a/bb"), Some(key("a/")), "a neighbour that sorts behind a longer prefix");
    assert_eq!(found("b"), None);
    assert_eq!(apart.now().prefix_of(IndexId { index: 2, ..DATA }, &key("a/x")), None);
    apart.set(2, None);
    assert_eq!(found("a/b/x"), Some(key("a/b/")));
    apart.set(3, Some((DATA, key("c/"))));
    assert_eq!(found("a/b/x"), Some(key("a/")));
    apart.set(1, None);
    apart.set(3, None);
    assert!(apart.now().is_empty());
}
