//! Limits on trees: when calls are refused, what counts, and which callers may set them.

use crate::Bench;
use espalier_engine::{HeldTally, IndexId, KeyRange, OpenOptions, Store};
use espalier_fs::{
    Caller, Fallocate, FileSystem, FormatOptions, FsErrorKind, NewNode, NodeId, RenameMode, SetAttr,
    TreeLimits, TreeQuota, XattrMode, merge_functions,
};
use espalier_storage::{Device, Environment, MemoryDevice, Random, SystemEnvironment};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const USER: Caller = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
const CHUNK_BYTES: usize = 64 << 10;

/// What a tree may hold beyond its limit, and what it may be refused before: a 128th, one batch of
/// metadata, the nodes on its borders.
const SLACK_BYTES: u64 = 512 << 10;

/// With nodes and blocks of the usual size.
pub(crate) fn usual() -> Bench {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
    let options = OpenOptions { memory: 64 << 20, merge: merge_functions(), ..Default::default() };
    let store = Store::open(device.clone(), env.clone(), options).expect("open");
    FileSystem::format(&store, &FormatOptions { mode: 0o777, ..Default::default() }).expect("format");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}

fn exclusive(bytes: u64) -> Option<TreeLimits> {
    Some(TreeLimits { exclusive: Some(bytes), total: None })
}

fn total(bytes: u64) -> Option<TreeLimits> {
    Some(TreeLimits { exclusive: None, total: Some(bytes) })
}

impl Bench {
    fn limited(&self, name: &str, limits: Option<TreeLimits>) -> NodeId {
        let dir = self.dir(NodeId::ROOT, name);
        self.fs.set_quota(dir, limits, &ROOT, false).expect("a limit can be set");
        dir
    }

    /// Writes bytes that cannot be compressed until that is refused, or `most` bytes; returns how
    /// many.
    fn fill_up(&self, file: NodeId, from: u64, most: u64) -> u64 {
        let mut random = Random::new(from + most);
        let mut data = vec![0; CHUNK_BYTES];
        let mut done = 0;
        while done < most {
            random.fill(&mut data);
            match self.fs.write(file, from + done, &data, false) {
                Ok(count) => done += count as u64,
                Err(error) => {
                    assert_eq!(error.kind(), FsErrorKind::QuotaExceeded, "{error}");
                    break;
                }
            }
        }
        done
    }

    fn quota(&self, dir: NodeId) -> TreeQuota {
        self.fs.quota(dir, &ROOT).expect("quota").expect("it has limits")
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(&self, result: Result<T, espalier_fs::FsError>) {
        assert_eq!(result.expect_err("it is full").kind(), FsErrorKind::QuotaExceeded);
    }
}

#[track_caller]
fn about(found: u64, expected: u64) {
    assert!(found + SLACK_BYTES >= expected && found <= expected + SLACK_BYTES, "{found} for {expected}");
}

#[test]
fn a_tree_takes_what_its_limit_says_and_again_what_was_removed() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let file = bench.file(dir, "file");
    let written = bench.fill_up(file, 0, 64 * MIB);
    about(written, 8 * MIB);
    about(bench.quota(dir).exclusive, 8 * MIB);
    // All that adds something is refused, and nothing that takes away.
    bench.fs.setxattr(file, b"user.a", &[1; 60_000], XattrMode::Set, false).expect_err("it is full");
    bench.refused(bench.fs.write(file, written, &vec![1; CHUNK_BYTES], false));
    bench.fs.mknod(NodeId::ROOT, b"outside", NewNode::Regular, 0o644, &ROOT).expect("outside is room");
    bench.fs.setattr(file, &SetAttr { size: Some(written / 2), ..Default::default() }).expect("truncate");
    let again = bench.fill_up(file, written / 2, 64 * MIB);
    about(again, 8 * MIB - written / 2);
    bench.fs.unlink(dir, b"file").expect("unlink");
    bench.fs.forget(file, 1);
    let file = bench.file(dir, "file");
    about(bench.fill_up(file, 0, 64 * MIB), 8 * MIB);
    bench.check(0);
}

