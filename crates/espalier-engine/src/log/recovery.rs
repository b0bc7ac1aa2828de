//! Recovery of the log: find its end, reserve the value parts that it names, replay it.
//!
//! The end is the first place where no valid group continues the chain. A bad block before the
//! number up to which the log is known to be synced is damage; a bad block behind it is the torn
//! tail. That number comes from the position in the superblock, from the groups that are good, and
//! from blocks behind the end: every block written after the sync that covered an earlier block
//! says so.

use super::codec::{GroupDecoder, Reader, Reference, Resolve, decode_parts};
use super::format::{
    BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockHeader, GROUP_HEADER_BYTES, GroupHeader, LogPosition,
    RestHash, StoreTag, blocks_for, malformed,
};
use super::state::WrittenGroup;
use super::{Binder, LogConfig, LoggedBatch};
use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::model::error::Context;
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::model::value::ValueRef;
use crate::{Error, Extent, Lsn, Msn, PieceId, Result, VALUE_PAGE, Value};
use espalier_storage::{AlignedBuf, BLOCK};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes read from the device at once.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// What recovery found.
pub(crate) struct RecoveredLog {
    /// The last batch; that of the checkpoint if there is none behind it.
    pub(crate) last: Lsn,
    /// Number of the block behind the last group.
    pub(crate) end: u64,
    /// How many batches were replayed.
    pub(crate) replayed: u64,
    /// Checksum of the first block of the last group.
    pub(super) chain: u64,
    /// The groups, with handles on the parts they name.
    pub(super) groups: Vec<WrittenGroup>,
    /// What went wrong, where that was to be tolerated; the log goes no further.
    pub(super) broken: Option<Error>,
}

impl RecoveredLog {
    /// A log of which nothing can be read.
    pub(super) fn broken_at(from: LogPosition, broken: Error) -> Self {
        let (last, end, chain) = (from.lsn, from.block, from.chain);
        Self { last, end, replayed: 0, chain, groups: Vec::new(), broken: Some(broken) }
    }
}

/// Where the log lies.
#[derive(Clone, Copy)]
pub(super) struct LogPlace<'a> {
    pub(super) device: &'a GuardedDevice,
    pub(super) region: Extent,
    pub(super) tag: StoreTag,
}

/// A group with the right checksums.
struct Group {
    header: GroupHeader,
    /// Number of its first block, and of the block behind it.
    blocks: Range<u64>,
    /// Its blocks know that those with smaller numbers are durable.
    synced: u64,
    /// Checksum of its first block.
    chain: u64,
    payload: Vec<u8>,
}

/// What the first pass keeps of a group.
struct ScannedGroup {
    first: Lsn,
    last: Lsn,
    blocks: Range<u64>,
    previous: u64,
    chain: u64,
    parts: Vec<(PieceId, Location)>,
    /// The group itself, as long as there is room for it.
    kept: Option<Group>,
}

/// What recovery may take.
pub(super) struct RecoveryLimits {
    /// Bytes that a decoded batch takes in memory.
    pub(super) batch: u64,
    /// Bytes of groups that are kept for the second pass.
    pub(super) memory: u64,
}

