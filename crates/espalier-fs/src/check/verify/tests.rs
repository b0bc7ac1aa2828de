use super::*;
use crate::FileSystem;
use crate::check::report::*;
use crate::model::record::{AreaMark, Link};
use crate::model::types::*;
use espalier_engine::Batch;
use std::sync::Arc;

/// A store with a few files: /dir/file (3 blocks), /dir/one = /two (linked), /sparse.
fn sample() -> (Arc<Store>, Arc<FileSystem>) {
    let (store, _, fs) = crate::test_support::empty();
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
    damaged(|fs, b| b.delete(fs.volume.metadata(), &file()), "/dir/file", "does not exist");
    damaged(|fs, b| b.delete(fs.volume.metadata(), &file()), "/dir", "has 1 entries, and says 2");
    damaged(|fs, b| b.delete(fs.volume.metadata(), layout::ROOT_KEY), "/", "root directory is missing");
    damaged(
        |fs, b| b.delete(fs.volume.metadata(), &layout::entry_key(b"", b"dir")),
        "/dir",
        "does not exist",
    );
    damaged(|fs, b| b.insert(fs.volume.metadata(), &file(), &b"\x01junk"[..]), "/dir/file", "too short");
    damaged(|fs, b| b.insert(fs.volume.metadata(), b"\x77", &b""[..]), "key w", "cannot be understood");
    damaged(|fs, b| b.delete(fs.volume.data(), &layout::block_key(&file(), 1)), "/dir/file", "2 of 3 blocks");
    damaged(
        |fs, b| b.insert(fs.volume.data(), &layout::block_key(&file(), 3), &b"x"[..]),
        "/dir/file",
        "block 3 has 1 bytes",
    );
    damaged(
        |fs, b| b.insert(fs.volume.data(), &layout::block_key(&file(), 2), &[0; 2000][..]),
        "/dir/file",
        "block 2 has 2000",
    );
    damaged(|fs, b| b.insert(fs.volume.data(), b"\x77", &b"x"[..]), "key w", "cannot be understood");
    damaged(
        |fs, b| b.delete(fs.volume.data(), &layout::xattr_key(&file(), b"user.large")),
        "/dir/file",
        "1 values",
    );
    damaged(
        |fs, b| b.insert(fs.volume.data(), &layout::xattr_key(&file(), b"user.b"), &b"x"[..]),
        "/dir/file",
        "user.b",
    );
    damaged(|fs, b| b.delete(fs.volume.links(), &layout::entry_key(b"", b"two")), "/two", "links index");
    damaged(
        |fs, b| b.delete(fs.volume.metadata(), &layout::entry_key(b"", b"two")),
        "/dir/one",
        "has 1 names, and says 2",
    );
    damaged(
        |fs, b| b.delete_range(fs.volume.metadata(), layout::entries_range(&layout::area_prefix(b""))),
        "/two",
        "is missing",
    );
}

#[test]
fn emptied_directories_are_noticed() {
    let everything =
        |fs: &FileSystem, b: &mut Batch| b.delete_range(fs.volume.metadata(), layout::content_range(&dir()));
    damaged(everything, "/dir", "should have 2 entries");
}

/// Changes what the entry `key` says.
fn edit(fs: &FileSystem, batch: &mut Batch, key: &[u8], change: impl FnOnce(&mut Inode)) {
    let value = fs.volume.store.get(fs.volume.metadata(), key).unwrap().expect("the entry is there");
    let Record::Inode(mut inode) = Record::decode(&value).unwrap() else { panic!("a link") };
    change(&mut inode);
    batch.insert(fs.volume.metadata(), key, inode.encode());
}

fn root_entry(name: &[u8]) -> Vec<u8> {
    layout::entry_key(b"", name)
}

#[test]
fn wrong_counts_of_directories_are_found() {
    damaged(|fs, b| edit(fs, b, &root_entry(b"dir"), |dir| dir.size = 3), "/dir", "2 entries, and says 3");
    damaged(
        |fs, b| edit(fs, b, &root_entry(b"dir"), |dir| dir.links = 1),
        "/dir",
        "0 subdirectories, and says 1",
    );
    damaged(
        |fs, b| edit(fs, b, layout::ROOT_KEY, |root| root.links = 2),
        "/",
        "1 subdirectories, and says 2",
    );
    let hollow = |fs: &FileSystem, b: &mut Batch| {
        let mut inode = Inode::new(FileKind::Directory, 0o755, 0, 0, 999, 0);
        inode.links = 1;
        b.insert(fs.volume.metadata(), &root_entry(b"hollow"), inode.encode());
    };
    damaged(hollow, "/hollow", "an empty directory with subdirectories");
    let no_directory = |fs: &FileSystem, b: &mut Batch| {
        b.insert(
            fs.volume.metadata(),
            layout::ROOT_KEY,
            Inode::new(FileKind::Regular, 0o644, 0, 0, 1, 0).encode(),
        );
    };
    damaged(no_directory, "/", "the root is no directory");
}