#[test]
fn a_full_tree_may_be_written_over_and_no_more() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let (file, sparse) = (bench.file(dir, "file"), bench.file(dir, "sparse"));
    bench.fs.setattr(sparse, &SetAttr { size: Some(32 * MIB), ..Default::default() }).expect("a hole");
    assert_eq!(bench.fill_up(sparse, 16 * MIB, MIB), MIB);
    let written = bench.fill_up(file, 0, 64 * MIB);
    for _ in 0..3 {
        assert_eq!(bench.fill_up(file, 0, written), written, "it needs no more room");
        assert_eq!(bench.fill_up(sparse, 16 * MIB, MIB), MIB);
    }
    bench.refused(bench.fs.write(file, written, &vec![1; CHUNK_BYTES], false));
    bench.refused(bench.fs.write(sparse, 0, &vec![1; CHUNK_BYTES], false));
    // With a limit below what it holds, too.
    bench.fs.set_quota(dir, exclusive(2 * MIB), &ROOT, false).expect("set");
    assert_eq!(bench.fill_up(file, 0, written), written);
    bench.refused(bench.fs.write(file, written, &vec![1; CHUNK_BYTES], false));
    bench.check(0);
}

#[test]
fn writing_over_what_is_shared_needs_room() {
    let bench = usual();
    let dir = bench.dir(NodeId::ROOT, "source");
    let file = bench.file(dir, "file");
    bench.fill_up(file, 0, 12 * MIB);
    let copy = bench.fs.clone_tree(dir, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    bench.fs.set_quota(copy, exclusive(4 * MIB), &ROOT, false).expect("set");
    let file = bench.fs.lookup(copy, b"file").expect("lookup").node;
    about(bench.fill_up(file, 0, 12 * MIB), 4 * MIB);
    bench.check(0);
}

#[test]
fn small_files_and_names_count_too() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(MIB));
    let mut made = 0;
    let error = loop {
        match bench.fs.mknod(dir, format!("{made:06}-{:0100}", 0).as_bytes(), NewNode::Regular, 0o644, &ROOT)
        {
            Ok(entry) => bench.fs.forget(entry.node, 1),
            Err(error) => break error,
        }
        made += 1;
        assert!(made < 100_000, "empty files do not count");
    };
    assert_eq!(error.kind(), FsErrorKind::QuotaExceeded);
    assert!(made > 1000, "{made}");
}

#[test]
fn a_clone_has_a_limit_of_its_own_and_shares_do_not_count() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let file = bench.file(dir, "file");
    about(bench.fill_up(file, 0, 6 * MIB), 6 * MIB);
    let copy = bench.fs.clone_tree(dir, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    assert_eq!(bench.quota(copy).limits, bench.quota(dir).limits);
    about(bench.quota(copy).exclusive, 0);
    let more = bench.file(copy, "more");
    about(bench.fill_up(more, 0, 64 * MIB), 8 * MIB);
    // What the copy wrote does not count for the source, which shares the rest.
    let more = bench.file(dir, "more");
    about(bench.fill_up(more, 0, 64 * MIB), 8 * MIB);
    // Alone again it holds all.
    bench.fs.remove_tree(NodeId::ROOT, b"copy", &ROOT).expect("remove");
    bench.store.checkpoint().expect("checkpoint");
    bench.refused(bench.fs.write(more, 64 * MIB, &vec![1; CHUNK_BYTES], false));
    assert_eq!(bench.fill_up(more, 0, 4 * MIB), 4 * MIB, "no more room is needed");
    bench.check(1);
}

