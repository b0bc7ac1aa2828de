use super::*;
use crate::types::*;
use crate::{FileSystem, merge_functions};
use espalier_engine::Batch;
use espalier_storage::{Environment, MemoryDevice, SystemEnvironment};
use std::sync::Arc;

/// A store with a few files: /dir/file (3 blocks), /dir/one = /two (linked), /sparse.
fn sample() -> (Arc<Store>, Arc<FileSystem>) {
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Store::format(device.clone(), env.clone(), &Default::default()).unwrap();
    let options =
        espalier_engine::OpenOptions { merge: merge_functions(), memory: 8 << 20, ..Default::default() };
    let store = Store::open(device, env.clone(), options).unwrap();
    FileSystem::format(&store, &FormatOptions { block_size: 4096, ..Default::default() }).unwrap();
    let fs = FileSystem::open(store.clone(), env, Default::default()).unwrap();
    let caller = Caller::default();
    let dir = fs.mkdir(NodeId::ROOT, b"dir", 0o755, &caller).unwrap().node;
    let file = fs.mknod(dir, b"file", NewNode::Regular, 0o644, &caller).unwrap().node;
    fs.write(file, 0, &[7; 9000], false).unwrap();
    fs.setxattr(file, b"user.large", &[1; 5000], XattrMode::Set, false).unwrap();
    let one = fs.mknod(dir, b"one", NewNode::Regular, 0o644, &caller).unwrap().node;
    fs.write(one, 0, &[8; 100], false).unwrap();
    fs.link(one, NodeId::ROOT, b"two").unwrap();
    let sparse = fs.mknod(NodeId::ROOT, b"sparse", NewNode::Regular, 0o644, &caller).unwrap().node;
    fs.write(sparse, 100_000, &[9; 10], false).unwrap();
    (store, fs)
}

fn run(store: &Store) -> CheckReport {
    check(store, "main", &mut |_| {}).unwrap()
}

#[track_caller]
fn damaged(damage: impl FnOnce(&FileSystem, &mut Batch), path: &str, words: &str) {
    let (store, fs) = sample();
    assert_eq!(run(&store).problems, []);
    let mut batch = Batch::new();
    damage(&fs, &mut batch);
    store.commit(batch).unwrap();
    let problems = run(&store).problems;
    assert!(problems.iter().any(|p| p.path == path && p.message.contains(words)), "{problems:#?}");
}

fn dir() -> Vec<u8> {
    layout::content_prefix(b"", b"dir")
}

fn file() -> Vec<u8> {
    layout::entry_key(&dir(), b"file")
}

#[test]
fn a_sound_volume_has_no_problems() {
    let (store, _fs) = sample();
    let report = run(&store);
    assert_eq!(report.problems, []);
    assert_eq!((report.directories, report.files, report.links), (2, 3, 2));
    assert_eq!((report.blocks, report.bytes, report.orphans), (5, 9000 + 100 + 1706, 0));
    assert!(check(&store, "other", &mut |_| {}).is_err());
}

#[test]
fn damage_is_found_and_named() {
    damaged(|fs, b| b.delete(fs.metadata(), &file()), "/dir/file", "does not exist");
    damaged(|fs, b| b.delete(fs.metadata(), &file()), "/dir", "has 1 entries, and says 2");
    damaged(|fs, b| b.delete(fs.metadata(), layout::ROOT_KEY), "/", "root directory is missing");
    damaged(|fs, b| b.delete(fs.metadata(), &layout::entry_key(b"", b"dir")), "/dir", "does not exist");
    damaged(|fs, b| b.insert(fs.metadata(), &file(), &b"\x01junk"[..]), "/dir/file", "too short");
    damaged(|fs, b| b.insert(fs.metadata(), b"\x77", &b""[..]), "key w", "cannot be understood");
    damaged(|fs, b| b.delete(fs.data(), &layout::block_key(&file(), 1)), "/dir/file", "2 of 3 blocks");
    damaged(
        |fs, b| b.insert(fs.data(), &layout::block_key(&file(), 3), &b"x"[..]),
        "/dir/file",
        "block 3 has 1 bytes",
    );
    damaged(
        |fs, b| b.insert(fs.data(), &layout::block_key(&file(), 2), &[0; 2000][..]),
        "/dir/file",
        "block 2 has 2000",
    );
    damaged(|fs, b| b.insert(fs.data(), b"\x77", &b"x"[..]), "key w", "cannot be understood");
    damaged(|fs, b| b.delete(fs.data(), &layout::xattr_key(&file(), b"user.large")), "/dir/file", "1 values");
    damaged(
        |fs, b| b.insert(fs.data(), &layout::xattr_key(&file(), b"user.b"), &b"x"[..]),
        "/dir/file",
        "user.b",
    );
    damaged(|fs, b| b.delete(fs.link_index(), &layout::entry_key(b"", b"two")), "/two", "links index");
    damaged(
        |fs, b| b.delete(fs.metadata(), &layout::entry_key(b"", b"two")),
        "/dir/one",
        "has 1 names, and says 2",
    );
    damaged(
        |fs, b| b.delete_range(fs.metadata(), layout::entries_range(&layout::area_prefix(b""))),
        "/two",
        "is missing",
    );
}

#[test]
fn emptied_directories_are_noticed() {
    let everything =
        |fs: &FileSystem, b: &mut Batch| b.delete_range(fs.metadata(), layout::content_range(&dir()));
    damaged(everything, "/dir", "should have 2 entries");
}
