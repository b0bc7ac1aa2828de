//! Stores written by every released format stay readable.
//!
//! `golden/v1.zst` is a device of 4 MiB as a store of format 1 left it without being closed: trees
//! of several levels, messages on their way, parts with LZ4, large values, and batches in the log
//! that no checkpoint covers. `golden/v1-clones.zst` has in addition clones, in the tree and in the
//! log, and a snapshot of the volume; `golden/v1-copies.zst` the same with the feature of copies:
//! every table page twice, and a spare superblock. To add the image of a new format, run this with
//! `ESPALIER_WRITE_GOLDEN=1` after adding its name below; never write an old one again.

use espalier_engine::{
    Batch, Compression, FormatOptions, IndexId, KeyRange, MergeFunctions, OpenOptions, READ_ONLY_VOLUME,
    Store, Tuning,
};
use espalier_storage::{AlignedBuf, Device, MemoryDevice, SimulatedEnvironment};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const SIZE: u64 = 4 << 20;
const NEWEST: &str = "v1-copies";
const ALL: [&str; 3] = ["v1", "v1-clones", "v1-copies"];

type Contents = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.zst"))
}

fn options() -> OpenOptions {
    let append = |old: Option<&[u8]>, more: &[u8]| Some([old.unwrap_or(&[]), more].concat());
    let tuning = Tuning::tiny();
    OpenOptions {
        memory: 4 << 20,
        merge: MergeFunctions::new().with(7, append),
        tuning,
        ..OpenOptions::default()
    }
}

fn value(n: u32) -> Vec<u8> {
    let len = if n.is_multiple_of(9) { 9000 + n as usize } else { (n % 50) as usize };
    (0..len).map(|i| (i as u32 * 31 + n) as u8).collect()
}

fn key(n: u32) -> Vec<u8> {
    format!("dir-{:02}/\u{1}name-{n:05}", n * 7 % 13).into_bytes()
}

/// Writes the store's history to `store` (if there is one), with clones or without, and returns
/// what it then holds, and what its snapshot holds.
fn history(store: Option<(&Store, u32)>, clones: bool) -> (Contents, Contents) {
    let (mut contents, mut snapshot) = (Contents::new(), Contents::new());
    let commit = |batch: Batch| {
        if let Some((store, _)) = store {
            store.commit(batch).unwrap();
        }
    };
    let checkpoint = || {
        if let Some((store, _)) = store {
            store.checkpoint().unwrap();
        }
    };
    let volume = store.map_or(0, |(_, volume)| volume);
    let index = |index: u8| IndexId { volume, index };
    for n in 0..300u32 {
        let i = (n % 2) as u8;
        let mut batch = Batch::new();
        batch.insert(index(i), &key(n), value(n));
        contents.insert((i, key(n)), value(n));
        if n % 5 == 0 {
            batch.patch(index(i), &key(n), 3, vec![0xee; 4]);
            let old = contents.entry((i, key(n))).or_default();
            old.resize(old.len().max(7), 0);
            old[3..7].fill(0xee);
        }
        if n % 11 == 0 {
            batch.update(index(i), &key(n), 7, vec![n as u8]);
            contents.entry((i, key(n))).or_default().push(n as u8);
        }
        if n == 150 {
            batch.delete_range(index(0), KeyRange::prefix(b"dir-03/"));
            contents.retain(|(i, k), _| *i != 0 || !k.starts_with(b"dir-03/"));
            batch.update_range(index(1), KeyRange::prefix(b"dir-05/"), 7, b"!".to_vec());
            for ((i, k), v) in &mut contents {
                if *i == 1 && k.starts_with(b"dir-05/") {
                    v.push(b'!');
                }
            }
        }
        let cloned = [(100, 4, 90), (170, 90, 6), (200, 6, 91), (270, 2, 92), (290, 92, 1)];
        for (_, from, to) in cloned.iter().filter(|(at, ..)| clones && *at == n) {
            let (from, to) = (format!("dir-{from:02}/"), format!("dir-{to:02}/"));
            for i in 0..2 {
                batch.clone_range(index(i), from.as_bytes(), to.as_bytes());
            }
            contents.retain(|(_, key), _| !key.starts_with(to.as_bytes()));
            let copy = |((i, key), value): (&(u8, Vec<u8>), &Vec<u8>)| {
                let rest = key.strip_prefix(from.as_bytes())?;
                Some(((*i, [to.as_bytes(), rest].concat()), value.clone()))
            };
            let copies: Contents = contents.iter().filter_map(copy).collect();
            contents.extend(copies);
        }
        commit(batch);
        if n == 220 && clones {
            if let Some((store, volume)) = store {
                store.snapshot_volume(volume, "snapshot", READ_ONLY_VOLUME).unwrap();
            }
            snapshot.clone_from(&contents);
        }
        if n == 120 || n == 250 {
            checkpoint();
        }
    }
    if let Some((store, _)) = store {
        store.sync_all().unwrap();
    }
    (contents, snapshot)
}