#[test]
fn a_limit_on_all_counts_what_is_shared() {
    let bench = usual();
    let source = bench.dir(NodeId::ROOT, "source");
    let file = bench.file(source, "file");
    about(bench.fill_up(file, 0, 6 * MIB), 6 * MIB);
    let dir = bench.limited("limited", total(8 * MIB));
    let copy = bench.fs.clone_tree(source, dir, b"copy", &ROOT).expect("there is room").node;
    about(bench.quota(dir).total.expect("it is limited"), 6 * MIB);
    bench.fs.clone_tree(source, dir, b"again", &ROOT).expect("it shares all with the first");
    let other = bench.dir(NodeId::ROOT, "other");
    let file = bench.file(other, "file");
    about(bench.fill_up(file, 0, 4 * MIB), 4 * MIB);
    bench.refused(bench.fs.clone_tree(other, dir, b"other", &ROOT));
    bench.refused(bench.fs.rename(NodeId::ROOT, b"other", dir, b"other", RenameMode::Replace));
    let more = bench.file(copy, "more");
    about(bench.fill_up(more, 0, 64 * MIB), 2 * MIB);
}

#[test]
fn what_moves_in_counts_and_what_moves_out_does_not() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let other = bench.dir(NodeId::ROOT, "other");
    let (tree, file) = (bench.dir(other, "tree"), bench.file(other, "file"));
    let inner = bench.file(tree, "inner");
    about(bench.fill_up(inner, 0, 5 * MIB), 5 * MIB);
    about(bench.fill_up(file, 0, 5 * MIB), 5 * MIB);
    bench.fs.rename(other, b"tree", dir, b"tree", RenameMode::Replace).expect("there is room");
    about(bench.quota(dir).exclusive, 5 * MIB);
    bench.refused(bench.fs.rename(other, b"file", dir, b"file", RenameMode::Replace));
    bench.fs.rename(dir, b"tree", other, b"tree", RenameMode::Replace).expect("out");
    bench.fs.rename(other, b"file", dir, b"file", RenameMode::Replace).expect("there is room again");
    about(bench.quota(dir).exclusive, 5 * MIB);
    // The limit moves with its tree.
    bench.fs.rename(NodeId::ROOT, b"limited", other, b"moved", RenameMode::Replace).expect("rename");
    let more = bench.file(dir, "more");
    about(bench.fill_up(more, 0, 64 * MIB), 3 * MIB);
    bench.check(0);
}

#[test]
fn all_limits_above_count() {
    let bench = usual();
    let outer = bench.limited("outer", exclusive(6 * MIB));
    let inner = bench.dir(outer, "inner");
    bench.fs.set_quota(inner, exclusive(4 * MIB), &ROOT, false).expect("set");
    let file = bench.file(inner, "file");
    about(bench.fill_up(file, 0, 64 * MIB), 4 * MIB);
    let file = bench.file(outer, "file");
    about(bench.fill_up(file, 0, 64 * MIB), 2 * MIB);
    bench.fs.set_quota(inner, None, &ROOT, false).expect("clear");
    assert_eq!(bench.fs.quota(inner, &ROOT).expect("quota"), None);
    bench.fs.unlink(outer, b"file").expect("unlink");
    bench.fs.forget(file, 1);
    let file = bench.file(inner, "more");
    about(bench.fill_up(file, 0, 64 * MIB), 2 * MIB);
}

#[test]
fn files_without_a_name_count_until_they_go() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let (temporary, unlinked) =
        (bench.fs.tmpfile(dir, 0o600, &ROOT).expect("tmpfile").node, bench.file(dir, "f"));
    let sub = bench.dir(dir, "sub");
    let held = bench.file(sub, "held");
    about(bench.fill_up(temporary, 0, 3 * MIB), 3 * MIB);
    about(bench.fill_up(unlinked, 0, 3 * MIB), 3 * MIB);
    bench.fs.unlink(dir, b"f").expect("unlink");
    // Another file needs the place: the data moves away, and counts all the same.
    let file = bench.file(dir, "f");
    about(bench.fill_up(unlinked, 3 * MIB, MIB), MIB);
    about(bench.fill_up(file, 0, 64 * MIB), MIB);
    bench.fs.forget(unlinked, 1);
    about(bench.fill_up(held, 0, 64 * MIB), 4 * MIB);
    bench.fs.remove_tree(dir, b"sub", &ROOT).expect("remove");
    // A removed tree counts while it is in use.
    about(bench.fill_up(held, 64 * MIB, 64 * MIB), 0);
    bench.fs.forget(held, 1);
    bench.fs.forget(sub, 1);
    about(bench.fill_up(file, 2 * MIB, 64 * MIB), 4 * MIB);
    bench.fs.forget(temporary, 1);
    about(bench.fill_up(file, 32 * MIB, 64 * MIB), 3 * MIB);
}