/// Recovers the log behind `from`. With `tolerant` the log ends where it is damaged, instead of the
/// recovery.
pub(super) fn recover(
    place: LogPlace<'_>,
    from: LogPosition,
    limits: RecoveryLimits,
    binder: &dyn Binder,
    tolerant: bool,
    replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
) -> Result<RecoveredLog> {
    let mut scan = Scan { place, from, limits, blocks: RingReader::new(place), synced: from.synced };
    let mut broken: Option<Error> = None;
    let mut tolerate = |done: Result<()>| match done {
        Err(error) if tolerant => {
            broken.get_or_insert(error);
            Ok(false)
        }
        done => done.map(|()| true),
    };
    let mut found = Vec::new();
    tolerate(scan.find_groups(&mut found))?;
    // Where writes keep their order, the values of a group are there if the group is.
    let keeps_order = place.device.keeps_order();
    let checked = !keeps_order && tolerate(scan.check_values(&mut found))?;
    let unsynced = found.partition_point(|group| group.blocks.end <= scan.synced);
    let mut recovered = RecoveredLog {
        last: from.lsn,
        end: found.last().map_or(from.block, |group| group.blocks.end),
        replayed: 0,
        chain: found.last().map_or(from.chain, |group| group.chain),
        groups: Vec::with_capacity(found.len()),
        broken: None,
    };
    // First reserve everything, so that what replay writes cannot land on it.
    for group in &found {
        let mut parts = Vec::new();
        let adopt = |(id, location): &(PieceId, Location)| {
            binder
                .adopt(*id, *location)
                .context(|| format!("reserving {id}, which batch {} names", group.last.0))
        };
        let adopted = group.parts.iter().map(adopt).collect::<Result<Vec<_>>>().map(|all| parts = all);
        if !tolerate(adopted)? {
            break;
        }
        let (start, last, previous) = (group.blocks.start, group.last, group.previous);
        recovered.groups.push(WrittenGroup { start, last, previous, parts });
    }
    if checked {
        let adopted = &found[..recovered.groups.len()];
        let (synced, unsynced) = adopted.split_at(unsynced.min(adopted.len()));
        let mut accepted: HashSet<PieceId> = part_ids(synced).collect();
        let mut rest = part_ids(unsynced).filter(|part| accepted.insert(*part));
        tolerate(rest.try_for_each(|part| binder.accept_unsynced(part)))?;
    }
    for (group, written) in found.iter_mut().zip(&recovered.groups) {
        if group.last > from.lsn {
            let mut last = from.lsn;
            let replayed = scan.replay(group, &written.parts, &mut |batch| {
                let lsn = batch.lsn;
                replay(batch).map(|()| last = lsn)
            });
            if !tolerate(replayed.map(|count| recovered.replayed += count))? {
                recovered.last = last;
                break;
            }
        }
        recovered.last = group.last.max(from.lsn);
    }
    recovered.broken = broken;
    Ok(recovered)
}

/// The value parts that groups name.
fn part_ids(groups: &[ScannedGroup]) -> impl Iterator<Item = PieceId> {
    groups.iter().flat_map(|group| &group.parts).map(|(id, _)| *id)
}

struct Scan<'a> {
    place: LogPlace<'a>,
    from: LogPosition,
    limits: RecoveryLimits,
    blocks: RingReader<'a>,
    /// RingReader with smaller numbers are known to have been durable.
    synced: u64,
}

