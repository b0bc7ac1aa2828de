//! Listings stay good while entries come and go.

use crate::Bench;
use espalier_fs::{FileKind, ListedNodes, NodeId};
use std::collections::HashMap;

const PERMANENT: usize = 2000;

/// A directory in which every fourth entry is a directory.
fn filled(bench: &Bench) -> NodeId {
    let dir = bench.dir(NodeId::ROOT, "dir");
    for i in 0..PERMANENT {
        let name = format!("permanent{i}");
        let node = if i % 4 == 0 { bench.dir(dir, &name) } else { bench.file(dir, &name) };
        bench.fs.forget(node, 1);
    }
    dir
}

/// Lists `dir` a few entries at a time, calling `between` with the last name after each answer.
fn list(bench: &Bench, dir: NodeId, step: usize, mut between: impl FnMut(&[u8])) -> Vec<(Vec<u8>, FileKind)> {
    let mut seen: Vec<(Vec<u8>, FileKind)> = Vec::new();
    let mut cookie = 0;
    loop {
        let (start, before) = (cookie, seen.len());
        let each = &mut |entry: espalier_fs::DirEntry<'_>| {
            if seen.len() == before + step {
                return false;
            }
            cookie = entry.cookie;
            assert!(cookie < 1 << 63);
            seen.push((entry.name.to_vec(), entry.kind));
            true
        };
        bench.fs.readdir(dir, start, each).expect("a directory can be listed");
        if seen.len() == before {
            return seen;
        }
        let last = seen[seen.len() - 1].0.clone();
        between(&last);
    }
}