#[test]
fn files_with_several_names_stay_inside() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let (one, outside) = (bench.file(dir, "one"), bench.file(NodeId::ROOT, "outside"));
    bench.fs.link(one, dir, b"two").expect("link");
    about(bench.fill_up(one, 0, 64 * MIB), 8 * MIB);
    bench.fs.setattr(one, &SetAttr { size: Some(0), ..Default::default() }).expect("truncate");
    let crosses = |result: Result<(), espalier_fs::FsError>| {
        assert_eq!(result.expect_err("a border").kind(), FsErrorKind::CrossesLimit);
    };
    crosses(bench.fs.link(one, NodeId::ROOT, b"three").map(drop));
    bench.fs.link(outside, NodeId::ROOT, b"outside-too").expect("link");
    crosses(bench.fs.link(outside, dir, b"three").map(drop));
    crosses(bench.fs.rename(dir, b"two", NodeId::ROOT, b"two", RenameMode::Replace));
    crosses(bench.fs.rename(NodeId::ROOT, b"outside", dir, b"out", RenameMode::Replace));
    // A file with names on both sides would lie on neither.
    let plain = bench.dir(NodeId::ROOT, "plain");
    let file = bench.file(plain, "one");
    bench.fs.link(file, NodeId::ROOT, b"two").expect("link");
    let error = bench.fs.set_quota(plain, exclusive(MIB), &ROOT, false).expect_err("a name outside");
    assert_eq!(error.kind(), FsErrorKind::Unsupported);
    assert!(error.to_string().contains("/plain/one has 1 names outside"), "{error}");
    let copy = bench.fs.clone_tree(plain, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    bench.fs.set_quota(copy, exclusive(MIB), &ROOT, false).expect("a clone has an area of its own");
    bench.fs.unlink(NodeId::ROOT, b"two").expect("unlink");
    bench.fs.set_quota(plain, exclusive(MIB), &ROOT, false).expect("all names are inside");
    bench.check(0);
}

#[test]
fn reserved_room_counts_and_can_be_written() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let file = bench.file(dir, "file");
    let allocate = Fallocate::Allocate { keep_size: false };
    bench.refused(bench.fs.fallocate(file, 0, 16 * MIB, allocate, false));
    bench.fs.fallocate(file, 0, 6 * MIB, allocate, false).expect("there is room");
    about(bench.quota(dir).exclusive, 6 * MIB);
    let more = bench.file(dir, "more");
    about(bench.fill_up(more, 0, 64 * MIB), 2 * MIB);
    assert_eq!(bench.fill_up(file, 0, 6 * MIB), 6 * MIB, "it was reserved");
    bench.fs.fallocate(file, 0, 6 * MIB, Fallocate::PunchHole, false).expect("punch");
    about(bench.fill_up(more, 2 * MIB, 64 * MIB), 6 * MIB);
}

#[test]
fn own_snapshots_count_and_a_restored_tree_keeps_its_limit() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let file = bench.file(dir, "file");
    about(bench.fill_up(file, 0, 5 * MIB), 5 * MIB);
    bench.fs.snapshot_tree(dir, "one", false, &ROOT).expect("snapshot");
    bench.fs.setattr(file, &SetAttr { size: Some(0), ..Default::default() }).expect("truncate");
    about(bench.quota(dir).exclusive, 5 * MIB);
    about(bench.fill_up(file, 0, 64 * MIB), 3 * MIB);
    bench.fs.set_quota(dir, exclusive(9 * MIB), &ROOT, false).expect("set");
    bench.fs.forget(file, 1);
    bench.fs.forget(dir, 1);
    let dir = bench.fs.restore_tree(NodeId::ROOT, b"limited", "one", &ROOT).expect("restore").node;
    assert_eq!(bench.quota(dir).limits.exclusive, Some(9 * MIB));
    about(bench.quota(dir).exclusive, 5 * MIB);
    bench.fs.snapshot_tree_delete(dir, "one", &ROOT).expect("delete");
    bench.store.checkpoint().expect("checkpoint");
    bench.check(0);
}

