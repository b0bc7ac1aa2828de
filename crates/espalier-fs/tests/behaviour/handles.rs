//! What a file handle holds: an id and a generation, by which a file is found when nothing of it is
//! in memory any more.

use super::Bench;
use espalier_engine::{IndexId, KeyRange};
use espalier_fs::{
    Caller, Entry, FileSystem, FsErrorKind, HandleLifetime, NodeId, OpenOptions, RenameMode, SetAttr, SetTime,
};

/// What a handle holds.
type Handle = (NodeId, u32);

impl Bench {
    fn find(&self, parent: NodeId, name: &str) -> Entry {
        self.fs.lookup(parent, name.as_bytes()).expect("lookup")
    }

    /// The handle of an entry, whose reference is given back.
    fn handle(&self, parent: NodeId, name: &str) -> Handle {
        let entry = self.find(parent, name);
        self.fs.forget(entry.node, 1);
        (entry.node, entry.generation)
    }

    /// The inode number and the path that a handle leads to; `None` if it is stale.
    fn resolve(&self, handle: Handle) -> Option<(u64, String)> {
        match self.fs.lookup(handle.0, b".") {
            Ok(entry) => {
                assert_eq!(entry.node, handle.0);
                let path = String::from_utf8(self.fs.path(entry.node).expect("path")).expect("text");
                self.fs.forget(entry.node, 1);
                (entry.generation == handle.1).then_some((entry.attr.ino, path))
            }
            Err(error) => {
                assert_eq!(error.kind(), FsErrorKind::Stale, "{error}");
                None
            }
        }
    }

    fn path_of(&self, handle: Handle) -> Option<String> {
        self.resolve(handle).map(|(_, path)| path)
    }

    /// Only the root is in memory, with its areas.
    fn assert_all_forgotten(&self) {
        assert!(self.fs.statistics().nodes <= 4, "{} nodes", self.fs.statistics().nodes);
    }

    fn rename(&self, from: (NodeId, &str), to: (NodeId, &str)) {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        self.fs.rename(from.0, from.1, to.0, to.1, RenameMode::Replace).expect("rename");
    }
}

/// `/a/b/file` and `/c`; nothing is in use.
fn three_deep(bench: &Bench) -> (Handle, Handle, Handle) {
    let a = bench.dir(NodeId::ROOT, "a");
    let b = bench.dir(a, "b");
    let file = bench.file(b, "file");
    let c = bench.dir(NodeId::ROOT, "c");
    let handles = (bench.handle(NodeId::ROOT, "a"), bench.handle(a, "b"), bench.handle(b, "file"));
    [file, b, a, c].into_iter().for_each(|node| bench.fs.forget(node, 1));
    bench.assert_all_forgotten();
    handles
}

#[test]
fn a_handle_finds_a_forgotten_file_wherever_it_was_moved() {
    let bench = Bench::new(0);
    let (a, b, file) = three_deep(&bench);
    assert_eq!(bench.path_of(file).as_deref(), Some("/a/b/file"));
    assert_eq!(bench.path_of(b).as_deref(), Some("/a/b"));
    let number = bench.resolve(file).unwrap().0;
    // The file itself, a directory above, and one more.
    let (dir_a, dir_b) = (bench.find(NodeId::ROOT, "a").node, bench.fs.lookup(b.0, b".").unwrap().node);
    bench.rename((dir_b, "file"), (dir_a, "moved"));
    [dir_a, dir_b].into_iter().for_each(|node| bench.fs.forget(node, 1));
    assert_eq!(bench.resolve(file), Some((number, "/a/moved".into())));
    let c = bench.find(NodeId::ROOT, "c").node;
    bench.rename((NodeId::ROOT, "a"), (c, "renamed"));
    bench.fs.forget(c, 1);
    bench.assert_all_forgotten();
    assert_eq!(bench.resolve(file), Some((number, "/c/renamed/moved".into())));
    assert_eq!(bench.path_of(a).as_deref(), Some("/c/renamed"));
    assert_eq!(bench.path_of(b).as_deref(), Some("/c/renamed/b"));
    bench.check(0);
}

