//! `espalier copy`: copies a store between an image and an object store, only what is live.
//!
//! Protocol: the source is opened as a store, through a device that keeps all that is written to it
//! in memory: so its log is replayed, it is closed in order, and it tells what is free, and nothing
//! of it changes. Then its blocks are copied, but not those that are free or zeros; those with the
//! superblocks come last, after a sync. So what was interrupted is no store, and can be begun again
//! with `--resume`: what is there already is compared, and not written again.
//!
//! Invariant: from the first block that changes to the last sync the target is no store. A target
//! that is gone on with may be an older copy, complete and valid, so the places of its superblocks
//! are made zeros first, and that is synced before anything else changes. What the source does not
//! use is discarded there, so that it takes no more room than a new copy.

use crate::args::Copy;
use crate::backing::{self, Backing, ObjectOptions};
use crate::image;
use crate::signature;
use crate::ui::{self, say};
use crate::units::{self, Size};
use anyhow::{Context, Result, bail, ensure};
use espalier_engine::{OpenOptions, Store};
use espalier_object::{Access, ObjectDevice, Options, Present};
use espalier_storage::{
    AlignedBuf, BLOCK, Device, Environment, Existing, FileDevice, OpenMode, OverlayDevice,
};
use espalier_sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are copied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// A sync after so many bytes: what an interruption may cost.
const SYNC_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 256 << 20 };

/// Memory for the source's store.
const MEMORY_BYTES: u64 = 256 << 20;

/// Blocks with superblocks, besides the last one.
const SUPERBLOCKS: [u64; 2] = [0, 16];

/// Runs the command.
pub(crate) fn run(args: &Copy) -> Result<()> {
    let started = Instant::now();
    let (from, to) = (args.source.display(), args.target.display());
    if let Some(at) = image::mounted(&args.source) {
        bail!("{from} is mounted at {}; unmount it first (espalier umount {})", at.display(), at.display());
    }
    let source = Arc::new(Source::new(image::open_backing(&args.source, OpenMode::ReadOnly)?.device()));
    find_free(&source, &args.source)?;
    let target = open_target(args, source.len())?;
    let device = target.device();
    ensure!(
        device.len() == source.len(),
        "{to} has {} and {from} has {}; they must be equal",
        Size(device.len()),
        Size(source.len())
    );
    let copied = copy(&source, &*device, args.resume).with_context(|| {
        format!("{to} is not complete and no store yet; go on with espalier copy --resume {from} {to}")
    })?;
    say!(
        "{to}: copied {} of {from}, which has {}, in {}",
        Size(copied),
        Size(source.len()),
        units::duration(started.elapsed())
    );
    Ok(())
}

/// Opens where to copy to: a new image or store, or with `--resume` what is there.
fn open_target(args: &Copy, bytes: u64) -> Result<Backing> {
    let to = args.target.display();
    if let Some(location) = backing::location(&args.target)? {
        let environment: Arc<dyn Environment> = image::environment();
        if !args.resume {
            let bucket = backing::bucket(&location, true)?;
            ObjectDevice::create(bucket, &environment, bytes, &Options::default(), Present::Refuse)
                .with_context(|| format!("{to} cannot be made"))?;
        }
        return Ok(Backing::Object(backing::open_object(
            &location,
            Access::Write,
            &environment,
            &ObjectOptions::default(),
        )?));
    }
    let device = if args.resume {
        image::open_device(&args.target, OpenMode::ReadWrite)?
    } else {
        if args.target.exists()
            && let Some(found) = signature::find(&args.target)?
        {
            bail!("{to} contains {found}; it was left as it is");
        }
        FileDevice::create_with(&args.target, bytes, Existing::Refuse)
            .with_context(|| format!("{to} cannot be made"))?
    };
    Ok(Backing::File(Arc::new(device)))
}

/// Lets the store on `source` replay its log, close, and tell what is free.
fn find_free(source: &Arc<Source>, path: &Path) -> Result<()> {
    let merge = espalier_fs::merge_functions();
    let options = OpenOptions { memory: MEMORY_BYTES, merge, ..Default::default() };
    let explained = |e| image::explain(e, path);
    let device = Arc::clone(source) as Arc<dyn Device>;
    let store = Store::open(device, image::environment(), options).map_err(explained)?;
    store.trim(BLOCK as u64).map_err(explained)?;
    store.close().map_err(explained)
}