#[test]
fn statfs_inside_shows_the_limit() {
    let bench = usual();
    let dir = bench.limited("limited", exclusive(8 * MIB));
    let file = bench.file(dir, "file");
    about(bench.fill_up(file, 0, 3 * MIB), 3 * MIB);
    let sub = bench.dir(dir, "sub");
    let outside = bench.fs.statfs_at(NodeId::ROOT).expect("statfs");
    for node in [dir, file, sub] {
        let stat = bench.fs.statfs_at(node).expect("statfs");
        let unit = u64::from(stat.block_size);
        assert_eq!(stat.blocks * unit, 8 * MIB);
        about(stat.free * unit, 5 * MIB);
        assert!(outside.blocks > 10 * stat.blocks);
    }
    // A limit beyond what there is leaves no more than there is.
    bench.fs.set_quota(dir, exclusive(1 << 50), &ROOT, false).expect("set");
    let stat = bench.fs.statfs_at(file).expect("statfs");
    assert_eq!((stat.blocks, stat.free <= outside.free), (outside.blocks, true));
}

#[test]
fn a_limit_survives_a_crash_and_is_seen_before_the_first_write() {
    let mut bench = usual();
    let dir = bench.limited("limited", exclusive(4 * MIB));
    let file = bench.file(dir, "file");
    about(bench.fill_up(file, 0, 3 * MIB), 3 * MIB);
    bench.fs.syncfs().expect("sync");
    bench = remounted(bench);
    let dir = bench.fs.lookup(NodeId::ROOT, b"limited").expect("lookup").node;
    let file = bench.fs.lookup(dir, b"file").expect("lookup").node;
    about(bench.fill_up(file, 3 * MIB, 64 * MIB), MIB);
    bench.check(0);
}

#[test]
fn only_callers_that_a_limit_cannot_hold_may_set_it() {
    let bench = usual();
    let made = |parent, name: &str, caller: &Caller| {
        bench.fs.mkdir(parent, name.as_bytes(), 0o755, caller).expect("mkdir").node
    };
    let home = made(NodeId::ROOT, "home", &USER);
    let (own, given) = (made(home, "own", &USER), made(NodeId::ROOT, "given", &USER));
    let foreign = made(home, "foreign", &ROOT);
    bench.fs.set_quota(own, exclusive(MIB), &USER, false).expect("the user may replace it anyhow");
    bench.fs.set_quota(own, None, &USER, false).expect("clear");
    bench.fs.set_quota(given, exclusive(MIB), &ROOT, false).expect("root may");
    for limits in [None, exclusive(2 * MIB), exclusive(1)] {
        for dir in [given, foreign, home] {
            let error = bench.fs.set_quota(dir, limits, &USER, false).expect_err("not this user's to set");
            assert_eq!(error.kind(), FsErrorKind::Permission);
        }
    }
    bench.fs.set_quota(given, exclusive(2 * MIB), &USER, true).expect("the user of the mount may");
    assert!(bench.fs.quota(given, &USER).expect("the owner may look").is_some());
    assert!(bench.fs.quota(given, &Caller { uid: 8, ..USER }).is_err());
    // Inside of what the user was given the user may set limits, which all count.
    let sub = made(given, "sub", &USER);
    bench.fs.set_quota(sub, exclusive(64 * MIB), &USER, false).expect("a limit of its own");
    let file = bench.file(sub, "file");
    about(bench.fill_up(file, 0, 64 * MIB), 2 * MIB);
    let file = bench.file(home, "file");
    let error = bench.fs.set_quota(file, exclusive(MIB), &ROOT, false).expect_err("a file");
    assert_eq!(error.kind(), FsErrorKind::NotDirectory);
}