#[test]
fn a_handle_is_stale_once_its_file_is_gone() {
    let bench = Bench::new(0);
    let (a, b, file) = three_deep(&bench);
    let (dir_a, dir_b) = (bench.fs.lookup(a.0, b".").unwrap().node, bench.fs.lookup(b.0, b".").unwrap().node);
    // Still in use, but without a name.
    let open = bench.find(dir_b, "file").node;
    bench.fs.write(open, 0, b"data", false).unwrap();
    bench.fs.unlink(dir_b, b"file").unwrap();
    assert_eq!(bench.path_of(file), None);
    assert_eq!(bench.read(open), b"data");
    bench.fs.forget(open, 1);
    assert_eq!(bench.path_of(file), None);
    // Another of its name is another file.
    let other = bench.file(dir_b, "file");
    bench.fs.forget(other, 1);
    assert_eq!(bench.path_of(file), None);
    let other = bench.handle(dir_b, "file");
    assert_eq!(bench.path_of(other).as_deref(), Some("/a/b/file"));
    // A whole tree goes.
    [dir_a, dir_b].into_iter().for_each(|node| bench.fs.forget(node, 1));
    bench.fs.remove_tree(NodeId::ROOT, b"a", &Caller::default()).unwrap();
    [a, b, other].into_iter().for_each(|handle| assert_eq!(bench.path_of(handle), None));
    bench.check(0);
}

#[test]
fn a_removed_tree_in_use_has_no_handles() {
    let bench = Bench::new(0);
    let (a, b, file) = three_deep(&bench);
    let open = bench.fs.lookup(file.0, b".").unwrap().node;
    bench.fs.remove_tree(NodeId::ROOT, b"a", &Caller::default()).unwrap();
    [a, b, file].into_iter().for_each(|handle| assert_eq!(bench.path_of(handle), None));
    // The kernel may ask for the directory above one that it still knows.
    assert_eq!(bench.fs.lookup(a.0, b"..").map_err(|e| e.kind()), Err(FsErrorKind::Stale));
    bench.fs.forget(open, 1);
    bench.check(0);
}

#[test]
fn source_and_clone_have_handles_of_their_own() {
    let bench = Bench::new(0);
    let (a, _, file) = three_deep(&bench);
    let source = bench.fs.lookup(a.0, b".").unwrap().node;
    let copy = bench.fs.clone_tree(source, NodeId::ROOT, b"copy", &Caller::default()).unwrap().node;
    let inner = bench.find(copy, "b").node;
    let copied = bench.handle(inner, "file");
    [inner, copy, source].into_iter().for_each(|node| bench.fs.forget(node, 1));
    bench.assert_all_forgotten();
    assert_ne!(copied.0, file.0);
    assert_eq!(bench.path_of(copied).as_deref(), Some("/copy/b/file"));
    assert_eq!(bench.path_of(file).as_deref(), Some("/a/b/file"));
    bench.fs.remove_tree(NodeId::ROOT, b"a", &Caller::default()).unwrap();
    assert_eq!(bench.path_of(file), None);
    assert_eq!(bench.path_of(copied).as_deref(), Some("/copy/b/file"));
}

#[test]
fn a_file_with_several_names_is_found_by_its_handle() {
    let bench = Bench::new(0);
    let (a, b, file) = three_deep(&bench);
    let (dir_a, dir_b) = (bench.fs.lookup(a.0, b".").unwrap().node, bench.fs.lookup(b.0, b".").unwrap().node);
    let node = bench.find(dir_b, "file").node;
    let second = bench.fs.link(node, dir_a, b"second").unwrap();
    assert_eq!((second.node, second.generation), file);
    [node, node, dir_a, dir_b].into_iter().for_each(|node| bench.fs.forget(node, 1));
    let number = bench.resolve(file).expect("by its handle").0;
    // A clone has an area of its own, which becomes one with the root's when a name leads across.
    let source = bench.fs.lookup(a.0, b".").unwrap().node;
    let copy = bench.fs.clone_tree(source, NodeId::ROOT, b"copy", &Caller::default()).unwrap().node;
    let copied = bench.handle(copy, "second");
    [source, copy].into_iter().for_each(|node| bench.fs.forget(node, 1));
    bench.fs.background_tick().unwrap();
    bench.assert_all_forgotten();
    assert_ne!(bench.resolve(copied).expect("the copy").0, number);
    let (copy, c) = (bench.find(NodeId::ROOT, "copy").node, bench.find(NodeId::ROOT, "c").node);
    let other = bench.file(copy, "other");
    bench.fs.link(other, c, b"across").unwrap();
    [other, other, copy, c].into_iter().for_each(|node| bench.fs.forget(node, 1));
    assert!(bench.resolve(copied).is_some(), "the file was not in memory when its area was dissolved");
    // The last name goes.
    for (dir, name) in [(a, "second"), (b, "file")] {
        let dir = bench.fs.lookup(dir.0, b".").unwrap().node;
        assert_eq!(bench.resolve(file).map(|(number, _)| number), Some(number));
        bench.fs.unlink(dir, name.as_bytes()).unwrap();
        bench.fs.forget(dir, 1);
    }
    assert_eq!(bench.path_of(file), None);
    bench.check(0);
}

