use super::*;
use crate::model::layout::{self, LINKS, METADATA};
use crate::model::record::{Inode, Record};
use crate::model::tree_limits::LimitsField;
use crate::model::types::*;
use crate::{FileSystem, check};
use espalier_storage::Environment;
use std::sync::Arc;

/// A store with /dir/file (3 blocks, a large attribute), /dir/one = /two, /dir/deep/er/leaf,
/// /sparse.
fn sample() -> (Arc<Store>, Arc<dyn Environment>) {
    let (store, env, fs) = crate::test_support::empty();
    let caller = Caller::default();
    let file = |parent, name: &[u8], offset, data: &[u8]| {
        let node = fs.mknod(parent, name, NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(node, offset, data, false).unwrap();
        node
    };
    let dir = fs.mkdir(NodeId::ROOT, b"dir", 0o755, &caller).unwrap().node;
    let first = file(dir, b"file", 0, &[7; 9000]);
    fs.setxattr(first, b"user.large", &[1; 5000], XattrMode::Set, false).unwrap();
    let one = file(dir, b"one", 0, &[8; 100]);
    fs.link(one, NodeId::ROOT, b"two").unwrap();
    let deep = fs.mkdir(dir, b"deep", 0o755, &caller).unwrap().node;
    let deeper = fs.mkdir(deep, b"er", 0o755, &caller).unwrap().node;
    file(deeper, b"leaf", 0, b"leaf");
    file(NodeId::ROOT, b"sparse", 100_000, &[9; 10]);
    (store, env)
}

fn volume(store: &Store) -> u32 {
    store.volumes()[0].id
}

fn prefix(names: &[&str]) -> Vec<u8> {
    names.iter().fold(Vec::new(), |prefix, name| layout::content_prefix(&prefix, name.as_bytes()))
}

/// Loses keys, repairs, and looks at what was told and what is there.
#[track_caller]
fn repaired(lose: impl FnOnce(&mut Batch, u32), told: &[(&str, &str)]) -> Arc<FileSystem> {
    let (store, env) = sample();
    let mut batch = Batch::new();
    lose(&mut batch, volume(&store));
    store.commit(batch).unwrap();
    let done = repair(&store, "main", &[], 5, &mut |_| ()).unwrap();
    for (path, words) in told {
        assert!(
            done.iter().any(|d| d.path.starts_with(path) && d.message.contains(words)),
            "{path}: {done:#?}"
        );
    }
    let report = check(&store, "main", &mut |_| ()).unwrap();
    assert_eq!(report.problems, [], "{done:#?}");
    assert_eq!(
        repair(&store, "main", &[], 5, &mut |_| ()).unwrap(),
        [],
        "a second repair found something to do"
    );
    FileSystem::open(store, env, Default::default()).unwrap()
}

fn find(fs: &FileSystem, path: &str) -> Option<crate::Entry> {
    let mut at = NodeId::ROOT;
    let mut entry = None;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = fs.lookup(at, name.as_bytes()).ok()?;
        at = found.node;
        entry = Some(found);
    }
    entry
}

#[track_caller]
fn read(fs: &FileSystem, path: &str) -> Vec<u8> {
    let entry = find(fs, path).unwrap_or_else(|| panic!("{path} is not there"));
    let mut data = vec![0; entry.attr.size as usize];
    assert_eq!(fs.read(entry.node, 0, &mut data).unwrap(), data.len());
    data
}

#[test]
fn a_sound_volume_is_left_alone() {
    let fs = repaired(|_, _| (), &[]);
    assert_eq!(read(&fs, "dir/file"), [7; 9000]);
    assert_eq!(read(&fs, "two"), [8; 100]);
}

#[test]
fn lost_blocks_read_as_zeros_and_are_told() {
    let base = layout::entry_key(&prefix(&["dir"]), b"file");
    let fs = repaired(
        |batch, volume| batch.delete(IndexId { volume, index: DATA }, &layout::block_key(&base, 1)),
        &[("/dir/file", "bytes 4096 to 8192 are lost")],
    );
    assert_eq!(read(&fs, "dir/file"), [&[7; 4096][..], &[0; 4096], &[7; 808]].concat());
    let node = find(&fs, "dir/file").unwrap().node;
    assert_eq!(fs.getxattr(node, b"user.large").unwrap(), [1; 5000]);
}

#[test]
fn lost_attributes_are_told() {
    let base = layout::entry_key(&prefix(&["dir"]), b"file");
    let fs = repaired(
        |batch, volume| {
            batch.delete(IndexId { volume, index: DATA }, &layout::xattr_key(&base, b"user.large"));
        },
        &[("/dir/file", "user.large is lost")],
    );
    assert_eq!(read(&fs, "dir/file"), [7; 9000]);
    assert_eq!(fs.listxattr(find(&fs, "dir/file").unwrap().node).unwrap(), b"");
}

