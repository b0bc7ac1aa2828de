//! Tests of gauges, charges and the table of limited trees.

use super::{Charge, Growth, LimitTable, MAX_LATEST_TREES, WriteKind};
use crate::model::tree_limits::TreeLimits;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn limits(exclusive: u64) -> TreeLimits {
    TreeLimits { exclusive: Some(exclusive), total: None }
}

#[test]
fn nodes_of_one_number_share_a_tree_as_long_as_it_is_in_use() {
    let table = LimitTable::default();
    assert!(!table.is_used());
    let tree = table.tree(7, limits(MIB));
    assert!(table.is_used());
    assert!(Arc::ptr_eq(&tree, &table.tree(7, limits(2 * MIB))));
    assert_eq!(tree.limits(), limits(2 * MIB));
    assert!(!Arc::ptr_eq(&tree, &table.tree(8, limits(MIB))));
    drop(tree);
    assert_eq!(table.tree(7, limits(MIB)).exclusive.bound(), 0, "a new one was never counted");
}

#[test]
fn nothing_is_charged_before_the_first_count_and_then_up_to_the_limit() {
    let table = LimitTable::default();
    let tree = table.tree(7, limits(64 * MIB));
    let mut charge = Charge::default();
    charge.add(&tree, Growth::both(MIB));
    assert!(!tree.has_room(WriteKind::Add), "what it holds is not known");
    let before = tree.exclusive.begin_count();
    tree.exclusive.end_count(&before, 10 * MIB);
    assert!(tree.has_room(WriteKind::Add) && tree.fits(WriteKind::Add));
    assert_eq!(tree.exclusive.bound(), 11 * MIB, "what is under way counts");
    charge.end(Ok::<_, ()>(())).unwrap();
    assert_eq!(tree.exclusive.bound(), 11 * MIB);
    let mut charge = Charge::default();
    charge.add(&tree, Growth::both(53 * MIB));
    assert!(tree.has_room(WriteKind::Add));
    charge.end(Ok::<_, ()>(())).unwrap();
    let mut charge = Charge::default();
    charge.add(&tree, Growth::both(1));
    assert!(!tree.has_room(WriteKind::Add));
    charge.end(Err::<(), _>(())).unwrap_err();
    assert_eq!(tree.exclusive.bound(), 64 * MIB, "a call that failed gets its charge back");
}

#[test]
fn what_is_charged_during_a_count_is_neither_lost_nor_counted_twice() {
    let table = LimitTable::default();
    let tree = table.tree(7, limits(64 * MIB));
    let mut earlier = Charge::default();
    earlier.add(&tree, Growth::both(3 * MIB));
    earlier.end(Ok::<_, ()>(())).unwrap();
    let before = tree.exclusive.begin_count();
    let mut during = Charge::default();
    during.add(&tree, Growth::both(2 * MIB));
    during.end(Ok::<_, ()>(())).unwrap();
    tree.exclusive.end_count(&before, MIB);
    assert_eq!(tree.exclusive.bound(), 3 * MIB);
}

#[test]
fn a_full_tree_counts_with_every_charge_and_an_almost_full_one_seldom() {
    let table = LimitTable::default();
    let tree = table.tree(7, limits(64 * MIB));
    let count = |held: u64| {
        let before = tree.exclusive.begin_count();
        tree.exclusive.end_count(&before, held);
    };
    count(64 * MIB + 1);
    assert!(!tree.fits(WriteKind::Add) && !tree.has_room(WriteKind::Add));
    count(64 * MIB - 1);
    let mut charge = Charge::default();
    charge.add(&tree, Growth::both(MIB / 4));
    assert!(tree.has_room(WriteKind::Add), "less than a 128th is written without a count");
    charge.add(&tree, Growth::both(MIB / 2));
    assert!(!tree.has_room(WriteKind::Add));
}

#[test]
fn a_full_tree_may_be_replaced_as_long_as_it_does_not_grow() {
    let table = LimitTable::default();
    let tree = table.tree(7, limits(64 * MIB));
    let count = |held: u64| {
        let before = tree.exclusive.begin_count();
        tree.exclusive.end_count(&before, held);
    };
    let charge = |bytes: u64| {
        let mut charge = Charge::default();
        charge.add(&tree, Growth::both(bytes));
        charge.end(Ok::<_, ()>(())).unwrap();
    };
    count(64 * MIB + MIB / 2);
    for _ in 0..100 {
        assert!(!tree.has_room(WriteKind::Add) && tree.has_room(WriteKind::Replace));
        charge(MIB / 2);
        assert!(tree.has_room(WriteKind::Replace));
        charge(2 * MIB);
        assert!(!tree.has_room(WriteKind::Replace), "it is counted again");
        // What was replaced is held no longer.
        count(64 * MIB + MIB / 2);
        assert!(tree.fits(WriteKind::Replace) && !tree.fits(WriteKind::Add));
    }
    // What is replaced is shared with a clone, and stays.
    charge(3 * MIB);
    count(66 * MIB + MIB / 2 + 1);
    assert!(!tree.fits(WriteKind::Replace) && !tree.has_room(WriteKind::Replace));
    count(64 * MIB);
    assert!(tree.fits(WriteKind::Replace) && tree.has_room(WriteKind::Replace));
    // Others gave up more than could have been written.
    count(80 * MIB);
    assert!(
        tree.fits(WriteKind::Replace) && tree.has_room(WriteKind::Replace) && !tree.has_room(WriteKind::Add)
    );
    // A limit below what is held.
    table.tree(7, limits(MIB));
    assert!(!tree.has_room(WriteKind::Replace), "it is counted");
    count(64 * MIB);
    assert!(
        tree.fits(WriteKind::Replace) && tree.has_room(WriteKind::Replace) && !tree.has_room(WriteKind::Add)
    );
    charge(MIB);
    count(64 * MIB + 256 * 1024 + 1);
    assert!(!tree.fits(WriteKind::Replace));
}

#[test]
fn what_is_known_of_the_latest_trees_stays_when_nothing_of_them_is_used() {
    let table = LimitTable::default();
    let tree = table.tree(7, limits(64 * MIB));
    let mut charge = Charge::default();
    charge.add(&tree, Growth::both(MIB));
    charge.end(Ok::<_, ()>(())).unwrap();
    let before = Arc::downgrade(&tree);
    drop(tree);
    assert_eq!(table.tree(7, limits(64 * MIB)).exclusive.bound(), MIB);
    (8..8 + MAX_LATEST_TREES as u64).for_each(|ino| drop(table.tree(ino, limits(MIB))));
    assert!(before.upgrade().is_none(), "others were made since");
    assert_eq!(table.trees().len(), MAX_LATEST_TREES);
}