/// Copies what is not free and not zeros; returns the bytes.
fn copy(source: &Source, target: &dyn Device, resume: bool) -> Result<u64> {
    let blocks = source.len() / BLOCK as u64;
    let bar = ui::byte_bar("copying", source.len());
    let mut copied = 0;
    let mut unsynced = 0;
    let mut last = SUPERBLOCKS.to_vec();
    last.push(blocks - 1);
    let used = source.used(blocks);
    // A copy of this very state stays a store.
    if resume && !has_same(source, target, &last)? {
        let zeros = AlignedBuf::zeroed(BLOCK);
        for block in &last {
            target.write_at(block * BLOCK as u64, &[&zeros])?;
        }
        target.sync()?;
        for range in between(&used, blocks) {
            target.discard(range.start * BLOCK as u64, (range.end - range.start) * BLOCK as u64)?;
        }
    }
    for range in used {
        let mut at = range.start;
        while at < range.end {
            let next_superblock = last.iter().copied().filter(|block| *block >= at).min().unwrap_or(blocks);
            if next_superblock == at {
                at += 1;
                continue;
            }
            let end = range.end.min(next_superblock).min(at + (CHUNK_BYTES / BLOCK) as u64);
            let bytes = copy_range(source, target, at..end, resume)?;
            (copied, unsynced) = (copied + bytes, unsynced + bytes);
            if unsynced >= SYNC_BYTES {
                target.sync()?;
                unsynced = 0;
            }
            at = end;
            bar.set_position(at * BLOCK as u64);
        }
    }
    target.sync()?;
    // Those that are zeros need not be written: in the target they are zeros already.
    for block in last {
        copied += copy_range(source, target, block..block + 1, resume)?;
    }
    target.sync()?;
    bar.finish_and_clear();
    Ok(copied)
}

/// True if the blocks of two devices are equal.
fn has_same(source: &Source, target: &dyn Device, blocks: &[u64]) -> Result<bool> {
    let (mut one, mut other) = (AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(BLOCK));
    for block in blocks {
        source.read_at(block * BLOCK as u64, &mut one)?;
        target.read_at(block * BLOCK as u64, &mut other)?;
        if one[..] != other[..] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What lies between ranges that follow each other, of so many blocks.
fn between(ranges: &[Range<u64>], blocks: u64) -> Vec<Range<u64>> {
    let starts = ranges.iter().map(|range| range.start).chain([blocks]);
    let ends = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    ends.zip(starts).map(|(end, start)| end..start).filter(|range| !range.is_empty()).collect()
}

/// Copies the blocks of a range that are not zeros; with `resume`, those that differ.
fn copy_range(source: &Source, target: &dyn Device, range: Range<u64>, resume: bool) -> Result<u64> {
    let length = (range.end - range.start) as usize * BLOCK;
    let offset = range.start * BLOCK as u64;
    let mut buffer = AlignedBuf::zeroed(length);
    source.read_at(offset, &mut buffer)?;
    let mut there = AlignedBuf::zeroed(if resume { length } else { 0 });
    if resume {
        target.read_at(offset, &mut there)?;
    }
    let is_there = |block: &[u8], index: usize| match resume {
        true => there[index * BLOCK..(index + 1) * BLOCK] == *block,
        false => block.iter().all(|byte| *byte == 0),
    };
    let mut copied = 0;
    let mut from = 0;
    let blocks: Vec<bool> = buffer.chunks(BLOCK).enumerate().map(|(i, block)| is_there(block, i)).collect();
    for run in blocks.chunk_by(|a, b| a == b) {
        let bytes = run.len() * BLOCK;
        if !run[0] {
            target.write_at(offset + from as u64, &[&buffer[from..from + bytes]])?;
            copied += bytes as u64;
        }
        from += bytes;
    }
    Ok(copied)
}

/// A device that never changes: what is written to it stays in memory, what is discarded is noted.
#[derive(Debug)]
struct Source {
    device: OverlayDevice<Arc<dyn Device>>,
    /// Runs of free blocks: first block and the one behind the last.
    free: Mutex<BTreeMap<u64, u64>>,
}

impl Source {
    fn new(device: Arc<dyn Device>) -> Self {
        Self { device: OverlayDevice::new(device), free: Mutex::default() }
    }

    /// What is not free, of so many blocks.
    fn used(&self, blocks: u64) -> Vec<Range<u64>> {
        let mut used = Vec::new();
        let mut at = 0;
        for (start, end) in self.free.lock().iter() {
            if at < *start {
                used.push(at..*start);
            }
            at = *end;
        }
        if at < blocks {
            used.push(at..blocks);
        }
        used
    }

    /// Blocks are in use again.
    fn take(&self, range: Range<u64>) {
        let mut free = self.free.lock();
        let before = free.range(..range.start).next_back().map(|(start, _)| *start);
        let met: Vec<(u64, u64)> = free
            .range(before.unwrap_or(range.start)..range.end)
            .map(|(start, end)| (*start, *end))
            .filter(|(_, end)| *end > range.start)
            .collect();
        for (start, end) in met {
            free.remove(&start);
            if start < range.start {
                free.insert(start, range.start);
            }
            if end > range.end {
                free.insert(range.end, end);
            }
        }
    }
}

impl Device for Source {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.device.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.device.read_ahead_bytes()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.take(offset / BLOCK as u64..(offset + length) / BLOCK as u64);
        self.device.write_at(offset, buffers)
    }

    fn sync(&self) -> espalier_storage::Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        let range = offset / BLOCK as u64..(offset + length) / BLOCK as u64;
        self.take(range.clone());
        if !range.is_empty() {
            self.free.lock().insert(range.start, range.end);
        }
        self.device.discard(offset, length)
    }
}

#[cfg(test)]
mod tests;