#[test]
fn entries_come_back_from_what_lies_below() {
    let fs = repaired(
        |batch, volume| {
            let index = IndexId { volume, index: METADATA };
            batch.delete_range(index, KeyRange::prefix(&layout::entry_key(b"", b"dir")));
            batch.delete_range(index, KeyRange::prefix(&prefix(&["dir", "deep"])));
            batch.delete(index, &layout::entry_key(&prefix(&["dir"]), b"deep"));
            batch.delete(index, &layout::entry_key(&prefix(&["dir"]), b"file"));
        },
        &[
            ("/dir", "directory are lost"),
            ("/dir/deep/er/leaf", "what is left"),
            ("/dir/file", "what is left"),
        ],
    );
    assert_eq!(read(&fs, "dir/file"), [7; 9000]);
    assert_eq!(read(&fs, "dir/deep/er/leaf"), b"leaf");
    assert_eq!(read(&fs, "dir/one"), [8; 100]);
    assert_eq!(find(&fs, "dir/deep/er").unwrap().attr.mode, 0o700);
}

#[test]
fn linked_files_and_their_names_find_each_other() {
    let lose_area = |batch: &mut Batch, volume| {
        batch.delete_range(
            IndexId { volume, index: METADATA },
            layout::entries_range(&layout::area_prefix(b"")),
        );
    };
    let fs = repaired(lose_area, &[("/two", "several names"), ("/dir/one", "several names")]);
    assert_eq!((read(&fs, "two"), find(&fs, "two").unwrap().attr.nlink), (vec![8; 100], 2));
    let fs = repaired(
        |batch, volume| {
            lose_area(batch, volume);
            batch.delete_range(
                IndexId { volume, index: DATA },
                layout::entries_range(&layout::area_prefix(b"")),
            );
        },
        &[("/two", "is lost"), ("/dir/one", "is lost")],
    );
    assert!(find(&fs, "two").is_none() && find(&fs, "dir/one").is_none());
    let fs = repaired(
        |batch, volume| {
            batch.delete(IndexId { volume, index: METADATA }, &layout::entry_key(b"", b"two"));
            batch.delete(IndexId { volume, index: METADATA }, &layout::entry_key(&prefix(&["dir"]), b"one"));
        },
        &[],
    );
    let found = find(&fs, "lost+found").unwrap();
    assert_eq!((found.attr.size, found.attr.mode), (1, 0o700));
}

#[test]
fn root_and_state_are_made_anew() {
    let fs = repaired(
        |batch, volume| {
            let index = IndexId { volume, index: METADATA };
            batch.delete(index, layout::ROOT_KEY);
            batch.delete(index, layout::STATE_KEY);
        },
        &[("/", "root directory are lost")],
    );
    assert_eq!(read(&fs, "dir/file"), [7; 9000]);
    let made = fs.mknod(NodeId::ROOT, b"new", NewNode::Regular, 0o644, &Caller::default()).unwrap();
    assert!(made.attr.ino > 1000, "{}", made.attr.ino);
}

#[test]
fn a_clone_whose_top_is_lost_keeps_numbers_of_its_own() {
    let (store, env) = sample();
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).unwrap();
    let dir = fs.lookup(NodeId::ROOT, b"dir").unwrap().node;
    fs.clone_tree(dir, NodeId::ROOT, b"copy", &Caller::default()).unwrap();
    fs.syncfs().unwrap();
    drop(fs);
    let mut batch = Batch::new();
    let id = IndexId { volume: volume(&store), index: METADATA };
    batch.delete(id, &layout::entry_key(b"", b"copy"));
    store.commit(batch).unwrap();
    repair(&store, "main", &[], 5, &mut |_| ()).unwrap();
    assert_eq!(check(&store, "main", &mut |_| ()).unwrap().problems, []);
    let fs = FileSystem::open(store, env, Default::default()).unwrap();
    assert_eq!(read(&fs, "copy/deep/er/leaf"), b"leaf");
    assert_eq!(read(&fs, "copy/one"), [8; 100]);
}

#[test]
fn directories_in_a_link_area_go() {
    let lost = |batch: &mut Batch, volume| {
        let id = IndexId { volume, index: METADATA };
        let area = layout::area_prefix(b"");
        let inode = Inode::new(FileKind::Regular, 0o644, 0, 0, 77, 5);
        let below = layout::content_prefix(&area, b"name");
        batch.insert(id, &layout::entry_key(&below, b"file"), inode.encode());
    };
    repaired(lost, &[("/", "could not be understood")]);
}

#[test]
fn what_cannot_be_understood_goes() {
    let fs = repaired(
        |batch, volume| {
            batch.insert(IndexId { volume, index: METADATA }, &layout::entry_key(b"", b"odd"), vec![99, 1]);
            batch.insert(IndexId { volume, index: METADATA }, b"\x00x\x00", vec![1]);
            batch.insert(IndexId { volume, index: DATA }, b"nonsense", vec![1]);
            batch.insert(IndexId { volume, index: LINKS }, b"nonsense", vec![1]);
            let base = layout::entry_key(&prefix(&["dir"]), b"file");
            batch.insert(IndexId { volume, index: DATA }, &layout::block_key(&base, 99), vec![1]);
        },
        &[("/odd", "gone")],
    );
    assert_eq!(read(&fs, "dir/file"), [7; 9000]);
}