fn contents_of(store: &Store, volume: u32) -> Contents {
    let mut found = Contents::new();
    for index in 0..2 {
        let mut cursor = store.cursor(IndexId { volume, index }, KeyRange::all()).unwrap();
        while let Some(entry) = cursor.next().unwrap() {
            let value = cursor.read(&entry.value).unwrap().to_vec();
            found.insert((index, entry.key.into_vec()), value);
        }
    }
    found
}

fn bytes_of(device: &dyn Device) -> Vec<u8> {
    let mut all = AlignedBuf::zeroed(SIZE as usize);
    device.read_at(0, &mut all).unwrap();
    all.to_vec()
}

fn write_golden(name: &str) {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let env = Arc::new(SimulatedEnvironment::new(1));
    let format =
        FormatOptions { compression: Compression::Lz4, log_bytes: Some(256 << 10), label: "golden".into() };
    Store::format(device.clone(), env.clone(), &format).unwrap();
    let store = Store::open(device.clone(), env, options()).unwrap();
    let volume = store.create_volume("main", 2, 5, b"parameters").unwrap();
    history(Some((&store, volume)), name != "v1");
    let packed = zstd::encode_all(&*bytes_of(&*device), 19).unwrap();
    std::fs::write(path(name), packed).unwrap();
}

#[test]
fn every_format_stays_readable() {
    if std::env::var_os("ESPALIER_WRITE_GOLDEN").is_some() {
        write_golden(NEWEST);
    }
    for name in ALL {
        let packed = std::fs::read(path(name)).unwrap();
        let image = zstd::decode_all(&*packed).unwrap();
        let device = Arc::new(MemoryDevice::new(image.len() as u64));
        device.write_at(0, &[&AlignedBuf::padded(&image)]).unwrap();
        let store = Store::open(device, Arc::new(SimulatedEnvironment::new(2)), options()).unwrap();
        let volumes = store.volumes();
        let volume = &volumes[0];
        assert_eq!(
            (volume.name.as_str(), volume.flags, &volume.parameters[..]),
            ("main", 5, &b"parameters"[..])
        );
        assert_eq!(store.statistics().label, "golden");
        let (contents, snapshot) = history(None, name != "v1");
        assert!(contents_of(&store, volume.id) == contents, "{name}: other contents than were written");
        assert_eq!(volumes.len(), if name == "v1" { 1 } else { 2 });
        if let Some(volume) = volumes.get(1) {
            assert_eq!((volume.name.as_str(), volume.flags), ("snapshot", READ_ONLY_VOLUME));
            assert!(contents_of(&store, volume.id) == snapshot, "{name}: another snapshot than was taken");
        }
        let report = store.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
        // It must take more writing, too.
        let mut batch = Batch::new();
        batch.insert(IndexId { volume: volume.id, index: 0 }, b"new", b"value".to_vec());
        store.commit(batch).unwrap();
        store.close().unwrap();
    }
}
