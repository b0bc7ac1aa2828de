//! File systems that earlier versions have written stay readable: `golden/*.zst` are devices as a
//! version left them without closing them, and `golden/*.listing` say what is there.
//!
//! `v1-files` has every kind of file, hard links, attributes, holes, reserved room, flags, clones
//! of which links join others, whole trees that changed owner, mode and place, snapshots of the
//! volume and of directories, read-only and writable, a file that was unlinked while in use, and
//! work that only the log has. To add the image of a new format, run this with
//! `ESPALIER_WRITE_GOLDEN=1` after adding its name below; never write an old one again.

use crate::cuts::assert_sound;
use crate::run::{open_fs, open_store};
use crate::world::{Random, World};
use espalier_engine::{Compression, Store};
use espalier_fs::{
    Caller, Fallocate, FileFlags, FileKind, FileSystem, FormatOptions, ModeChange, NewNode, NodeId,
    OpenOptions, OwnerChange, RenameMode, XattrMode, snapshots,
};
use espalier_storage::{AlignedBuf, Device, MemoryDevice};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const BYTES: u64 = 8 << 20;
const NEWEST: &str = "v1-files";
const ALL: [&str; 1] = ["v1-files"];
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Makes files of every kind in `dir`.
fn make_files(fs: &FileSystem, dir: NodeId) {
    let file = |name: &[u8], mode: u32, caller: &Caller| {
        fs.mknod(dir, name, NewNode::Regular, mode, caller).unwrap().node
    };
    let text = file(b"text", 0o644, &ROOT);
    fs.write(text, 0, &b"some text, ".repeat(700), false).unwrap();
    fs.link(text, dir, b"linked").unwrap();
    fs.setxattr(text, b"user.small", b"value", XattrMode::Set, false).unwrap();
    fs.setxattr(text, b"user.large", &[b'x'; 9000], XattrMode::Set, false).unwrap();
    let holes = file(b"holes", 0o600, &Caller { uid: 1000, gid: 100, ..ROOT });
    fs.write(holes, 300_000, b"behind a hole", false).unwrap();
    fs.fallocate(holes, 0, 40_000, Fallocate::Allocate { keep_size: true }, false).unwrap();
    fs.fallocate(holes, 302_000, 8000, Fallocate::PunchHole, false).unwrap();
    let flagged = file(b"flagged", 0o4755, &ROOT);
    fs.set_flags(flagged, FileFlags(FileFlags::NODUMP.0 | FileFlags::NOATIME.0), &ROOT).unwrap();
    fs.symlink(dir, b"link", b"../some/where", &ROOT).unwrap();
    fs.symlink(dir, b"far link", &b"/long".repeat(700), &ROOT).unwrap();
    for (name, what) in [
        ("pipe", NewNode::Fifo),
        ("socket", NewNode::Socket),
        ("tty", NewNode::CharDevice(0x0401)),
        ("disk", NewNode::BlockDevice(0x0800_0010)),
    ] {
        fs.mknod(dir, name.as_bytes(), what, 0o620, &ROOT).unwrap();
    }
    fs.mkdir(dir, &[b'n'; 255], 0o1777, &ROOT).unwrap();
    fs.mknod(dir, b"\x01 \xff\xfe bytes", NewNode::Regular, 0, &ROOT).unwrap();
}

/// Everything that the format can hold.
fn make(store: &Arc<Store>, fs: &FileSystem, world: &World) {
    let dir = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, &ROOT).unwrap().node;
    let (first, second) = (dir(NodeId::ROOT, b"first"), dir(NodeId::ROOT, b"second"));
    make_files(fs, first);
    let many = dir(first, b"many");
    for number in 0..60 {
        world.step(1000);
        let name = format!("file-{number}");
        let file = fs.mknod(many, name.as_bytes(), NewNode::Regular, 0o640, &ROOT).unwrap().node;
        fs.write(file, 0, name.repeat(number).as_bytes(), false).unwrap();
    }
    let journal = fs.mknod(NodeId::ROOT, b"only grows", NewNode::Regular, 0o644, &ROOT).unwrap().node;
    fs.set_flags(journal, FileFlags::APPEND, &ROOT).unwrap();
    fs.syncfs().unwrap();
    store.checkpoint().unwrap();
    world.step(1_000_000_000);
    let copy = fs.clone_tree(first, second, b"copy", &ROOT).unwrap().node;
    fs.snapshot_tree(first, "kept", false, &ROOT).unwrap();
    fs.snapshot("whole", true).unwrap();
    let text = fs.lookup(copy, b"text").unwrap().node;
    fs.link(text, NodeId::ROOT, b"text of the copy").unwrap();
    fs.write(text, 5000, b"changed in the copy", false).unwrap();
    fs.chown_tree(copy, OwnerChange { uid: Some(7), gid: Some(8) }, &ROOT).unwrap();
    let change = ModeChange {
        keep_directories: 0o7777,
        add_directories: 0o20,
        keep_files: 0o7707,
        add_files: 0,
        add_executables: 0o10,
    };
    fs.chmod_tree(copy, change, &ROOT).unwrap();
    fs.rename(second, b"copy", NodeId::ROOT, b"moved", RenameMode::Replace).unwrap();
    let gone = fs.clone_tree(first, second, b"gone", &ROOT).unwrap().node;
    fs.forget(gone, 1);
    fs.remove_tree(second, b"gone", &ROOT).unwrap();
    store.checkpoint().unwrap();
    // What the log alone has, and a file that is in use.
    world.step(1_000_000_000);
    fs.clone_tree(many, second, b"many", &ROOT).unwrap();
    let unlinked = fs.mknod(second, b"unlinked", NewNode::Regular, 0o600, &ROOT).unwrap().node;
    fs.write(unlinked, 0, &[1; 20_000], false).unwrap();
    fs.unlink(second, b"unlinked").unwrap();
    fs.syncfs().unwrap();
}