/// A hole is told from lost data by nothing; but of what the store has lost it is known where that
/// was.
#[test]
fn a_file_with_holes_is_named_where_something_may_be_lost() {
    let (store, _) = sample();
    let data = IndexId { volume: volume(&store), index: DATA };
    let sparse = layout::entry_key(b"", b"sparse");
    let block = |number| layout::block_key(&sparse, number);
    let loss = |start: Vec<u8>, end: Vec<u8>| Loss {
        index: Some(data),
        range: Some(KeyRange::new(start, end)),
        message: "lost".into(),
    };
    let told = |losses: &[Loss]| {
        let done = repair(&store, "main", losses, 5, &mut |_| ()).unwrap();
        assert!(done.iter().all(|d| d.path == "/sparse" && d.lost), "{done:?}");
        let bytes = |message: &str| {
            let mut numbers = message.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
            (numbers.next().unwrap(), numbers.next().unwrap())
        };
        done.iter().map(|d| bytes(&d.message)).collect::<Vec<_>>()
    };
    let behind = |key: Vec<u8>| [&key[..], &[0]].concat();
    assert_eq!(told(&[]), []);
    // One block; some, in two losses that overlap; all, but for the one that is there; those of
    // others.
    assert_eq!(told(&[loss(block(3), behind(block(3)))]), [(12288, 16384)]);
    assert_eq!(told(&[loss(block(7), block(9)), loss(block(5), block(8))]), [(20480, 36864)]);
    assert_eq!(told(&[loss(vec![], vec![0xff])]), [(0, 98304)]);
    assert_eq!(told(&[loss(block(24), block(25)), loss(behind(block(30)), vec![0xff])]), []);
    assert_eq!(told(&[loss(vec![], sparse.clone()), loss(layout::entry_key(b"", b"t"), vec![0xff])]), []);
}

#[test]
fn limits_without_a_link_area_are_taken_away_and_others_stay() {
    let (store, env) = sample();
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).unwrap();
    let limits = TreeLimits { exclusive: Some(1 << 20), total: None };
    let deep = find(&fs, "/dir/deep").unwrap().node;
    fs.set_quota(deep, Some(limits), &Caller::default(), false).unwrap();
    drop(fs);
    let metadata = IndexId { volume: volume(&store), index: METADATA };
    let (dir, file) = (layout::entry_key(b"", b"dir"), layout::entry_key(&prefix(&["dir"]), b"file"));
    let mut batch = Batch::new();
    for key in [&dir, &file] {
        let value = store.get(metadata, key).unwrap().unwrap();
        let Record::Inode(mut inode) = Record::decode(&value).unwrap() else { panic!("a link") };
        inode.limits = LimitsField::Limits(limits);
        batch.insert(metadata, key, inode.encode());
    }
    store.commit(batch).unwrap();
    let problems = check(&store, "main", &mut |_| ()).unwrap().problems;
    let found: Vec<_> = problems.iter().map(|problem| (&*problem.path, &*problem.message)).collect();
    let expected = [
        ("/dir", "it has limits and no link area of its own"),
        ("/dir/file", "its limits cannot be understood"),
    ];
    assert_eq!(found, expected);
    let done = repair(&store, "main", &[], 5, &mut |_| ()).unwrap();
    assert_eq!(
        done.iter().map(|d| (&*d.path, d.lost)).collect::<Vec<_>>(),
        [("/dir", false), ("/dir/file", false)]
    );
    assert_eq!(check(&store, "main", &mut |_| ()).unwrap().problems, []);
    let fs = FileSystem::open(store, env, Default::default()).unwrap();
    let quota = |path| fs.quota(find(&fs, path).unwrap().node, &Caller::default()).unwrap();
    assert_eq!(quota("/dir/deep").map(|quota| quota.limits), Some(limits));
    assert_eq!(quota("/dir"), None);
}

#[test]
fn flags_are_kept_and_the_volume_knows_of_them_again() {
    let (store, env) = sample();
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).unwrap();
    let file = find(&fs, "/dir/file").unwrap().node;
    fs.set_flags(file, FileFlags::IMMUTABLE, &Caller::default()).unwrap();
    drop(fs);
    let mut batch = Batch::new();
    batch.delete(IndexId { volume: volume(&store), index: METADATA }, layout::STATE_KEY);
    store.commit(batch).unwrap();
    repair(&store, "main", &[], 5, &mut |_| ()).unwrap();
    assert_eq!(check(&store, "main", &mut |_| ()).unwrap().problems, []);
    let fs = FileSystem::open(store, env, Default::default()).unwrap();
    assert_eq!(fs.flags(find(&fs, "/dir/file").unwrap().node).unwrap(), FileFlags::IMMUTABLE);
    assert!(fs.remove_tree(NodeId::ROOT, b"dir", &Caller::default()).is_err());
}