#[test]
fn writers_in_turns_each_get_what_their_limits_say() {
    let bench = usual();
    let files: Vec<_> = [4, 6, 8]
        .map(|mib| (mib, bench.limited(&format!("limited-{mib}"), exclusive(mib * MIB))))
        .into_iter()
        .map(|(mib, dir)| (mib, bench.file(dir, "file"), 0))
        .collect();
    let outside = bench.file(NodeId::ROOT, "outside");
    let mut files = files;
    for turn in 0..160 {
        bench.fill_up(outside, turn * CHUNK_BYTES as u64, CHUNK_BYTES as u64);
        for (_, file, written) in &mut files {
            *written += bench.fill_up(*file, *written, CHUNK_BYTES as u64);
        }
    }
    for (mib, _, written) in files {
        about(written, mib * MIB);
    }
}

/// Pushes down all that waits in the store.
fn settle(bench: &Bench) {
    let volume = bench.store.volume_by_name("main").expect("it is there").id;
    let all = |index| (IndexId { volume, index }, KeyRange::all());
    bench.store.settle(&[0, 1, 2].map(all), Duration::from_secs(60)).expect("settle");
    while bench.store.step().expect("a step") {}
    bench.store.checkpoint().expect("checkpoint");
}

/// What a directory holds alone, whatever was shown of it lately.
fn exclusive_bytes(bench: &Bench, name: &str) -> u64 {
    let volume = bench.store.volume_by_name("main").expect("it is there").id;
    let range = |index| (IndexId { volume, index }, KeyRange::prefix(name.as_bytes()));
    let held = bench.store.bytes_held(&mut HeldTally::default(), &[0, 1, 2].map(range), false);
    held.expect("it is counted").exclusive
}

