//! The pieces of a store in memory, with a locator that can be made scarce or fragmented.

use super::*;
use crate::extents::ExtentList;
use crate::model::ids::Location;
use crate::model::op::Op;
use crate::model::options::Compression;
use crate::model::piece::{FreshOwner, PieceHandle};
use crate::model::value::{LargeValue, Value, ValueRef};
use crate::model::value_reader::Wanted;
use crate::{Error, ErrorKind, Extent, Msn, PieceKind};
use espalier_storage::{AlignedBuf, BLOCK, CountingDevice, Device, MemoryDevice, Random};
use espalier_sync::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Weak;

mod device_readahead;
mod prefetch_queue;
mod values;

/// Places pieces first fit; drops fresh ones with their handles.
struct TestLocator {
    me: Weak<Self>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    free: BTreeSet<u64>,
    /// No run longer than this is given.
    longest: u32,
    places: HashMap<PieceId, (Location, Weak<PieceHandle>)>,
    layouts: HashMap<PieceId, Arc<ExtentList>>,
}

impl TestLocator {
    fn new(blocks: u64) -> Arc<Self> {
        let state = State { next_id: 1, free: (1..blocks).collect(), longest: u32::MAX, ..State::default() };
        Arc::new_cyclic(|me| Self { me: me.clone(), state: Mutex::new(state) })
    }

    fn free(&self) -> usize {
        self.state.lock().free.len()
    }

    fn change(&self, id: PieceId, change: impl FnOnce(&mut Location)) {
        change(&mut self.state.lock().places.get_mut(&id).unwrap().0);
    }
}

impl FreshOwner for TestLocator {
    fn handle_dropped(&self, id: PieceId) {
        let (location, _) = self.state.lock().places.remove(&id).unwrap();
        match location.scattered {
            true => self.give_back_scattered(id),
            false => self.give_back(location.extent),
        }
    }
}

impl Locator for TestLocator {
    fn new_id(&self) -> PieceId {
        let mut state = self.state.lock();
        state.next_id += 1;
        PieceId(state.next_id)
    }

    fn locate(&self, id: PieceId) -> Result<Location> {
        let state = self.state.lock();
        state.places.get(&id).map(|p| p.0).ok_or_else(|| Error::damaged(format!("no piece {id}")))
    }

    fn allocate(&self, blocks: u32, near: Option<u64>) -> Result<Extent> {
        let mut state = self.state.lock();
        let fits = |start: &&u64| (**start..**start + u64::from(blocks)).all(|b| state.free.contains(&b));
        let start = state.free.range(near.unwrap_or(0)..).find(fits).or_else(|| state.free.iter().find(fits));
        match start.copied() {
            Some(start) if blocks <= state.longest => {
                state.free.retain(|b| !(start..start + u64::from(blocks)).contains(b));
                Ok(Extent { start, blocks })
            }
            _ => Err(Error::new(ErrorKind::NoSpace, "no such run")),
        }
    }

    fn is_shared(&self, _: PieceId) -> Result<bool> {
        Ok(false)
    }

    fn allocate_scattered(&self, id: PieceId, blocks: u32) -> Result<Arc<ExtentList>> {
        let mut state = self.state.lock();
        if (state.free.len() as u64) < u64::from(blocks) + 1 {
            return Err(Error::new(ErrorKind::NoSpace, "not so many blocks"));
        }
        // The highest first, so that no two are neighbours in order.
        let mut take = || state.free.pop_last().unwrap();
        let runs = (0..blocks).map(|_| Extent { start: take(), blocks: 1 }).collect();
        let layout = Arc::new(ExtentList::new(runs, vec![take()]));
        state.layouts.insert(id, layout.clone());
        Ok(layout)
    }

    fn extent_list(&self, id: PieceId, _: &Location) -> Result<Arc<ExtentList>> {
        Ok(self.state.lock().layouts[&id].clone())
    }

    fn give_back_scattered(&self, id: PieceId) {
        let layout = self.state.lock().layouts.remove(&id).unwrap();
        layout.extents().for_each(|extent| self.give_back(extent));
    }

    fn give_back(&self, extent: Extent) {
        let mut state = self.state.lock();
        assert!((extent.start..extent.end()).all(|b| state.free.insert(b)), "{extent} were free");
    }

    fn register(
        &self,
        id: PieceId,
        location: Location,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Arc<PieceHandle>> {
        let handle = PieceHandle::fresh_holding(id, self.me.upgrade().unwrap(), holds);
        self.state.lock().places.insert(id, (location, Arc::downgrade(&handle)));
        Ok(handle)
    }

    fn handle(&self, id: PieceId) -> Arc<PieceHandle> {
        let state = self.state.lock();
        let fresh = state.places.get(&id).and_then(|(_, handle)| handle.upgrade());
        fresh.unwrap_or_else(|| PieceHandle::counted(id))
    }
}

/// A store of pieces in memory.
struct World {
    device: Arc<CountingDevice<MemoryDevice>>,
    locator: Arc<TestLocator>,
    pieces: Pieces,
}

impl World {
    fn new(blocks: u64) -> Self {
        let device = Arc::new(CountingDevice::new(MemoryDevice::new(blocks * BLOCK as u64)));
        let locator = TestLocator::new(blocks);
        let guarded = GuardedDevice::new(device.clone(), false);
        let pieces = Pieces::new(guarded, locator.clone(), 64 << 20);
        Self { device, locator, pieces }
    }