#[test]
fn a_replaced_file_and_the_one_in_its_place_have_ids_of_their_own() {
    let bench = Bench::new(0);
    let (a, b, file) = three_deep(&bench);
    let dir = bench.fs.lookup(a.0, b".").unwrap().node;
    bench.fs.snapshot_tree(dir, "before", false, &Caller::default()).unwrap();
    let open = bench.fs.lookup(file.0, b".").unwrap().node;
    // The restored tree has the numbers that the old one has, which is still in use.
    let made = bench.fs.restore_tree(NodeId::ROOT, b"a", "before", &Caller::default()).unwrap();
    let inner = bench.find(made.node, "b").node;
    let restored = bench.find(inner, "file");
    assert_ne!(restored.node, open);
    bench.fs.write(restored.node, 0, b"new", false).unwrap();
    assert_eq!(bench.read(open), b"");
    assert_eq!(bench.path_of(file), None, "the file was replaced");
    [open, inner, restored.node, made.node, dir].into_iter().for_each(|node| bench.fs.forget(node, 1));
    let again = bench.find(NodeId::ROOT, "a").node;
    bench.fs.forget(again, 1);
    [a, b, file].into_iter().for_each(|handle| {
        let path = bench.path_of(handle);
        assert!(path.is_none_or(|path| "/a/b/file".starts_with(&path)));
    });
    bench.check(0);
}

#[test]
fn a_listing_of_a_directory_that_was_forgotten_is_not_an_old_one() {
    let bench = Bench::new(0);
    let list = |dir| {
        let mut names = Vec::new();
        let mut each = |entry: espalier_fs::DirEntry<'_>| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        };
        bench.fs.readdir(dir, 0, &mut each).unwrap();
        names.split_off(2)
    };
    let dir = bench.dir(NodeId::ROOT, "dir");
    let one = bench.file(dir, "one");
    assert_eq!(list(dir), ["one"]);
    [one, dir].into_iter().for_each(|node| bench.fs.forget(node, 1));
    // As many changes as before, so that a count of them is no proof.
    let again = bench.find(NodeId::ROOT, "dir").node;
    assert_eq!(again, dir);
    bench.fs.unlink(dir, b"one").unwrap();
    assert_eq!(list(dir), [""; 0]);
}

#[test]
fn no_handle_of_another_time_or_volume_leads_to_a_file() {
    let bench = Bench::new(0);
    let (_, _, file) = three_deep(&bench);
    let other = Bench::new(0);
    let (_, _, same) = three_deep(&other);
    assert_eq!(file.0, same.0, "volumes give out the same numbers");
    assert_ne!(file.1, same.1);
    assert_eq!(other.resolve(file), None);
    // Numbers that were given out and lost by a crash are given out again; the clock has ticked.
    let made = bench.find(NodeId::ROOT, "a").attr.btime;
    let bench = bench.crash();
    let touch = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    while bench.fs.setattr(NodeId::ROOT, &touch).unwrap().mtime <= made {}
    let (_, _, reused) = three_deep(&bench);
    assert_eq!(reused.0, file.0);
    assert_eq!(bench.resolve(file), None);
    assert!(bench.resolve(reused).is_some());
}

#[test]
fn memory_for_handles_is_bounded() {
    let bench = Bench::with(0, OpenOptions { name_memory: 64 << 10, ..Default::default() });
    let handles: Vec<Handle> = (0..2000)
        .map(|n| {
            let name = format!("file-{n}");
            let file = bench.file(NodeId::ROOT, &name);
            let handle = bench.handle(NodeId::ROOT, &name);
            bench.fs.forget(file, 1);
            handle
        })
        .collect();
    let found = handles.iter().filter(|handle| bench.resolve(**handle).is_some()).count();
    assert!((50..1000).contains(&found), "{found}");
    assert!(bench.resolve(handles[1999]).is_some());
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    let last = bench.fs.lookup(handles[1999].0, b".").unwrap().node;
    assert_eq!(bench.fs.setattr(last, &set).unwrap().mode, 0o600);
}

impl Bench {
    /// As after a remount that keeps handles.
    fn remounted(self) -> Self {
        self.fs.close().expect("close");
        self.restarted()
    }