impl Scan<'_> {
    /// All groups up to the end of the log. A torn tail is the end; damage before it is an error.
    fn find_groups(&mut self, found: &mut Vec<ScannedGroup>) -> Result<()> {
        let (mut number, mut chain, mut last) = (self.from.block, self.from.chain, None);
        while let Some(group) = self.group(number, chain)? {
            self.synced = self.synced.max(group.synced);
            let mut scanned = self.admit(&group, last)?;
            (number, chain, last) = (scanned.blocks.end, scanned.chain, Some(scanned.last));
            if let Some(left) = self.limits.memory.checked_sub(group.payload.len() as u64)
                && scanned.last > self.from.lsn
            {
                self.limits.memory = left;
                scanned.kept = Some(group);
            }
            found.push(scanned);
        }
        if number >= self.synced {
            self.synced = self.synced.max(self.known_synced_behind(number)?);
        }
        if number < self.synced {
            let next = last.unwrap_or(Lsn(0)).max(self.from.lsn).0.saturating_add(1);
            let until = match self.first_lsn_behind(number)? {
                Some(lsn) if lsn.0 > next => format!("batches {next} to {}", lsn.0 - 1),
                _ => format!("the batches from {next} on"),
            };
            let at = (self.place.region.start + number % u64::from(self.place.region.blocks)) * BLOCK as u64;
            let message = format!(
                "the log is damaged at byte {at} (block {number}), though it was synced up to block {}: {until} \
                 are lost. Restore the store from a copy, or repair it",
                self.synced
            );
            return Err(Error::damaged(message));
        }
        Ok(())
    }

    /// Checks that a group's content fits what came before, and what it says of value parts.
    fn admit(&self, group: &Group, before: Option<Lsn>) -> Result<ScannedGroup> {
        let GroupHeader { first_lsn: first, last_lsn: last, previous, .. } = group.header;
        let next = before.unwrap_or(Lsn(0)).max(self.from.lsn).0.saturating_add(1);
        if first.0 > next {
            let message = format!(
                "the log goes on with batch {} where {next} is due: what lies between is lost",
                first.0
            );
            return Err(Error::damaged(message));
        }
        if before.is_some_and(|before| first <= before) {
            return Err(malformed("a batch twice"));
        }
        let parts = if last > self.from.lsn {
            decode_parts(&mut Reader(&group.payload), group.header.parts)?
        } else {
            Vec::new()
        };
        let blocks = self.place.device.len() / BLOCK as u64;
        if let Some((id, location)) = parts.iter().find(|(_, location)| location.extent.end() > blocks) {
            return Err(malformed(&format!("value part {id} at {}, outside the device", location.extent)));
        }
        Ok(ScannedGroup {
            first,
            last,
            blocks: group.blocks.clone(),
            previous,
            chain: group.chain,
            parts,
            kept: None,
        })
    }

    /// The group that begins at block `number` and names `chain` as its predecessor, if it is
    /// whole.
    fn group(&mut self, number: u64, chain: u64) -> Result<Option<Group>> {
        let tag = self.place.tag;
        let ring = u64::from(self.place.region.blocks);
        let block = self.blocks.get(number)?;
        let Some(first) = BlockHeader::decode(tag, block) else { return Ok(None) };
        let header = GroupHeader::decode(block);
        let batches = header.last_lsn.0.checked_sub(header.first_lsn.0);
        let sane = first.number == number
            && first.index == 0
            && header.previous == chain
            && blocks_for(header.length) == u64::from(first.count)
            && first.group_end() - self.from.block <= ring
            && batches.is_some_and(|n| n.checked_add(1) == Some(u64::from(header.batches)))
            && header.first_lsn > Lsn(0);
        if !sane || usize::from(first.used) < GROUP_HEADER_BYTES {
            return Ok(None);
        }
        // What a hostile length asks for is not trusted before blocks with as much have been read.
        let mut payload = Vec::with_capacity((header.length as usize).min(READ_AHEAD_BYTES));
        payload.extend_from_slice(
            &block[BLOCK_HEADER_BYTES + GROUP_HEADER_BYTES..BLOCK_HEADER_BYTES + usize::from(first.used)],
        );
        let mut group = Group {
            header,
            blocks: number..first.group_end(),
            synced: first.synced,
            chain: first.checksum,
            payload,
        };
        let mut rest = RestHash::new(tag);
        for index in 1..first.count {
            let block = self.blocks.get(number + u64::from(index))?;
            let Some(next) = BlockHeader::decode(tag, block) else { return Ok(None) };
            let expected = BlockHeader {
                number: number + u64::from(index),
                index,
                used: next.used,
                checksum: next.checksum,
                ..first
            };
            if next != expected {
                return Ok(None);
            }
            rest.add(next.checksum);
            group
                .payload
                .extend_from_slice(&block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + usize::from(next.used)]);
        }
        let whole = rest.finish() == group.header.rest && group.payload.len() as u64 == group.header.length;
        Ok(whole.then_some(group))
    }

    /// The largest number that blocks behind `end` know synced.
    ///
    /// The writer begins a group only while few blocks are unsynced, so the first group after the
    /// sync that covered `end` begins at most that many blocks and one group further; and an
    /// oversized group, which lies between two syncs, says itself where it ends.
    fn known_synced_behind(&mut self, end: u64) -> Result<u64> {
        let ring = u64::from(self.place.region.blocks);
        let most = LogConfig::default();
        let reach = most.unsynced_blocks + blocks_for(most.group_bytes) + 1;
        // The ring holds no more than one lap from the first block that had to stay.
        let last = self.from.block.saturating_add(ring);
        let (mut limit, mut synced, mut number) = (last.min(end.saturating_add(reach)), 0, end);
        while number < limit {
            let block = self.blocks.get(number)?;
            if let Some(header) = BlockHeader::decode(self.place.tag, block)
                && header.number == number
            {
                synced = synced.max(header.synced);
                limit = limit.max(last.min(header.group_end().saturating_add(reach)));
            }
            number += 1;
        }
        Ok(synced)
    }

    /// The first batch of the first group behind `end` that can still be read, near it.
    fn first_lsn_behind(&mut self, end: u64) -> Result<Option<Lsn>> {
        let reach = LogConfig::default().unsynced_blocks;
        let last = self.from.block.saturating_add(u64::from(self.place.region.blocks));
        for number in end..last.min(end.saturating_add(reach)) {
            let block = self.blocks.get(number)?;
            if BlockHeader::decode(self.place.tag, block).is_some_and(|h| h.number == number && h.index == 0)
            {
                return Ok(Some(GroupHeader::decode(block).first_lsn));
            }
        }
        Ok(None)
    }

    /// Reads the values that groups name which no sync is known to cover. The log ends before the
    /// first group with one that never reached the device.
    fn check_values(&mut self, found: &mut Vec<ScannedGroup>) -> Result<()> {
        let first = found.partition_point(|group| group.blocks.end <= self.synced);
        for at in first..found.len() {
            let scanned = &found[at];
            if scanned.parts.is_empty() {
                continue;
            }
            let again = if scanned.kept.is_none() { Some(self.again(scanned)?) } else { None };
            let Some(group) = scanned.kept.as_ref().or(again.as_ref()) else { continue };
            let window = DeviceReader::new(self.place.device);
            let mut check =
                CheckValues { parts: &scanned.parts, window, layouts: HashMap::new(), intact: true };
            decode(group, &scanned.parts, self.limits.batch, &mut check, &mut |_| Ok(()))?;
            if !check.intact {
                found.truncate(at);
                break;
            }
        }
        Ok(())
    }

    fn again(&mut self, scanned: &ScannedGroup) -> Result<Group> {
        match self.group(scanned.blocks.start, scanned.previous)? {
            Some(group) if group.chain == scanned.chain => Ok(group),
            _ => {
                let message = format!(
                    "batches {} to {} of the log could be read once and not a second time",
                    scanned.first.0, scanned.last.0
                );
                Err(Error::damaged(message))
            }
        }
    }

    /// Hands the batches of a group that the checkpoint does not cover to `replay`.
    fn replay(
        &mut self,
        scanned: &mut ScannedGroup,
        handles: &[Arc<PieceHandle>],
        replay: &mut dyn FnMut(LoggedBatch) -> Result<()>,
    ) -> Result<u64> {
        let group = match scanned.kept.take() {
            Some(group) => group,
            None => self.again(scanned)?,
        };
        let covered = self.from.lsn;
        let mut count = 0;
        decode(&group, &scanned.parts, self.limits.batch, &mut Handles(handles), &mut |batch| {
            if batch.lsn <= covered {
                return Ok(());
            }
            count += 1;
            let lsn = batch.lsn.0;
            replay(batch).context(|| format!("replaying batch {lsn} of the log"))
        })?;
        Ok(count)
    }
}

