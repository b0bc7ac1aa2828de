//! Root: the state of a device, from which everything else is found.

use super::entries::{NewObject, put_place, take_place};
use super::id::ObjectId;
use super::wire::{Malformed, Reader, put_text, put_varint};
use crate::runs::Run;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"ESPALROT";
const VERSION: u16 = 1;

/// The root says what of a journal is in the map.
const FEATURE_JOURNAL: u32 = 1;

/// Most blocks of a device: 2^44 bytes.
pub(crate) const MAX_BLOCKS: u64 = 1 << 32;
/// No root gets near this generation: whatever is added to one cannot overflow.
const MAX_GENERATION: u64 = 1 << 62;

fn is_sensible(epoch: u32, generation: u64) -> bool {
    epoch < u32::MAX && generation <= MAX_GENERATION
}

/// The holder of the lease. An empty host: there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The machine; empty if the lease was given back.
    pub(crate) host: String,
    /// The process on it.
    pub(crate) process: u32,
    /// How long the lease lasts after the root was put, in milliseconds.
    pub(crate) lease_ms: u32,
}

/// The last map checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapReference {
    /// The object with directory and object table.
    pub(crate) object: ObjectId,
    /// Its nonce.
    pub(crate) nonce: u64,
    /// Where in it the directory lies: offset and length in bytes.
    pub(crate) directory: (u32, u32),
    /// Where the object table lies.
    pub(crate) objects: (u32, u32),
}

/// What of a writer's journal is in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalPosition {
    /// The journal.
    pub(crate) journal: u64,
    /// The last record that is in the map.
    pub(crate) record: u64,
    /// Records behind it are of this epoch or a later one; what an older writer left there lay
    /// behind a gap and does not count.
    pub(crate) epoch: u32,
}

/// The state of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// Names the device.
    pub(crate) uuid: [u8; 16],
    /// Blocks of the device.
    pub(crate) blocks: u64,
    /// Counts openings for writing.
    pub(crate) epoch: u32,
    /// Counts roots.
    pub(crate) generation: u64,
    /// Makes it different from every other root.
    pub(crate) nonce: u64,
    /// The nonce of the root that it replaced.
    pub(crate) previous: u64,
    /// Part of the names of this session's objects.
    pub(crate) session: u64,
    /// The writer.
    pub(crate) holder: Holder,
    /// The map, without the delta.
    pub(crate) map: Option<MapReference>,
    /// Objects put since.
    pub(crate) objects: Vec<NewObject>,
    /// What blocks moved to since, in order; what has no place reads as zeros.
    pub(crate) delta: Vec<Run>,
    /// The journal of the writer, if it has one. What it acknowledged may lie there only, unless
    /// the lease was given back.
    pub(crate) journal: Option<JournalPosition>,
}

impl Root {
    /// True if it can be read: the root behind one that counts to the end cannot.
    pub(crate) fn is_readable(&self) -> bool {
        is_sensible(self.epoch, self.generation)
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 16 * self.delta.len() + 40 * self.objects.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let features = if self.journal.is_some() { FEATURE_JOURNAL } else { 0 };
        out.extend_from_slice(&features.to_le_bytes());
        // The cipher: none.
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        for number in [self.generation, self.nonce, self.previous, self.session] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.holder.process.to_le_bytes());
        out.extend_from_slice(&self.holder.lease_ms.to_le_bytes());
        put_text(&mut out, &self.holder.host);
        match &self.map {
            None => out.push(0),
            Some(map) => {
                out.push(1);
                out.extend_from_slice(&map.object.0.to_le_bytes());
                out.extend_from_slice(&map.nonce.to_le_bytes());
                for number in [map.directory.0, map.directory.1, map.objects.0, map.objects.1] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
        put_varint(&mut out, self.objects.len() as u64);
        for object in &self.objects {
            object.encode(&mut out);
        }
        put_varint(&mut out, self.delta.len() as u64);
        for run in &self.delta {
            encode_run(&mut out, run);
        }
        if let Some(position) = &self.journal {
            out.extend_from_slice(&position.journal.to_le_bytes());
            out.extend_from_slice(&position.record.to_le_bytes());
            out.extend_from_slice(&position.epoch.to_le_bytes());
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a root.
    ///
    /// # Errors
    /// If it is none, or one that this program does not know.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let body = bytes.len().checked_sub(8).ok_or_else(|| Malformed::new("it is cut off"))?;
        let (body, sum) = bytes.split_at(body);
        let mut reader = Reader(body);
        if reader.take(8)? != MAGIC {
            return Err(Malformed::new("it is no root of an Espalier store"));
        }
        let (version, features, cipher) = (reader.u16()?, reader.u32()?, reader.u16()?);
        if version != VERSION || features & !FEATURE_JOURNAL != 0 || cipher != 0 {
            return Err(Malformed::new("it was written by a newer Espalier, or is encrypted"));
        }
        if sum != xxh3_64(body).to_le_bytes() {
            return Err(Malformed::new("its checksum is wrong"));
        }
        let uuid = reader.take(16)?.try_into().unwrap_or_default();
        let (blocks, epoch, generation) = (reader.u64()?, reader.u32()?, reader.u64()?);
        if blocks > MAX_BLOCKS {
            return Err(Malformed::new(format!("a device of {blocks} blocks is too large")));
        }
        if !is_sensible(epoch, generation) {
            return Err(Malformed::new("its epoch or its generation makes no sense"));
        }
        let (nonce, previous, session) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (process, lease_ms) = (reader.u32()?, reader.u32()?);
        let holder = Holder { host: reader.text()?, process, lease_ms };
        let map = match reader.u8()? {
            0 => None,
            1 => Some(MapReference {
                object: ObjectId(reader.u64()?),
                nonce: reader.u64()?,
                directory: (reader.u32()?, reader.u32()?),
                objects: (reader.u32()?, reader.u32()?),
            }),
            _ => return Err(Malformed::new("its map is of an unknown kind")),
        };
        let objects =
            (0..reader.count()?).map(|_| NewObject::decode(&mut reader)).collect::<Result<_, _>>()?;
        let delta =
            (0..reader.count()?).map(|_| decode_run(&mut reader, blocks)).collect::<Result<_, _>>()?;
        let journal = match features & FEATURE_JOURNAL {
            0 => None,
            _ => {
                Some(JournalPosition { journal: reader.u64()?, record: reader.u64()?, epoch: reader.u32()? })
            }
        };
        reader.end()?;
        Ok(Self {
            uuid,
            blocks,
            epoch,
            generation,
            nonce,
            previous,
            session,
            holder,
            map,
            objects,
            delta,
            journal,
        })
    }
}

/// Appends a run: first block, number of blocks, and its place.
fn encode_run(out: &mut Vec<u8>, run: &Run) {
    put_varint(out, run.start);
    put_varint(out, u64::from(run.blocks) << 1 | u64::from(run.place.is_some()));
    if let Some(place) = run.place {
        put_place(out, place);
    }
}

fn decode_run(reader: &mut Reader<'_>, device_blocks: u64) -> Result<Run, Malformed> {
    let (start, packed) = (reader.varint()?, reader.varint()?);
    let blocks = u32::try_from(packed >> 1).map_err(|_| Malformed::new("a run is too long"))?;
    let place = if packed & 1 == 1 { Some(take_place(reader)?) } else { None };
    let run = Run { start, blocks, place };
    let inside = start.checked_add(u64::from(blocks)).is_some_and(|end| end <= device_blocks);
    if !inside || blocks == 0 || !run.place_fits() {
        return Err(Malformed::new("a run lies outside the device"));
    }
    Ok(run)
}
