//! Copies of large files: what they cost, and where they must not be clones.

use crate::Bench;
use crate::quota::usual;
use espalier_fs::{Caller, FsErrorKind, NodeId, SetAttr, TreeLimits};
use espalier_storage::Random;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
/// What the Rust library asks for at a time: no multiple of a block.
const ODD_PIECE: u64 = 70 * BLOCK - 4096;

/// A file with so many MiB, and some bytes, that cannot be compressed.
fn large(bench: &Bench, parent: NodeId, name: &str, mib: u64) -> NodeId {
    let file = bench.file(parent, name);
    let mut random = Random::new(mib);
    let mut data = vec![0; MIB as usize];
    for n in 0..mib {
        random.fill(&mut data);
        bench.fs.write(file, n * MIB, &data, false).expect("write");
    }
    bench.fs.write(file, mib * MIB, b"the end", false).expect("write");
    file
}

/// Copies `from` to the end of `to` by calls of up to `piece` bytes; returns how many it took.
fn copy(bench: &Bench, from: NodeId, to: NodeId, piece: u64) -> u64 {
    let (mut at, mut calls) = (bench.fs.getattr(to).expect("attributes").size, 0);
    while at < bench.fs.getattr(from).expect("attributes").size {
        at += bench.fs.copy_file_range(from, at, to, at, piece, false).expect("copy");
        calls += 1;
    }
    calls
}

/// Bytes that a call has for the log.
fn logged(bench: &Bench, call: impl FnOnce()) -> u64 {
    bench.fs.syncfs().expect("sync");
    let before = bench.store.statistics().device.bytes_written;
    call();
    bench.fs.syncfs().expect("sync");
    bench.store.statistics().device.bytes_written - before
}

#[test]
fn the_copy_of_a_large_file_is_one_clone_of_any_size() {
    let bench = usual();
    let costs = [8, 48].map(|mib| {
        let from = large(&bench, NodeId::ROOT, &format!("{mib}"), mib);
        bench.store.checkpoint().expect("checkpoint");
        let to = bench.file(NodeId::ROOT, &format!("copy of {mib}"));
        let cost = logged(&bench, || assert_eq!(copy(&bench, from, to, u64::MAX >> 2), 1));
        assert!(bench.read(from) == bench.read(to), "{mib} MiB");
        bench.store.checkpoint().expect("checkpoint");
        let (_, exclusive) = bench.fs.space_of_tree(to).expect("space");
        assert!(exclusive <= BLOCK, "{exclusive} bytes of {mib} MiB are the copy's alone");
        cost
    });
    assert!(costs.iter().all(|cost| *cost <= 8 << 10), "{costs:?} bytes for copies");
    bench.check(0);
}

#[test]
fn a_copy_in_pieces_is_a_clone_each_time() {
    let bench = usual();
    let from = large(&bench, NodeId::ROOT, "from", 32);
    bench.store.checkpoint().expect("checkpoint");
    let to = bench.file(NodeId::ROOT, "to");
    let mut calls = 0;
    let cost = logged(&bench, || calls = copy(&bench, from, to, ODD_PIECE));
    assert!(bench.read(from) == bench.read(to));
    assert!((7..=9).contains(&calls), "{calls} calls");
    // References to all blocks would take 230 bytes each.
    assert!(cost <= 24 << 10, "{cost} bytes for {calls} pieces");
    bench.check(0);
}