/// Decodes the batches of a group, one at a time.
fn decode(
    group: &Group,
    parts: &[(PieceId, Location)],
    max_batch: u64,
    resolve: &mut dyn Resolve,
    each: &mut dyn FnMut(LoggedBatch) -> Result<()>,
) -> Result<()> {
    let mut reader = Reader(&group.payload);
    decode_parts(&mut reader, group.header.parts)?;
    let mut decoder = GroupDecoder::new(reader, parts, max_batch);
    let (mut lsn, mut next_msn) = (group.header.first_lsn, 0u64);
    for _ in 0..group.header.batches {
        let (skip, ops) = decoder.batch(resolve)?;
        let first_msn = Msn(next_msn.wrapping_add(skip));
        next_msn = first_msn.0.wrapping_add(ops.len() as u64);
        each(LoggedBatch { lsn, first_msn, ops })?;
        lsn = Lsn(lsn.0.wrapping_add(1));
    }
    if decoder.is_empty() { Ok(()) } else { Err(malformed("more than its batches")) }
}

/// Second pass: values refer to adopted parts.
struct Handles<'a>(&'a [Arc<PieceHandle>]);

impl Resolve for Handles<'_> {
    fn resolve(&mut self, reference: Reference) -> Result<Value> {
        let Reference { part, offset, len, sums } = reference;
        let handle = self.0.get(part).ok_or_else(|| malformed("a value in an unknown part"))?;
        Ok(Value::stored(ValueRef { part: handle.clone(), offset, len, sums }))
    }
}

/// First pass: do the values lie where the log says?
struct CheckValues<'a> {
    parts: &'a [(PieceId, Location)],
    window: DeviceReader<'a>,
    /// Of scattered parts, by place in the table; `None` if the list never reached the device.
    layouts: HashMap<usize, Option<ExtentList>>,
    intact: bool,
}

