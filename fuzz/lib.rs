//! What the fuzz targets share: small stores, and damage to them.
//!
//! The checksums of blocks are not compared under a fuzzer (`cfg(fuzzing)`), so that what it
//! changes reaches the decoders and everything behind them. They must bear it: errors are right,
//! and so are wrong answers; a panic, a hang or a huge allocation is not.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store, Tuning};
use espalier_fs::{Caller, FileSystem, NewNode, NodeId};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, MemoryDevice, SystemEnvironment};
use std::ops::Range;
use std::sync::Arc;

/// Size of the device, in bytes.
const DEVICE_BYTES: u64 = 4 << 20;

/// A store on a small device, by its blocks that are not zero.
pub struct Image {
    blocks: Vec<(u64, Vec<u8>)>,
}

fn environment() -> Arc<dyn Environment> {
    Arc::new(SystemEnvironment::new(0))
}

fn options() -> OpenOptions {
    OpenOptions {
        memory: 2 << 20,
        merge: espalier_fs::merge_functions(),
        tuning: Tuning::tiny(),
        ..OpenOptions::default()
    }
}

impl Image {
    /// A file system with a few files in trees of some height. If it is not `closed`, most of it is
    /// in the log.
    pub fn new(closed: bool) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(DEVICE_BYTES));
        let format = FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() };
        Store::format(device.clone(), environment(), &format).expect("a store can be made");
        let store = Store::open(device.clone(), environment(), options()).expect("it opens");
        let made = espalier_fs::FormatOptions { block_size: 4096, ..Default::default() };
        FileSystem::format(&store, &made).expect("a volume can be made");
        let fs = FileSystem::open(store.clone(), environment(), Default::default()).expect("it opens");
        let caller = Caller::default();
        let dir = fs.mkdir(NodeId::ROOT, b"dir", 0o755, &caller).expect("mkdir").node;
        for n in 0..36u32 {
            let parent = if n % 3 == 0 { NodeId::ROOT } else { dir };
            let name = format!("file-{n}");
            let file = fs.mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &caller).expect("mknod").node;
            fs.write(file, 0, &vec![n as u8; [10, 300, 5000, 9000][n as usize % 4]], false).expect("write");
            fs.write(file, 5, b"patched", false).expect("write");
            if n % 10 == 0 {
                fs.link(file, NodeId::ROOT, format!("link-{n}").as_bytes()).expect("link");
            }
        }
        let mut batch = Batch::new();
        let index = IndexId { volume: store.volumes()[0].id, index: 1 };
        batch.delete_range(index, KeyRange::prefix(b"nothing"));
        store.commit(batch).expect("commit");
        if closed {
            fs.close().expect("close");
            store.close().expect("close");
        } else {
            store.sync_all().expect("sync");
        }
        drop((fs, store));
        let mut blocks = Vec::new();
        let mut block = AlignedBuf::zeroed(BLOCK);
        for number in 0..DEVICE_BYTES / BLOCK as u64 {
            device.read_at(number * BLOCK as u64, &mut block).expect("memory can be read");
            if block.iter().any(|byte| *byte != 0) {
                blocks.push((number, block.to_vec()));
            }
        }
        Self { blocks }
    }

    /// The image with `edits` in those of its blocks that lie in `range`: each edit is a block (2
    /// bytes), a place in it (2 bytes), a length (1 byte, at most 8) and the bytes.
    pub fn edited(&self, range: Range<u64>, mut edits: &[u8]) -> Arc<dyn Device> {
        let device = MemoryDevice::new(DEVICE_BYTES);
        let mut blocks: Vec<(u64, AlignedBuf)> = Vec::new();
        for (number, content) in &self.blocks {
            let mut block = AlignedBuf::zeroed(BLOCK);
            block.copy_from_slice(content);
            blocks.push((*number, block));
        }
        let inside: Vec<usize> = (0..blocks.len()).filter(|at| range.contains(&blocks[*at].0)).collect();
        while let Some((head, rest)) = edits.split_first_chunk::<5>() {
            let place = usize::from(u16::from_le_bytes([head[2], head[3]])) % BLOCK;
            let length = usize::from(head[4] % 8 + 1).min(rest.len()).min(BLOCK - place);
            let which = inside[usize::from(u16::from_le_bytes([head[0], head[1]])) % inside.len()];
            blocks[which].1[place..place + length].copy_from_slice(&rest[..length]);
            edits = &rest[length..];
        }
        for (number, block) in &blocks {
            device.write_at(number * BLOCK as u64, &[block]).expect("memory can be written");
        }
        Arc::new(device)
    }
}

/// Opens a store, reads and checks everything, changes something, and closes it; then what repair
/// makes of it.
pub fn use_all(device: &Arc<dyn Device>) {
    if let Ok(store) = Store::open(device.clone(), environment(), options()) {
        look(&store);
        if let Ok(fs) = FileSystem::open(store.clone(), environment(), Default::default()) {
            let _ = fs.mknod(NodeId::ROOT, b"new", NewNode::Regular, 0o644, &Caller::default());
            let _ = fs.unlink(NodeId::ROOT, b"file-3");
            let _ = fs.close();
        }
        let _ = store.close();
    }
    if let Ok(rescue) = Store::open_damaged(device.clone(), environment(), options(), &mut |_| ()) {
        let _ = espalier_fs::repair(&rescue.store, "main", &rescue.losses, 0, &mut |_| ());
        look(&rescue.store);
        let _ = rescue.store.close();
    }
}

fn look(store: &Arc<Store>) {
    let _ = store.verify(&mut |_| ());
    let _ = espalier_fs::check(store, "main", &mut |_| ());
    let _ = store.census();
    for volume in store.volumes().into_iter().take(4) {
        for index in 0..volume.indexes.min(4) {
            let index = IndexId { volume: volume.id, index };
            let Ok(mut cursor) = store.cursor(index, KeyRange::all()) else { continue };
            while let Ok(Some(entry)) = cursor.next() {
                let _ = cursor.read(&entry.value);
            }
            cursor.seek_to_end();
            while let Ok(Some(_)) = cursor.prev() {}
        }
    }
}