/// What users can see, in lines.
fn list(fs: &FileSystem, node: NodeId, path: &str, seen: &mut HashMap<u64, usize>, out: &mut String) {
    let attr = fs.getattr(node).unwrap();
    let order = seen.len();
    let number = *seen.entry(attr.ino).or_insert(order);
    let content = match attr.kind {
        FileKind::Regular => {
            let mut data = vec![0; attr.size as usize];
            assert_eq!(fs.read(node, 0, &mut data).unwrap(), data.len());
            xxh3_64(&data)
        }
        FileKind::Symlink => xxh3_64(&fs.readlink(node).unwrap()),
        _ => 0,
    };
    let mut attributes = String::new();
    let names = fs.listxattr(node).unwrap();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = xxh3_64(&fs.getxattr(node, name).unwrap());
        write!(attributes, " {}={value:016x}", name.escape_ascii()).unwrap();
    }
    writeln!(
        out,
        "{path} #{number} {:?} {:o} {}:{} links {} size {} device {:x} times {} {} {} flags {:x} content \
         {content:016x}{attributes}",
        attr.kind,
        attr.mode,
        attr.uid,
        attr.gid,
        attr.nlink,
        attr.size,
        attr.rdev,
        attr.mtime,
        attr.ctime,
        attr.btime,
        fs.flags(node).unwrap().0,
    )
    .unwrap();
    let mut names = Vec::new();
    if attr.kind == FileKind::Directory {
        let mut keep = |entry: espalier_fs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        fs.readdir(node, 2, &mut keep).unwrap();
    }
    for name in names {
        let child = fs.lookup(node, &name).unwrap().node;
        list(fs, child, &format!("{path}/{}", name.escape_ascii()), seen, out);
        fs.forget(child, 1);
    }
}

fn listing(store: &Arc<Store>, fs: &FileSystem, world: &Arc<World>) -> String {
    let mut out = String::new();
    list(fs, NodeId::ROOT, "", &mut HashMap::new(), &mut out);
    for snapshot in snapshots(store) {
        writeln!(out, "snapshot {} writable {}", snapshot.name, snapshot.writable).unwrap();
        let options = OpenOptions { volume: snapshot.volume, read_only: true, ..OpenOptions::default() };
        let alone = FileSystem::open(store.clone(), world.clone(), options).unwrap();
        list(&alone, NodeId::ROOT, "", &mut HashMap::new(), &mut out);
    }
    out
}

fn write_golden(name: &str) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(BYTES));
    let world = World::new(1);
    let format = espalier_engine::FormatOptions {
        compression: Compression::Lz4,
        log_bytes: Some(512 << 10),
        label: "golden".into(),
    };
    Store::format(device.clone(), world.clone(), &format).unwrap();
    let store = open_store(&device, &world);
    let now = world.step(1);
    FileSystem::format(&store, &FormatOptions { block_size: 4096, now, ..Default::default() }).unwrap();
    let fs = open_fs(&store, &world, &mut Random(1), &Arc::default(), false);
    make(&store, &fs, &world);
    let mut all = AlignedBuf::zeroed(BYTES as usize);
    device.read_at(0, &mut all).unwrap();
    std::fs::write(path(&format!("{name}.zst")), zstd::encode_all(&*all, 19).unwrap()).unwrap();
    std::fs::write(path(&format!("{name}.listing")), listing(&store, &fs, &world)).unwrap();
}

#[test]
fn file_systems_of_earlier_versions_stay_readable() {
    if std::env::var_os("ESPALIER_WRITE_GOLDEN").is_some() {
        write_golden(NEWEST);
    }
    for name in ALL {
        let packed = std::fs::read(path(&format!("{name}.zst"))).unwrap();
        let image = zstd::decode_all(&*packed).unwrap();
        let told = std::fs::read_to_string(path(&format!("{name}.listing"))).unwrap();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image.len() as u64));
        device.write_at(0, &[&AlignedBuf::padded(&image)]).unwrap();
        // Its numbers are no others of the world that made the image.
        let world = World::new(0x0123_4567_89ab);
        world.step(100_000_000_000);
        let store = open_store(&device, &world);
        let fs = open_fs(&store, &world, &mut Random(2), &Arc::default(), false);
        for (found, expected) in listing(&store, &fs, &world).lines().zip(told.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(listing(&store, &fs, &world), told, "{name}");
        fs.syncfs().unwrap();
        assert_sound(&store, name);
        // It takes all that is done with new ones, too.
        let first = fs.lookup(NodeId::ROOT, b"first").unwrap().node;
        let copy = fs.clone_tree(first, NodeId::ROOT, b"copy", &ROOT).unwrap().node;
        fs.forget(first, 1);
        make_files(&fs, fs.mkdir(copy, b"new", 0o755, &ROOT).unwrap().node);
        fs.restore_tree(NodeId::ROOT, b"first", "kept", &ROOT).unwrap();
        fs.remove_tree(NodeId::ROOT, b"moved", &ROOT).unwrap();
        fs.snapshot_delete("whole").unwrap();
        fs.syncfs().unwrap();
        assert_sound(&store, name);
        let after = listing(&store, &fs, &world);
        drop(fs);
        store.close().unwrap();
        drop(store);
        let store = open_store(&device, &world);
        let fs = open_fs(&store, &world, &mut Random(3), &Arc::default(), false);
        assert_eq!(listing(&store, &fs, &world), after, "{name}");
    }
}
