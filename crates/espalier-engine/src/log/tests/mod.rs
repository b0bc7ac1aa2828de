//! Tests of the log against a model of what its batches do.

mod codec;
mod crash;
mod damage;
mod model;
mod plan;
mod ring;
mod threads;

use super::*;
use crate::device::GuardedDevice;
use crate::model::ids::Extent;
use crate::model::piece::FreshOwner;
use crate::model::value::ValueRef;
use crate::{Error, ErrorKind, IndexId, Key, KeyRange, Lsn, Msn, Op, PieceKind, RangeOp, VALUE_PAGE, Value};
use espalier_storage::{AlignedBuf, BLOCK, Device, Random};
use espalier_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Weak;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A value that makes the binder panic.
const PANIC: &[u8] = &[0xee; 30_000];

const UUID: &[u8; 16] = b"sixteen bytes id";

/// Value parts in an area of a device: allocates at random places, so that what is freed is soon
/// overwritten, and complains when two parts want the same blocks.
struct TestBinder {
    device: Arc<dyn Device>,
    area: Extent,
    random: Mutex<Random>,
    parts: Arc<Parts>,
    /// What is allocated and not registered yet.
    reserved: Mutex<Vec<Extent>>,
}

#[derive(Default)]
struct Parts(Mutex<BTreeMap<PieceId, (Location, Weak<PieceHandle>)>>);

impl FreshOwner for Parts {
    fn handle_dropped(&self, id: PieceId) {
        self.0.lock().remove(&id);
    }
}

impl TestBinder {
    fn new(device: Arc<dyn Device>, area: Extent, seed: u64) -> Arc<Self> {
        let (random, parts, reserved) = (Mutex::new(Random::new(seed)), Arc::default(), Mutex::default());
        Arc::new(Self { device, area, random, parts, reserved })
    }

    /// How many parts have handles.
    fn held(&self) -> usize {
        self.parts.0.lock().len()
    }

    fn allocate(&self, blocks: u32) -> Result<(PieceId, Extent)> {
        let mut random = self.random.lock();
        let mut reserved = self.reserved.lock();
        let parts = self.parts.0.lock();
        for _ in 0..100 {
            let room = u64::from(self.area.blocks.saturating_sub(blocks)) + 1;
            let extent = Extent { start: self.area.start + random.below(room), blocks };
            let mut taken = parts.values().map(|(location, _)| &location.extent).chain(&*reserved);
            let clash = taken.any(|taken| overlap(*taken, extent));
            if !clash && blocks <= self.area.blocks {
                reserved.push(extent);
                return Ok((PieceId(random.next_u64() | 1), extent));
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "no room for a value part"))
    }

    fn register(&self, id: PieceId, location: Location) -> Arc<PieceHandle> {
        let handle = PieceHandle::fresh(id, self.parts.clone());
        let mut reserved = self.reserved.lock();
        self.parts.0.lock().insert(id, (location, Arc::downgrade(&handle)));
        reserved.retain(|extent| *extent != location.extent);
        handle
    }

    fn write_part(&self, values: &[Arc<LargeValue>]) -> Result<()> {
        let mut bytes = Vec::new();
        let mut offsets = Vec::new();
        for value in values {
            offsets.push(bytes.len() as u32);
            bytes.extend_from_slice(&value.bytes().expect("an unplaced value has bytes"));
        }
        let padded = AlignedBuf::padded(&bytes);
        let (id, extent) = self.allocate((padded.len() / BLOCK) as u32)?;
        self.device.write_at(extent.byte_offset(), &[&padded])?;
        let location = Location {
            extent,
            len: bytes.len() as u32,
            checksum: xxh3_64_with_seed(&bytes, id.0),
            kind: PieceKind::Values,
            scattered: false,
        };
        let part = self.register(id, location);
        for (value, offset) in values.iter().zip(offsets) {
            let at = &bytes[offset as usize..offset as usize + value.len()];
            let sums = at.chunks(VALUE_PAGE).map(|page| xxh3_64_with_seed(page, id.0) as u32).collect();
            value.set_place(ValueRef { part: part.clone(), offset, len: value.len() as u32, sums });
            value.forget_bytes();
        }
        Ok(())
    }

    /// Reads a value, checking every page; an error names what is wrong with it.
    fn read(&self, value: &Value) -> Result<Vec<u8>> {
        if let Some(bytes) = value.in_memory() {
            return Ok(bytes.to_vec());
        }
        let place = value.large().and_then(|large| large.place()).expect("a stored value has a place");
        let location = self.location(place.part.id())?;
        let mut buffer = AlignedBuf::zeroed(location.extent.byte_len());
        self.device.read_at(location.extent.byte_offset(), &mut buffer)?;
        let bytes = buffer[place.offset as usize..(place.offset + place.len) as usize].to_vec();
        let sums = bytes.chunks(VALUE_PAGE).map(|page| xxh3_64_with_seed(page, place.part.id().0) as u32);
        assert!(sums.eq(place.sums.iter().copied()), "{place:?} was overwritten");
        Ok(bytes)
    }
}