fn count(seen: &[(Vec<u8>, FileKind)]) -> HashMap<Vec<u8>, usize> {
    let mut counts = HashMap::new();
    for (name, _) in seen.iter().filter(|(name, _)| name.starts_with(b"permanent")) {
        *counts.entry(name.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn what_stays_is_listed_once_while_others_come_and_go() {
    let bench = Bench::new(0);
    let dir = filled(&bench);
    let mut round = 0;
    let seen = list(&bench, dir, 7, |last| {
        // Removes what was just listed if it may go, and puts others before and behind.
        if last.starts_with(b"volatile") {
            bench.fs.unlink(dir, last).expect("it was listed");
        }
        round += 1;
        let name = format!("volatile{:x}", round * 7919 % 4096);
        if bench.fs.lookup(dir, name.as_bytes()).is_err() {
            bench.file(dir, &name);
        }
    });
    let counts = count(&seen);
    assert_eq!(counts.len(), PERMANENT);
    assert!(counts.values().all(|n| *n == 1));
    let kinds: Vec<bool> = seen[2..].iter().map(|(_, kind)| *kind == FileKind::Directory).collect();
    assert!(kinds.is_sorted(), "directories come last");
    bench.check(bench.fs.statistics().orphans);
}

#[test]
fn removing_what_is_listed_empties_the_directory() {
    let bench = Bench::new(0);
    let dir = filled(&bench);
    let mut last_two: Vec<Vec<u8>> = Vec::new();
    let remove = |name: &[u8]| {
        if bench.fs.unlink(dir, name).is_err() {
            bench.fs.rmdir(dir, name).expect("it was listed");
        }
    };
    let seen = list(&bench, dir, 1, |last| {
        if last.starts_with(b"permanent") {
            remove(last);
            last_two.push(last.to_vec());
        }
    });
    assert_eq!(count(&seen).len(), PERMANENT);
    assert_eq!(bench.fs.getattr(dir).expect("attributes").size, 0);
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("it is empty");
    bench.check(0);
}

#[test]
fn forgotten_positions_are_found_again() {
    let bench = Bench::new(0);
    let dir = filled(&bench);
    let other = bench.dir(NodeId::ROOT, "other");
    for i in 0..3 {
        bench.file(other, &format!("{i}"));
    }
    let mut calls = 0;
    let seen = list(&bench, dir, 300, |last| {
        // Enough listings of another directory to push this one's out of memory; not whole ones,
        // which would be answered from memory.
        for _ in 0..2000 {
            let mut room = 3;
            let mut each = |_: espalier_fs::DirEntry<'_>| {
                room -= 1;
                room >= 0
            };
            bench.fs.readdir(other, 0, &mut each).expect("a directory can be listed");
        }
        calls += 1;
        // A position whose entry is gone begins its kind again: nothing is missed.
        if calls == 3 {
            bench.fs.unlink(dir, last).expect("it was listed");
        }
    });
    let counts = count(&seen);
    assert_eq!(counts.len(), PERMANENT);
    assert!(counts.values().all(|n| *n <= 2));
    assert_eq!(
        counts.values().filter(|n| **n == 2).count(),
        900 - 2 - 1,
        "only files of the first calls repeat"
    );
}

#[test]
fn a_listing_that_is_asked_for_again_is_the_same_until_something_changes() {
    let bench = Bench::new(0);
    let dir = filled(&bench);
    let names = |bench: &Bench| list(bench, dir, 1 << 20, |_| {});
    let first = names(&bench);
    // With all nodes in memory the second answer needs no walk.
    let nodes: Vec<NodeId> =
        first[2..].iter().map(|(name, _)| bench.fs.lookup(dir, name).expect("it was listed").node).collect();
    assert_eq!(names(&bench), first);
    assert_eq!(list(&bench, dir, 7, |_| {}), first, "in several answers, too");
    bench.file(dir, "another");
    assert_eq!(names(&bench).len(), first.len() + 1);
    bench.fs.unlink(dir, b"another").expect("it was made");
    assert_eq!(names(&bench), first);
    nodes.iter().for_each(|node| bench.fs.forget(*node, 1));
    assert_eq!(names(&bench), first);
    bench.check(bench.fs.statistics().orphans);
}

#[test]
fn a_listing_makes_lookups_and_creates_free_of_queries() {
    let bench = Bench::new(0);
    let dir = filled(&bench);
    // A fresh directory knows all its names.
    assert_eq!(bench.fs.statistics().create_queries, 0);
    bench.fs.forget(dir, 1);
    let dir = bench.fs.lookup(NodeId::ROOT, b"dir").expect("it exists").node;
    bench.file(dir, "unknown");
    assert_eq!(bench.fs.statistics().create_queries, 1);
    list(&bench, dir, 100, |_| {});
    let misses = bench.fs.statistics().lookup_misses;
    bench.file(dir, "known to be new");
    assert!(bench.fs.lookup(dir, b"not there").is_err());
    let after = bench.fs.statistics();
    assert_eq!((after.create_queries, after.lookup_misses), (1, misses));
}

#[test]
fn names_stay_within_their_memory() {
    let bench = Bench::with(0, espalier_fs::OpenOptions { name_memory: 50_000, ..Default::default() });
    for d in 0..40 {
        let dir = bench.dir(NodeId::ROOT, &format!("{d}"));
        for f in 0..100 {
            let file = bench.file(dir, &format!("file{f}"));
            bench.fs.forget(file, 1);
        }
    }
    assert!(bench.fs.statistics().name_bytes < 100_000, "{:?}", bench.fs.statistics());
    bench.check(0);
}

#[test]
fn callers_hear_when_too_many_files_are_in_memory() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let bench = Bench::with(0, espalier_fs::OpenOptions { node_memory: 64 << 10, ..Default::default() });
    let calls = Arc::new(AtomicU64::new(0));
    let called = calls.clone();
    bench.fs.watch_surplus(Arc::new(move || {
        called.fetch_add(1, Ordering::Relaxed);
    }));
    let dir = bench.dir(NodeId::ROOT, "dir");
    let files: Vec<NodeId> = (0..400).map(|n| bench.file(dir, &format!("{n}"))).collect();
    // Not again before they were asked for.
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let surplus = bench.fs.surplus_nodes();
    assert!((250..400).contains(&surplus.len()), "{}", surplus.len());
    let oldest = surplus.iter().find(|surplus| surplus.node == files[0]).expect("it is the oldest file");
    assert_eq!(oldest.place, Some((dir, (*b"0").into())));
    assert!(surplus.iter().all(|surplus| surplus.node != files[399]), "the newest is kept");
    // What lies deeper comes first.
    assert_eq!(surplus.last().map(|surplus| (surplus.node, surplus.place.clone())), Some((dir, None)));
    let place = |surplus: &espalier_fs::SurplusNode| surplus.place.is_some();
    surplus.iter().filter(|surplus| place(surplus)).for_each(|surplus| bench.fs.forget(surplus.node, 1));
    assert!(bench.fs.surplus_nodes().len() < 5, "the others are in use");
    // And again when there are too many again.
    for n in 400..800 {
        bench.file(dir, &format!("{n}"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    bench.check(0);
}

/// A listing that a kernel has just been given is not given again, unless the directory changed,
/// or another caller asks.
#[test]
fn nodes_are_given_once_to_a_caller_that_keeps_them() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    for n in 0..20 {
        let name = format!("{n:02}");
        let node = if n % 4 == 0 { bench.dir(dir, &name) } else { bench.file(dir, &name) };
        bench.fs.forget(node, 1);
    }
    // Names, numbers and kinds, and the nodes that came with them.
    let list = |once: bool| {
        let (mut entries, mut nodes) = (Vec::new(), Vec::new());
        let mut each = |entry: espalier_fs::DirEntry<'_>| {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind, entry.cookie));
            nodes.extend(entry.entry.map(|entry| (entry.node, entry.attr.ino)));
            true
        };
        match once {
            true => assert!(!bench.fs.readdirplus_once(dir, 0, ListedNodes::All, &mut each).unwrap()),
            false => bench.fs.readdirplus(dir, 0, &mut each).unwrap(),
        }
        (entries, nodes)
    };
    let (entries, given) = list(true);
    assert_eq!((entries.len(), given.len()), (22, 20));
    let (again, nothing) = list(true);
    assert_eq!((&again, nothing.len()), (&entries, 0));
    let (again, nodes) = list(false);
    assert_eq!((again, &nodes), (entries, &given));
    nodes.iter().for_each(|(node, _)| bench.fs.forget(*node, 1));
    // Each has one reference, from the first listing: then it is gone.
    for (node, ino) in &given {
        assert_eq!(bench.fs.getattr(*node).unwrap().ino, *ino);
    }
    let new = bench.file(dir, "new");
    let (changed, nodes) = list(true);
    assert_eq!((changed.len(), nodes.len()), (23, 21));
    nodes.iter().chain(&given).for_each(|(node, _)| bench.fs.forget(*node, 1));
    bench.fs.forget(new, 1);
    // A listing that gave no nodes is none that gave them.
    let other = bench.file(dir, "other");
    bench.fs.forget(other, 1);
    bench.fs.readdir(dir, 0, &mut |_| true).unwrap();
    let (_, nodes) = list(true);
    assert_eq!(nodes.len(), 22);
    nodes.iter().for_each(|(node, _)| bench.fs.forget(*node, 1));
}

/// A listing may leave out one file, or all, and what is left out is found by its name.
#[test]
fn files_are_left_out_of_a_listing_that_wants_none() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    for n in 0..20 {
        let name = format!("{n:02}");
        let node = if n % 4 == 0 { bench.dir(dir, &name) } else { bench.file(dir, &name) };
        bench.fs.forget(node, 1);
    }
    let plain = positions_behind(&bench, dir, 0);
    // How many nodes of directories and of files came, and whether files were left out.
    let list = |dir: NodeId, wanted: ListedNodes| {
        let (mut entries, mut nodes) = (Vec::new(), Vec::new());
        let each = &mut |entry: espalier_fs::DirEntry<'_>| {
            entries.push((entry.name.to_vec(), entry.cookie));
            nodes.extend(entry.entry.map(|given| (given.node, entry.kind)));
            true
        };
        let left_out = bench.fs.readdirplus_once(dir, 0, wanted, each).unwrap();
        assert_eq!(entries, plain);
        nodes.iter().for_each(|(node, _)| bench.fs.forget(*node, 1));
        let directories = nodes.iter().filter(|(_, kind)| *kind == FileKind::Directory).count();
        (directories, nodes.len() - directories, left_out)
    };
    assert_eq!(list(dir, ListedNodes::Directories), (5, 0, true));
    // It gave not all that there are, so the next one gives them.
    assert_eq!(list(dir, ListedNodes::Directories), (5, 0, true));
    assert_eq!(list(dir, ListedNodes::AllButOneFile), (5, 14, true));
    // That was all, but for one that is asked for.
    assert_eq!(list(dir, ListedNodes::All), (0, 0, false));
    for n in 0..20 {
        let entry = bench.fs.lookup(dir, format!("{n:02}").as_bytes()).unwrap();
        bench.fs.forget(entry.node, 1);
    }
    // A directory of which nothing is known knows all its names then.
    bench.fs.forget(dir, 1);
    let dir = bench.fs.lookup(NodeId::ROOT, b"dir").unwrap().node;
    assert_eq!(list(dir, ListedNodes::Directories), (5, 0, true));
    let misses = bench.fs.statistics().lookup_misses;
    assert!(bench.fs.lookup(dir, b"absent").is_err());
    assert_eq!(bench.fs.statistics().lookup_misses, misses);
    let only = bench.dir(NodeId::ROOT, "only");
    let below = bench.dir(only, "below");
    bench.fs.forget(below, 1);
    let mut nodes = Vec::new();
    let each = &mut |entry: espalier_fs::DirEntry<'_>| {
        nodes.extend(entry.entry.map(|given| given.node));
        true
    };
    assert!(!bench.fs.readdirplus_once(only, 0, ListedNodes::Directories, each).unwrap());
    assert_eq!(nodes.len(), 1);
    nodes.iter().chain(&[only, dir]).for_each(|node| bench.fs.forget(*node, 1));
    bench.check(0);
}