#[test]
fn links_that_do_not_agree_are_found() {
    let two = || root_entry(b"two");
    let contradicts = |fs: &FileSystem, b: &mut Batch| {
        let value = fs.volume.store.get(fs.volume.metadata(), &two()).unwrap().unwrap();
        let Record::Link(link) = Record::decode(&value).unwrap() else { panic!("no link") };
        let other = Link { number: link.number + 1000, ..link };
        b.insert(fs.volume.metadata(), &two(), other.encode());
    };
    damaged(contradicts, "/two", "contradicts");
    let several = |fs: &FileSystem, b: &mut Batch| edit(fs, b, &file(), |inode| inode.links = 2);
    damaged(several, "/dir/file", "says that it has 2 names");
    let one_more = |fs: &FileSystem, b: &mut Batch| {
        b.insert(fs.volume.links(), &root_entry(b"sparse"), 7u64.to_le_bytes().to_vec());
    };
    damaged(one_more, "/", "lists 3 links, there are 2");
    let nameless = |fs: &FileSystem, b: &mut Batch| {
        for name in [two(), layout::entry_key(&dir(), b"one")] {
            b.delete(fs.volume.metadata(), &name);
            b.delete(fs.volume.links(), &name);
        }
    };
    let (store, fs) = sample();
    let mut batch = Batch::new();
    nameless(&fs, &mut batch);
    store.commit(batch).unwrap();
    let problems = run(&store).problems;
    assert!(problems.iter().any(|p| p.message.contains("in the link area has no name")), "{problems:#?}");
}

#[test]
fn link_areas_and_their_marks_that_do_not_agree_are_found() {
    damaged(
        |fs, b| b.insert(fs.volume.links(), &dir(), AreaMark::default().encode()),
        "/dir",
        "names a link area that does not exist",
    );
    damaged(
        |fs, b| b.insert(fs.volume.links(), &dir(), b"what".to_vec()),
        "/dir",
        "the mark of a link area cannot be understood",
    );
    damaged(
        |fs, b| edit(fs, b, &root_entry(b"dir"), |dir| dir.has_link_area = true),
        "/dir",
        "has a link area, and the links index does not say so",
    );
}

#[test]
fn files_with_one_number_are_found() {
    let same = |fs: &FileSystem, b: &mut Batch| {
        let value = fs.volume.store.get(fs.volume.metadata(), &file()).unwrap().unwrap();
        let Record::Inode(inode) = Record::decode(&value).unwrap() else { panic!("a link") };
        edit(fs, b, &root_entry(b"sparse"), |sparse| sparse.number = inode.number);
    };
    damaged(same, "/", "two files have number");
}

#[test]
fn orphans_that_make_no_sense_are_found() {
    let place = |id| layout::entry_key(layout::ORPHAN_AREA, &layout::area_name(id));
    let base = || layout::entry_key(&layout::area_prefix(b""), &layout::area_name(77));
    let twice = |fs: &FileSystem, b: &mut Batch| {
        for id in [1, 2] {
            b.insert(fs.volume.metadata(), &place(id), crate::model::record::encode_orphan(&base()));
        }
    };
    let path = path_of(&base());
    damaged(twice, &path, "two unlinked files have their data in one place");
    let path = path_of(&place(1));
    damaged(|fs, b| b.insert(fs.volume.metadata(), &place(1), &b"\x63what"[..]), &path, "orphan");
    // Data where neither a file nor an orphan is.
    let data = |fs: &FileSystem, b: &mut Batch| {
        b.insert(fs.volume.data(), &layout::block_key(&base(), 0), &b"x"[..])
    };
    let path = path_of(&base());
    damaged(data, &path, "data of a file that does not exist");
}

#[test]
fn broken_promises_about_what_is_below_are_found() {
    // The file with the names /dir/one and /two belongs to another user than the root.
    let home = || layout::area_prefix(b"");
    let given_away = |fs: &FileSystem, b: &mut Batch| {
        let mut files = fs.volume.store.cursor(fs.volume.metadata(), layout::entries_range(&home())).unwrap();
        let linked = files.next().unwrap().unwrap().key;
        edit(fs, b, &linked, |inode| inode.uid = 12);
    };
    let mark = |fs: &FileSystem, b: &mut Batch| {
        edit(fs, b, layout::ROOT_KEY, |root| root.owned_alone = true);
    };
    let doubt = |fs: &FileSystem, b: &mut Batch| {
        let mut mark = AreaMark::default();
        mark.doubt([0]);
        b.insert(fs.volume.links(), b"", mark.encode());
    };
    damaged(given_away, "/two", "promises that no such is below");
    damaged(|fs, b| (mark(fs, b), doubt(fs, b)).0, "/", "which its own link area doubts");
    // The area knows: the directory with the other name may bear the mark.
    let (store, fs) = sample();
    let mut batch = Batch::new();
    given_away(&fs, &mut batch);
    doubt(&fs, &mut batch);
    edit(&fs, &mut batch, layout::ROOT_KEY, |root| root.owned_alone = false);
    store.commit(batch).unwrap();
    assert_eq!(run(&store).problems, []);
    let foreign = |fs: &FileSystem, b: &mut Batch| {
        edit(fs, b, &root_entry(b"dir"), |dir| dir.owned_alone = true);
        edit(fs, b, &file(), |inode| inode.uid = 12);
    };
    damaged(foreign, "/dir/file", "promises that no such entry is below");
    let short = |fs: &FileSystem, b: &mut Batch| {
        let state = VolumeState { next_number: 1000, longest_key: Some(4), flags_used: FileFlags::default() };
        b.insert(fs.volume.metadata(), layout::STATE_KEY, state.encode());
    };
    damaged(short, "/sparse", "the volume says that none is so long");
    let flagged = |fs: &FileSystem, b: &mut Batch| {
        edit(fs, b, &file(), |inode| inode.flags = FileFlags::NOATIME);
    };
    damaged(flagged, "/dir/file", "a flag that the volume says no object has");
    damaged(|fs, b| b.insert(fs.volume.metadata(), layout::STATE_KEY, &b"\x63"[..]), "/", "volume state");
    let of_a_directory = |fs: &FileSystem, b: &mut Batch| {
        b.insert(fs.volume.data(), &layout::block_key(&root_entry(b"dir"), 0), &b"x"[..]);
    };
    damaged(of_a_directory, "/dir", "block 0 of something that is no regular file");
}