#[test]
fn what_writes_take_along_of_what_is_shared_counts() {
    let bench = usual();
    let dir = bench.dir(NodeId::ROOT, "source");
    let file = bench.file(dir, "file");
    bench.fill_up(file, 0, 48 * MIB);
    let copy = bench.fs.clone_tree(dir, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    bench.fs.set_quota(copy, exclusive(4 * MIB), &ROOT, false).expect("set");
    let file = bench.fs.lookup(copy, b"file").expect("lookup").node;
    // Of each a page becomes the clone's own, at least.
    let mut places = (0..48 * MIB).step_by(16 << 10);
    bench.refused(places.try_for_each(|at| bench.fs.write(file, at, b"x", false).map(drop)));
    settle(&bench);
    let held = exclusive_bytes(&bench, "copy");
    assert!(held <= 4 * MIB + 2 * SLACK_BYTES, "{held}");
}

/// A directory with so many empty files, all of them in leaves.
fn many_files(bench: &Bench, name: &str, count: usize) -> NodeId {
    let dir = bench.dir(NodeId::ROOT, name);
    for number in 0..count {
        let name = format!("{number:06}-{:0100}", 0);
        let entry = bench.fs.mknod(dir, name.as_bytes(), NewNode::Regular, 0o644, &ROOT).expect("mknod");
        bench.fs.forget(entry.node, 1);
    }
    dir
}

#[test]
fn changed_attributes_are_not_refused_and_count_for_the_next_write() {
    let bench = usual();
    let source = many_files(&bench, "source", 20_000);
    settle(&bench);
    let copy = bench.fs.clone_tree(source, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    bench.fs.set_quota(copy, exclusive(MIB), &ROOT, false).expect("set");
    let more = bench.file(copy, "more");
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    for number in 0..20_000 {
        let name = format!("{number:06}-{:0100}", 0);
        let entry = bench.fs.lookup(copy, name.as_bytes()).expect("it is there");
        bench.fs.setattr(entry.node, &set).expect("attributes can be changed");
        bench.fs.forget(entry.node, 1);
    }
    // All entries are the clone's own now.
    bench.refused(bench.fs.write(more, 0, &[1; CHUNK_BYTES], false));
    assert!(bench.quota(copy).exclusive > 2 * MIB);
}

#[test]
fn counting_does_not_copy_what_a_clone_shares() {
    let bench = usual();
    // The entries wait as messages, which source and clone share.
    let source = many_files(&bench, "source", 20_000);
    let copy = bench.fs.clone_tree(source, NodeId::ROOT, b"copy", &ROOT).expect("clone").node;
    bench.fs.set_quota(copy, exclusive(64 << 10), &ROOT, false).expect("set");
    bench.store.checkpoint().expect("checkpoint");
    about(exclusive_bytes(&bench, "copy"), 0);
    about(bench.quota(copy).exclusive, 0);
    about(exclusive_bytes(&bench, "copy"), 0);
    bench.fs.mknod(copy, b"more", NewNode::Regular, 0o644, &ROOT).expect("there is room");
}

#[test]
fn a_directory_with_names_of_linked_files_takes_these_along() {
    let mut bench = usual();
    let dir = bench.dir(NodeId::ROOT, "dir");
    let sub = bench.dir(dir, "sub");
    let (large, small) = (bench.file(dir, "large"), bench.file(sub, "small"));
    let other = bench.file(NodeId::ROOT, "other");
    bench.fs.link(other, NodeId::ROOT, b"other-too").expect("link");
    bench.fill_up(large, 0, 3 * MIB);
    bench.fs.write(small, 0, b"contents", false).expect("write");
    bench.fs.setxattr(small, b"user.a", &[7; 60_000], XattrMode::Set, false).expect("setxattr");
    bench.fs.link(large, sub, b"large-too").expect("link");
    bench.fs.link(small, dir, b"small-too").expect("link");
    let unlinked = bench.file(dir, "unlinked");
    bench.fs.link(unlinked, sub, b"unlinked").expect("link");
    bench.fill_up(unlinked, 0, MIB);
    bench.fs.unlink(dir, b"unlinked").expect("unlink");
    bench.fs.unlink(sub, b"unlinked").expect("unlink");
    // One is in memory, the other not.
    let before = [large, small].map(|file| bench.fs.getattr(file).expect("attributes"));
    bench.fs.forget(small, 2);
    bench.fs.set_quota(dir, exclusive(8 * MIB), &ROOT, false).expect("set");
    about(bench.quota(dir).exclusive, 3 * MIB);
    for round in 0..2 {
        let dir = bench.fs.lookup(NodeId::ROOT, b"dir").expect("lookup").node;
        let sub = bench.fs.lookup(dir, b"sub").expect("lookup").node;
        let found = [(dir, &b"large"[..]), (dir, b"small-too"), (sub, b"large-too"), (sub, b"small")]
            .map(|(parent, name)| bench.fs.lookup(parent, name).expect("lookup").attr);
        for (attr, before) in found.iter().zip(before.iter().chain(&before)) {
            assert_eq!((attr.ino, attr.nlink, attr.size), (before.ino, before.nlink, before.size));
        }
        let small = bench.fs.lookup(sub, b"small").expect("lookup").node;
        assert_eq!(bench.read(small), b"contents");
        assert_eq!(bench.fs.getxattr(small, b"user.a").expect("getxattr"), [7; 60_000]);
        if round == 0 {
            about(bench.fs.getattr(unlinked).expect("it is in use").size, MIB);
            let mut data = vec![0; CHUNK_BYTES];
            assert_eq!(bench.fs.read(unlinked, 0, &mut data).expect("read"), CHUNK_BYTES);
            bench.fs.forget(unlinked, 1);
            let crossed = bench.fs.link(large, NodeId::ROOT, b"out").expect_err("a border");
            assert_eq!(crossed.kind(), FsErrorKind::CrossesLimit);
            bench.fs.syncfs().expect("sync");
            bench = remounted(bench);
        }
    }
    let file = bench.fs.lookup(NodeId::ROOT, b"dir").expect("lookup").node;
    let file = bench.file(file, "more");
    about(bench.fill_up(file, 0, 64 * MIB), 5 * MIB);
    bench.check(0);
}

/// As after a crash: nothing is given back or closed.
fn remounted(bench: Bench) -> Bench {
    let Bench { device, env, store, fs } = bench;
    drop((fs, store));
    let options = OpenOptions { memory: 64 << 20, merge: merge_functions(), ..Default::default() };
    let store = Store::open(device.clone(), env.clone(), options).expect("open");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}