/// Names and positions of all entries behind `position`.
fn positions_behind(bench: &Bench, dir: NodeId, position: u64) -> Vec<(Vec<u8>, u64)> {
    let mut seen = Vec::new();
    let each = &mut |entry: espalier_fs::DirEntry<'_>| {
        seen.push((entry.name.to_vec(), entry.cookie));
        true
    };
    bench.fs.readdir(dir, position, each).expect("a directory can be listed");
    seen
}

#[test]
fn positions_fit_in_31_bits_where_the_directory_is_not_huge() {
    for entries in [0, 1, 100, 1024, 1025, 2000] {
        let bench = Bench::new(0);
        let dir = bench.dir(NodeId::ROOT, "dir");
        for i in 0..entries {
            let name = format!("entry{i}");
            let node = if i % 7 == 0 { bench.dir(dir, &name) } else { bench.file(dir, &name) };
            bench.fs.forget(node, 1);
        }
        let all = positions_behind(&bench, dir, 0);
        assert_eq!(all.len(), entries + 2);
        assert!(all.iter().all(|(_, position)| (1..1 << 31).contains(position)), "{entries} entries");
        // Each leads behind its entry, in the listing that gave it and in one after a remount.
        bench.fs.syncfs().unwrap();
        let bench = bench.crash();
        let dir = bench.fs.lookup(NodeId::ROOT, b"dir").unwrap().node;
        let step = 1 + entries / 40;
        for at in (0..all.len()).step_by(step) {
            assert_eq!(positions_behind(&bench, dir, all[at].1), all[at + 1..], "behind {at} of {entries}");
        }
    }
}

#[test]
fn a_position_stays_good_when_the_directory_becomes_huge() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let fill = |from: usize, to: usize| {
        (from..to).for_each(|i| bench.fs.forget(bench.file(dir, &format!("entry{i:05}")), 1));
    };
    fill(0, 100);
    let short = positions_behind(&bench, dir, 0);
    fill(100, 17_000);
    let long = positions_behind(&bench, dir, 0);
    assert!(long[2..].iter().all(|(_, position)| *position > u64::from(u32::MAX)));
    for at in [2, 50, 101] {
        let names = |list: &[(Vec<u8>, u64)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let behind = positions_behind(&bench, dir, short[at].1);
        assert_eq!(names(&behind), names(&long[at + 1..]));
        // A listing goes on as it began.
        assert!(behind.iter().all(|(_, position)| *position < 1 << 31));
    }
}