    /// The same device as a program sees it that has just started: nothing in memory.
    fn reopened(&self) -> Pieces {
        Pieces::new(GuardedDevice::new(self.device.clone(), false), self.locator.clone(), 64 << 20)
    }

    /// Number and bytes of the reads that `work` does.
    fn reads<T>(&self, work: impl FnOnce() -> T) -> (T, u64, u64) {
        let before = self.device.counts();
        let result = work();
        let counts = self.device.counts().since(&before);
        (result, counts.reads.requests, counts.reads.bytes)
    }

    fn writes<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.device.counts();
        let result = work();
        (result, self.device.counts().since(&before).writes.requests)
    }

    fn corrupt(&self, byte: u64) {
        let start = byte / BLOCK as u64 * BLOCK as u64;
        let mut block = AlignedBuf::zeroed(BLOCK);
        self.device.read_at(start, &mut block).unwrap();
        block[(byte - start) as usize] ^= 0x10;
        self.device.write_at(start, &[&block]).unwrap();
    }

    fn extent(&self, id: PieceId) -> Extent {
        self.locator.locate(id).unwrap().extent
    }
}

/// All bytes of a value that is on the device.
fn bytes_of(pieces: &Pieces, value: &LargeValue) -> Result<Vec<u8>> {
    let mut out = vec![0; value.len()];
    pieces.read_value(&value.place().unwrap(), 0, &mut out)?;
    Ok(out)
}

fn part(keys: std::ops::Range<u32>, value: usize) -> Arc<Part> {
    let mut builder = PartBuilder::new();
    for i in keys {
        let mut bytes = vec![0; value];
        Random::new(u64::from(i)).fill(&mut bytes);
        builder.push(format!("{i:08}").as_bytes(), Msn(7), &Op::Insert(bytes.into())).unwrap();
    }
    Arc::new(builder.finish())
}

fn parts(world: &World, count: u32) -> Vec<Encoded> {
    let encode =
        |i| part(i * 50..i * 50 + 50, 300).encode(world.pieces.locator.new_id(), Compression::None).unwrap();
    (0..count).map(encode).collect()
}

#[test]
fn a_group_lies_together_and_comes_back() {
    let world = World::new(4096);
    let node =
        Encoded::new(world.pieces.locator.new_id(), PieceKind::Node(2), b"a node", Compression::Lz4, vec![]);
    let mut group = parts(&world, 5);
    group.push(node.unwrap());
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let (handles, writes) = world.writes(|| world.pieces.writer.write_group(group, Some(100)).unwrap());
    assert_eq!(writes, 1);
    assert_eq!(handles.iter().map(|h| h.id()).collect::<Vec<_>>(), ids);
    assert_eq!(world.extent(ids[0]).start, 100);
    for pair in ids.windows(2) {
        assert_eq!(world.extent(pair[0]).end(), world.extent(pair[1]).start);
    }
    let pieces = world.reopened();
    let (read, reads, bytes) = world.reads(|| pieces.part(ids[2]).unwrap());
    assert_eq!((reads, bytes), (1, world.extent(ids[2]).byte_len() as u64));
    assert_eq!((read.len(), read.first_key()), (50, &b"00000100"[..]));
    let (again, reads, _) = world.reads(|| pieces.part(ids[2]).unwrap());
    assert!(reads == 0 && Arc::ptr_eq(&again, &read));
    let decode = |height, body: Bytes| Ok((Arc::new((height, body.to_vec())), 100));
    let node = pieces.node(ids[5], decode).unwrap();
    assert_eq!(*node, (2, b"a node".to_vec()));
    let (again, reads, _) = world.reads(|| pieces.node(ids[5], decode).unwrap());
    assert!(reads == 0 && Arc::ptr_eq(&again, &node));
    // Each is refused where the other is expected, cached or not.
    assert_eq!(pieces.part(ids[5]).unwrap_err().kind(), ErrorKind::Damaged);
    assert!(world.reopened().part(ids[5]).is_err() && world.reopened().node(ids[0], decode).is_err());
    for id in &ids {
        pieces.check(*id).unwrap();
    }
    pieces.forget(ids[2]);
    let (_, reads, _) = world.reads(|| pieces.part(ids[2]).unwrap());
    assert_eq!(reads, 1);
    let free = world.locator.free();
    drop(handles);
    assert_eq!(world.locator.free(), free + 21);
}

#[test]
fn a_fragmented_device_takes_groups_in_fragments() {
    let world = World::new(4096);
    // Runs of at most 7 blocks; a part takes 4.
    world.locator.state.lock().free.retain(|block| !block.is_multiple_of(8));
    let group = parts(&world, 6);
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let _handles = world.pieces.writer.write_group(group, None).unwrap();
    let pieces = world.reopened();
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(pieces.part(*id).unwrap().first_key(), format!("{:08}", i * 50).as_bytes());
    }
}