    /// As after a crash, opened so that handles are kept.
    fn restarted(self) -> Self {
        let Self { device, env, store, fs } = self;
        drop((fs, store));
        let store = Self::open_store(&device, &env);
        let fs = FileSystem::open(store.clone(), env.clone(), keeping()).expect("open");
        Self { device, env, store, fs }
    }

    /// Number of saved locations.
    fn locations(&self) -> usize {
        let volume = self.store.volumes()[0].id;
        let range = KeyRange::prefix(&[1, 1, b'h', 1]);
        let mut cursor = self.store.cursor(IndexId { volume, index: 0 }, range).expect("cursor");
        std::iter::from_fn(|| cursor.next().expect("a record")).count()
    }
}

fn keeping() -> OpenOptions {
    OpenOptions { handles: HandleLifetime::Stored, ..Default::default() }
}

#[test]
fn kept_handles_outlive_remounts_and_crashes() {
    let bench = Bench::with(0, keeping());
    let (a, b, file) = three_deep(&bench);
    let bench = bench.remounted();
    assert_eq!(bench.path_of(file).as_deref(), Some("/a/b/file"));
    let bench = bench.remounted();
    let (dir_a, c) = (bench.find(NodeId::ROOT, "a").node, bench.find(NodeId::ROOT, "c").node);
    bench.rename((dir_a, "b"), (c, "moved"));
    let copy = bench.fs.clone_tree(c, NodeId::ROOT, b"copy", &Caller::default()).unwrap().node;
    let inner = bench.find(copy, "moved").node;
    let copied = bench.handle(inner, "file");
    bench.fs.syncfs().unwrap();
    // Lost with its record.
    bench.fs.forget(bench.file(c, "lost"), 1);
    let lost = bench.handle(c, "lost");
    let bench = bench.restarted();
    assert_eq!(bench.path_of(lost), None);
    assert_eq!(bench.path_of(file).as_deref(), Some("/c/moved/file"));
    assert_eq!(bench.path_of(copied).as_deref(), Some("/copy/moved/file"));
    // What is synced alone is found as well.
    let c = bench.find(NodeId::ROOT, "c").node;
    let synced = bench.file(c, "synced");
    let handle = bench.handle(c, "synced");
    bench.fs.fsync(synced, false).unwrap();
    let bench = bench.restarted();
    assert_eq!(bench.path_of(handle).as_deref(), Some("/c/synced"));
    let dir = bench.fs.lookup(b.0, b".").unwrap().node;
    bench.fs.unlink(dir, b"file").unwrap();
    bench.fs.forget(dir, 1);
    let bench = bench.remounted();
    assert_eq!(bench.path_of(file), None);
    assert_eq!(bench.path_of(a).as_deref(), Some("/a"));
    bench.check(0);
}

#[test]
fn kept_handles_of_files_with_several_names_outlive_a_remount() {
    let bench = Bench::with(0, keeping());
    let (a, b, file) = three_deep(&bench);
    let (dir_a, dir_b) = (bench.fs.lookup(a.0, b".").unwrap().node, bench.fs.lookup(b.0, b".").unwrap().node);
    let node = bench.find(dir_b, "file").node;
    bench.fs.link(node, dir_a, b"second").unwrap();
    let bench = bench.remounted();
    assert!(bench.resolve(file).is_some());
    let dir = bench.find(NodeId::ROOT, "a").node;
    bench.fs.unlink(dir, b"second").unwrap();
    let bench = bench.remounted();
    assert!(bench.resolve(file).is_some());
    bench.check(0);
}

#[test]
fn locations_of_removed_files_do_not_stay() {
    let bench = Bench::with(0, keeping());
    let (_, _, _) = three_deep(&bench);
    let dir = bench.find(NodeId::ROOT, "c").node;
    for n in 0..50 {
        bench.fs.forget(bench.file(dir, &format!("file-{n}")), 1);
    }
    bench.fs.background_tick().unwrap();
    assert_eq!(bench.locations(), 54);
    (0..50).for_each(|n| bench.fs.unlink(dir, format!("file-{n}").as_bytes()).unwrap());
    bench.fs.forget(dir, 1);
    bench.fs.rmdir(NodeId::ROOT, b"c").unwrap();
    bench.fs.background_tick().unwrap();
    assert_eq!(bench.locations(), 3);
    // The removal of a tree does not name what is below.
    bench.fs.remove_tree(NodeId::ROOT, b"a", &Caller::default()).unwrap();
    (0..5).for_each(|_| bench.fs.background_tick().unwrap());
    assert_eq!(bench.locations(), 0);
    bench.check(0);
}