fn overlap(a: Extent, b: Extent) -> bool {
    a.start < b.end() && b.start < a.end()
}

impl Binder for TestBinder {
    fn outcome(&self, _: IndexId, _: &[u8], _: Msn) -> Option<Op> {
        None
    }

    fn bind(&self, values: &[Arc<LargeValue>]) -> Result<()> {
        let panics = |value: &Arc<LargeValue>| value.bytes().is_some_and(|bytes| bytes[..] == *PANIC);
        assert!(!values.iter().any(panics), "a value that makes it panic");
        let size = self.random.lock().between(1..=8) as usize;
        values.chunks(size).try_for_each(|chunk| self.write_part(chunk))
    }

    fn location(&self, part: PieceId) -> Result<Location> {
        let parts = self.parts.0.lock();
        parts
            .get(&part)
            .map(|(location, _)| *location)
            .ok_or_else(|| Error::damaged(format!("{part} is gone")))
    }

    fn adopt(&self, part: PieceId, location: Location) -> Result<Arc<PieceHandle>> {
        let known = {
            let parts = self.parts.0.lock();
            for (other, (theirs, _)) in &*parts {
                if *other != part && overlap(theirs.extent, location.extent) {
                    return Err(Error::damaged(format!("{part} lies on {other}")));
                }
            }
            parts.get(&part).and_then(|(_, handle)| handle.upgrade())
        };
        Ok(known.unwrap_or_else(|| self.register(part, location)))
    }
}

/// An open log with what it needs around it.
struct Rig {
    log: Log,
    binder: Arc<TestBinder>,
    replayed: Vec<LoggedBatch>,
}

fn open(
    device: &Arc<dyn Device>,
    layout: Layout,
    from: LogPosition,
    config: LogConfig,
    seed: u64,
) -> Result<Rig> {
    let binder = TestBinder::new(device.clone(), layout.parts, seed);
    let mut replayed = Vec::new();
    let opening = opening(guarded(device), layout, from, binder.clone(), config, seed ^ 0x5e55);
    let log = opening.open(&mut |batch| {
        replayed.push(batch);
        Ok(())
    })?;
    Ok(Rig { log, binder, replayed })
}

fn opening(
    device: Arc<GuardedDevice>,
    layout: Layout,
    from: LogPosition,
    binder: Arc<TestBinder>,
    config: LogConfig,
    session: u64,
) -> LogOpening<'static> {
    LogOpening { device, region: layout.log, uuid: UUID, session, from, binder, config }
}

fn guarded(device: &Arc<dyn Device>) -> Arc<GuardedDevice> {
    GuardedDevice::new(device.clone(), false)
}

/// Where log and parts lie on a test device.
#[derive(Clone, Copy)]
struct Layout {
    log: Extent,
    parts: Extent,
}

impl Layout {
    fn new(log_blocks: u32, part_blocks: u32) -> Self {
        let log = Extent { start: 3, blocks: log_blocks };
        Self { log, parts: Extent { start: log.end(), blocks: part_blocks } }
    }

    fn bytes(self) -> u64 {
        self.parts.end() * BLOCK as u64
    }
}

/// A new log on a new memory device.
fn fresh(log_blocks: u32, config: LogConfig) -> (Arc<dyn Device>, Layout, LogPosition, Rig) {
    let layout = Layout::new(log_blocks, 4096);
    let device: Arc<dyn Device> = Arc::new(espalier_storage::MemoryDevice::new(layout.bytes()));
    let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
    let rig = open(&device, layout, start, config, 1).unwrap();
    (device, layout, start, rig)
}

const INDEX: IndexId = IndexId { volume: 1, index: 2 };

fn insert(key: &str, value: impl Into<Value>) -> LoggedOp {
    LoggedOp::Point { index: INDEX, key: key.as_bytes().into(), op: Op::Insert(value.into()) }
}

fn delete(key: &str) -> LoggedOp {
    LoggedOp::Point { index: INDEX, key: key.as_bytes().into(), op: Op::Delete }
}

/// A batch with MSNs that follow from its LSN.
fn batch(lsn: u64, ops: Vec<LoggedOp>) -> LoggedBatch {
    LoggedBatch { lsn: Lsn(lsn), first_msn: Msn(lsn * 1000), ops }
}