#[test]
fn a_full_device_is_an_error_that_leaks_nothing() {
    let world = World::new(20);
    let free = world.locator.free();
    let error = world.pieces.writer.write_group(parts(&world, 5), None).unwrap_err();
    assert_eq!((error.kind(), world.locator.free()), (ErrorKind::NoSpace, free));
    let values: Vec<Arc<LargeValue>> =
        (0..30).map(|_| Arc::new(LargeValue::in_memory(vec![1; 4096].into()))).collect();
    let error = world.pieces.writer.write_values(&values, None).unwrap_err();
    assert_eq!((error.kind(), world.locator.free()), (ErrorKind::NoSpace, free));
    assert!(values.iter().all(|v| v.place().is_none()));
    let _handles = world.pieces.writer.write_group(parts(&world, 4), None).unwrap();
}

#[test]
fn a_failing_device_leaks_nothing() {
    let world = World::new(256);
    let guarded = GuardedDevice::new(world.device.clone(), true);
    let pieces = Pieces::new(guarded, world.locator.clone(), 1 << 20);
    let free = world.locator.free();
    assert_eq!(pieces.writer.write_group(parts(&world, 2), None).unwrap_err().kind(), ErrorKind::ReadOnly);
    let value = Arc::new(LargeValue::in_memory(vec![1; 5000].into()));
    assert!(pieces.writer.write_values(std::slice::from_ref(&value), None).is_err());
    assert!(value.place().is_none());
    assert_eq!(world.locator.free(), free);
}

#[test]
fn damage_is_named_and_lost_writes_are_found() {
    let world = World::new(4096);
    let group = parts(&world, 3);
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let _handles = world.pieces.writer.write_group(group, None).unwrap();
    let extent = world.extent(ids[1]);
    for byte in (0..world.locator.locate(ids[1]).unwrap().len).step_by(500) {
        world.corrupt(extent.byte_offset() + u64::from(byte));
        let error = world.reopened().part(ids[1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains(&ids[1].to_string()), "{error}");
        assert!(error.to_string().contains(&extent.to_string()), "{error}");
        assert!(world.pieces.check(ids[1]).is_err());
        world.corrupt(extent.byte_offset() + u64::from(byte));
    }
    // A lost write: the blocks hold zeros, or another piece in good order.
    let (original, other) = (world.locator.locate(ids[1]).unwrap(), world.locator.locate(ids[0]).unwrap());
    world.locator.change(ids[1], |l| l.extent = other.extent);
    assert!(world.reopened().part(ids[1]).is_err());
    world.locator.change(ids[1], |l| (l.extent.start, l.checksum) = (2000, 0));
    assert!(world.reopened().part(ids[1]).is_err());
    world.locator.change(ids[1], |l| *l = original);
    assert!(world.reopened().part(ids[1]).is_ok());
}

#[test]
fn a_part_that_is_forgotten_keeps_its_values() {
    let world = World::new(4096);
    let value = Value::from(vec![5; 10_000]);
    let mut builder = PartBuilder::new();
    builder.push(b"key", Msn(1), &Op::Insert(value.clone())).unwrap();
    let part = builder.finish();
    let values = world.pieces.writer.write_values(part.values(), None).unwrap();
    let id = world.pieces.locator.new_id();
    let encoded = part.encode(id, Compression::None).unwrap();
    let handles = world.pieces.writer.write_group(vec![encoded], None).unwrap();
    let free = world.locator.free();
    drop((part, value, values));
    assert_eq!(world.locator.free(), free, "the part on the device still refers to its value");
    let back = world.pieces.part(id).unwrap();
    let bytes = bytes_of(&world.pieces, &back.values()[0]).unwrap();
    assert_eq!(bytes, vec![5; 10_000]);
    drop(handles);
    assert_eq!(world.locator.free(), free + 1);
    drop(back);
    assert_eq!(world.locator.free(), free + 1, "the cache still has it");
    world.pieces.forget(id);
    assert_eq!(world.locator.free(), free + 1 + 3);
}

#[test]
fn memory_stays_within_the_capacity() {
    let world = World::new(1 << 15);
    let group = parts(&world, 400);
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let _handles = world.pieces.writer.write_group(group, None).unwrap();
    let pieces = world.reopened();
    pieces.set_capacity(2 << 20);
    for id in &ids {
        pieces.part(*id).unwrap();
        let stats = pieces.stats();
        assert!(stats.bytes + stats.read_ahead <= 2 << 20, "{stats:?}");
    }
    assert!(pieces.stats().bytes > 1 << 20);
    pieces.set_capacity(1 << 19);
    assert!(pieces.stats().bytes <= 1 << 19);
    pieces.set_capacity(0);
    assert_eq!(pieces.part(ids[3]).unwrap().len(), 50);
    assert_eq!(pieces.stats().read_ahead, 0);
}