impl Resolve for CheckValues<'_> {
    fn resolve(&mut self, reference: Reference) -> Result<Value> {
        let (id, location) = &self.parts[reference.part];
        if !self.intact {
            return Ok(Value::from(&[][..]));
        }
        if location.scattered {
            let Some(bytes) = self.scattered(&reference)? else {
                self.intact = false;
                return Ok(Value::from(&[][..]));
            };
            self.intact = has_sums(&bytes, *id, &reference.sums);
        } else {
            let offset = location.extent.byte_offset() + u64::from(reference.offset);
            let bytes = self.window.get(offset, reference.len as usize)?;
            self.intact = has_sums(bytes, *id, &reference.sums);
        }
        Ok(Value::from(&[][..]))
    }
}

fn has_sums(bytes: &[u8], part: PieceId, sums: &[u32]) -> bool {
    let found = bytes.chunks(VALUE_PAGE).map(|page| xxh3_64_with_seed(page, part.0) as u32);
    found.eq(sums.iter().copied())
}

impl CheckValues<'_> {
    /// The bytes of a value in a scattered part; `None` if the list is not there.
    fn scattered(&mut self, reference: &Reference) -> Result<Option<Vec<u8>>> {
        let (id, location) = &self.parts[reference.part];
        let device = self.window.device;
        let layout = match self.layouts.entry(reference.part) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(match ExtentList::load(device, *id, location) {
                Ok(layout) => Some(layout),
                Err(error) if error.kind() == crate::ErrorKind::Damaged => None,
                Err(error) => return Err(error),
            }),
        };
        let Some(layout) = layout else { return Ok(None) };
        // Whole blocks, as the device wants them.
        let block = BLOCK as u64;
        let (start, end) =
            (u64::from(reference.offset), u64::from(reference.offset) + u64::from(reference.len));
        let first = start / block * block;
        let mut buffer = AlignedBuf::zeroed((end.next_multiple_of(block) - first) as usize);
        layout.read(device, first, &mut buffer)?;
        Ok(Some(buffer[(start - first) as usize..(end - first) as usize].to_vec()))
    }
}

/// Reads the ring by block number, some way ahead.
struct RingReader<'a> {
    place: LogPlace<'a>,
    buffer: AlignedBuf,
    held: Range<u64>,
}

impl<'a> RingReader<'a> {
    fn new(place: LogPlace<'a>) -> Self {
        let blocks = (place.region.blocks as usize).min(READ_AHEAD_BYTES / BLOCK);
        Self { place, buffer: AlignedBuf::zeroed(blocks * BLOCK), held: 0..0 }
    }

    fn get(&mut self, number: u64) -> Result<&[u8]> {
        if !self.held.contains(&number) {
            let ring = u64::from(self.place.region.blocks);
            let at = number % ring;
            let count = ((self.buffer.len() / BLOCK) as u64).min(ring - at);
            self.held = 0..0;
            let offset = (self.place.region.start + at) * BLOCK as u64;
            self.place.device.read_at(offset, &mut self.buffer[..count as usize * BLOCK])?;
            self.held = number..number.saturating_add(count);
        }
        let at = (number - self.held.start) as usize * BLOCK;
        Ok(&self.buffer[at..at + BLOCK])
    }
}

/// Reads the device by bytes, some way ahead.
struct DeviceReader<'a> {
    device: &'a GuardedDevice,
    buffer: AlignedBuf,
    held: Range<u64>,
}

impl<'a> DeviceReader<'a> {
    fn new(device: &'a GuardedDevice) -> Self {
        Self { device, buffer: AlignedBuf::zeroed(0), held: 0..0 }
    }

    /// The caller has checked that the range lies on the device.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        let end = offset + len as u64;
        if offset < self.held.start || end > self.held.end {
            let block = BLOCK as u64;
            let start = offset / block * block;
            let want = (end.next_multiple_of(block) - start).max(READ_AHEAD_BYTES as u64);
            let count = want.min(self.device.len() - start) as usize;
            if self.buffer.len() < count {
                self.buffer = AlignedBuf::zeroed(count);
            }
            self.held = 0..0;
            self.device.read_at(start, &mut self.buffer[..count])?;
            self.held = start..start + count as u64;
        }
        let at = (offset - self.held.start) as usize;
        Ok(&self.buffer[at..at + len])
    }
}

const _: () = assert!(BLOCK_PAYLOAD_BYTES > GROUP_HEADER_BYTES);