/// What was copied is a copy: what either file gets later the other one has not.
#[test]
fn a_copy_in_pieces_keeps_what_its_pieces_were() {
    let bench = usual();
    let from = large(&bench, NodeId::ROOT, "from", 16);
    let before = bench.read(from);
    let piece = 80 * BLOCK;
    let targets = ["source written", "target written", "target cut", "source replaced"];
    for (n, change) in targets.into_iter().enumerate() {
        let to = bench.file(NodeId::ROOT, change);
        assert_eq!(bench.fs.copy_file_range(from, 0, to, 0, piece, false).expect("copy"), piece);
        let mut expected = bench.read(from);
        match n {
            0 => drop(bench.fs.write(from, 5, b"changed", false).expect("write")),
            1 => {
                bench.fs.write(to, 5, b"other", false).expect("write");
                expected[5..10].copy_from_slice(b"other");
            }
            // Of the same length again, with a hole.
            2 => {
                for size in [70 * BLOCK, piece] {
                    bench.fs.setattr(to, &SetAttr { size: Some(size), ..Default::default() }).expect("size");
                }
                expected[(70 * BLOCK) as usize..piece as usize].fill(0);
            }
            _ => {
                for size in [0, before.len() as u64] {
                    let set = SetAttr { size: Some(size), ..Default::default() };
                    bench.fs.setattr(from, &set).expect("size");
                }
                expected[piece as usize..].fill(0);
            }
        }
        copy(&bench, from, to, u64::MAX >> 2);
        assert!(bench.read(to) == expected, "{change}");
    }
    assert!(bench.read(from).iter().all(|byte| *byte == 0));
    bench.check(0);
}

#[test]
fn a_copy_into_a_file_that_keeps_something_is_no_clone() {
    let bench = usual();
    let from = large(&bench, NodeId::ROOT, "from", 8);
    let to = large(&bench, NodeId::ROOT, "to", 10);
    let (source, mut expected) = (bench.read(from), bench.read(to));
    let copied = bench.fs.copy_file_range(from, 0, to, 0, 8 * MIB, false).expect("copy");
    assert_eq!(copied, 8 * MIB);
    expected[..copied as usize].copy_from_slice(&source[..copied as usize]);
    assert!(bench.read(to) == expected, "what lies behind the copy stays");
    // The whole of the longer one takes the place of all of the shorter one.
    assert_eq!(bench.fs.copy_file_range(to, 0, from, 0, u64::MAX >> 2, false).expect("copy"), 10 * MIB + 7);
    assert!(bench.read(from) == expected);
    bench.check(0);
}

/// Files without a name are copied from and to, and leave nothing behind.
#[test]
fn files_without_a_name_are_cloned_and_go() {
    let bench = usual();
    let from = large(&bench, NodeId::ROOT, "from", 8);
    let content = bench.read(from);
    let to = bench.fs.tmpfile(NodeId::ROOT, 0o600, &ROOT).expect("tmpfile").node;
    bench.fs.unlink(NodeId::ROOT, b"from").expect("unlink");
    copy(&bench, from, to, u64::MAX >> 2);
    let named = bench.file(NodeId::ROOT, "named");
    copy(&bench, to, named, u64::MAX >> 2);
    bench.fs.forget(from, 1);
    assert!(bench.read(to) == content && bench.read(named) == content);
    bench.fs.forget(to, 1);
    bench.fs.syncfs().expect("sync");
    bench.check(0);
    assert!(bench.read(named) == content);
}

/// A limit on exclusive bytes does not see what a clone shares; one on all bytes sees it once.
#[test]
fn limits_count_what_a_clone_adds() {
    let bench = usual();
    let outside = large(&bench, NodeId::ROOT, "outside", 16);
    let limited = |name: &str, limits| {
        let dir = bench.dir(NodeId::ROOT, name);
        bench.fs.set_quota(dir, Some(limits), &ROOT, false).expect("a limit");
        dir
    };
    let exclusive = limited("exclusive", TreeLimits { exclusive: Some(2 * MIB), total: None });
    let to = bench.file(exclusive, "copy");
    assert_eq!(copy(&bench, outside, to, u64::MAX >> 2), 1);

    let total = limited("total", TreeLimits { exclusive: None, total: Some(24 * MIB) });
    let first = bench.file(total, "first");
    assert_eq!(copy(&bench, outside, first, u64::MAX >> 2), 1);
    // The same once more takes nothing; another one does not fit whole.
    let second = bench.file(total, "second");
    assert_eq!(copy(&bench, first, second, u64::MAX >> 2), 1);
    let other = large(&bench, NodeId::ROOT, "other", 17);
    let third = bench.file(total, "third");
    let mut at = 0;
    let refused = loop {
        match bench.fs.copy_file_range(other, at, third, at, 5 * MIB, false) {
            Ok(copied) => at += copied,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), FsErrorKind::QuotaExceeded);
    assert!(at < 9 * MIB, "{at} bytes were copied into 8 MiB");
    bench.check(0);
}
