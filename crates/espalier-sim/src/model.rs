//! What a store denotes: for each index a finite map from keys to values.

use bytes::Bytes;
use espalier_engine::{Batch, IndexId, KeyRange, MergeFunctions};
use std::collections::BTreeMap;
use std::fmt;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// One operation of a batch, on the index in `slot`: indexes are numbered as they were made.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// [`Batch::insert`].
    Insert(usize, Bytes, Bytes),
    /// [`Batch::delete`].
    Delete(usize, Bytes),
    /// [`Batch::patch`] at an offset.
    Patch(usize, Bytes, u32, Bytes),
    /// [`Batch::update`] by a merge function.
    Update(usize, Bytes, u16, Bytes),
    /// [`Batch::delete_range`].
    DeleteRange(usize, KeyRange),
    /// [`Batch::update_range`] by a merge function.
    UpdateRange(usize, KeyRange, u16, Bytes),
    /// [`Batch::clone_range`] of a source prefix to a destination prefix.
    CloneRange(usize, Bytes, Bytes),
    /// [`Batch::move_range`].
    MoveRange(usize, Bytes, Bytes),
}

impl Change {
    /// Adds it to a batch; `slots` are the indexes.
    pub fn add_to(&self, batch: &mut Batch, slots: &[IndexId]) {
        let at = |slot: &usize| slots[slot % slots.len()];
        match self {
            Self::Insert(slot, key, value) => batch.insert(at(slot), key, value.clone()),
            Self::Delete(slot, key) => batch.delete(at(slot), key),
            Self::Patch(slot, key, offset, bytes) => batch.patch(at(slot), key, *offset, bytes.clone()),
            Self::Update(slot, key, function, argument) => {
                batch.update(at(slot), key, *function, argument.clone());
            }
            Self::DeleteRange(slot, range) => batch.delete_range(at(slot), range.clone()),
            Self::UpdateRange(slot, range, function, argument) => {
                batch.update_range(at(slot), range.clone(), *function, argument.clone());
            }
            Self::CloneRange(slot, source, destination) => batch.clone_range(at(slot), source, destination),
            Self::MoveRange(slot, source, destination) => batch.move_range(at(slot), source, destination),
        }
    }

    /// The index concerned.
    pub fn slot(&self) -> usize {
        match self {
            Self::Insert(slot, ..)
            | Self::Delete(slot, ..)
            | Self::Patch(slot, ..)
            | Self::Update(slot, ..)
            | Self::DeleteRange(slot, ..)
            | Self::UpdateRange(slot, ..)
            | Self::CloneRange(slot, ..)
            | Self::MoveRange(slot, ..) => *slot,
        }
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        let range = |range: &KeyRange| range.start.len() + range.end.as_ref().map_or(0, |end| end.len());
        match self {
            Self::Insert(_, key, bytes) | Self::Patch(_, key, _, bytes) | Self::Update(_, key, _, bytes) => {
                key.len() + bytes.len()
            }
            Self::Delete(_, key) => key.len(),
            Self::DeleteRange(_, keys) => range(keys),
            Self::UpdateRange(_, keys, _, argument) => range(keys) + argument.len(),
            Self::CloneRange(_, from, to) | Self::MoveRange(_, from, to) => 2 * from.len() + to.len(),
        }
    }

    /// The batch of `changes`.
    pub fn batch(changes: &[Self], slots: &[IndexId]) -> Batch {
        let mut batch = Batch::new();
        changes.iter().for_each(|change| change.add_to(&mut batch, slots));
        batch
    }
}

/// Something that happens to whole volumes, counted as they are listed, and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeStep {
    /// A new volume with what one holds; whether it refuses changes.
    Snapshot(usize, bool),
    /// A volume is deleted, unless it is the last.
    Delete(usize),
    /// The first holds what the second holds, if they have as many indexes and it takes changes.
    Restore(usize, usize),
    /// A new volume with what one holds behind the first bytes of a prefix, without them; whether
    /// it refuses changes.
    SnapshotPrefix(usize, ShortPrefix, bool),
    /// Behind a prefix the first holds what the second holds, if they have as many indexes and it
    /// takes changes.
    Graft(usize, ShortPrefix, usize),
}

/// Up to four bytes of a key, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortPrefix {
    bytes: [u8; 4],
    length: u8,
}

impl ShortPrefix {
    /// The first bytes of `key`.
    pub fn of(key: &[u8], length: usize) -> Self {
        let length = length.clamp(1, 4).min(key.len().max(1));
        let mut bytes = [b'a'; 4];
        bytes.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        Self { bytes, length: length as u8 }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Short forms for people; bytes that repeat are not written out.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insert(slot, key, value) => {
                write!(f, "insert {slot} {} = {}", show(key), show(value))
            }
            Self::Delete(slot, key) => write!(f, "delete {slot} {}", show(key)),
            Self::Patch(slot, key, offset, bytes) => {
                write!(f, "patch {slot} {} at {offset} = {}", show(key), show(bytes))
            }
            Self::Update(slot, key, function, argument) => {
                write!(f, "update {slot} {} by {function} of {}", show(key), show(argument))
            }
            Self::DeleteRange(slot, range) => write!(f, "delete {slot} {}", show_range(range)),
            Self::UpdateRange(slot, range, function, argument) => {
                write!(f, "update {slot} {} by {function} of {}", show_range(range), show(argument))
            }
            Self::CloneRange(slot, from, to) => write!(f, "clone {slot} {} to {}", show(from), show(to)),
            Self::MoveRange(slot, from, to) => write!(f, "move {slot} {} to {}", show(from), show(to)),
        }
    }
}

/// Bytes for people.
pub(crate) fn show(bytes: &[u8]) -> String {
    if bytes.len() <= 40 {
        format!("\"{}\"", bytes.escape_ascii())
    } else {
        let (head, hash) = (bytes[..12].escape_ascii(), xxh3_64_with_seed(bytes, 0) as u16);
        format!("\"{head}...\" ({} bytes, {hash:04x})", bytes.len())
    }
}

/// A range for people.
pub(crate) fn show_range(range: &KeyRange) -> String {
    let end = range.end.as_ref().map_or_else(|| "end".into(), |end| show(end));
    format!("[{}, {end})", show(&range.start))
}

/// Appends the argument, up to 200 bytes: shows order and repetition.
pub(crate) const APPEND: u16 = 1;
/// Replaces the value by a hash of value and argument: shows everything, and makes it short.
pub(crate) const CHAIN: u16 = 2;
/// The larger of value and argument.
pub(crate) const LARGER: u16 = 3;
/// Removes what is there, makes what is not.
pub(crate) const TOGGLE: u16 = 4;
/// Removes a value whose hash is odd, keeps others as they are.
pub(crate) const DECIMATE: u16 = 5;

/// The merge functions that the model knows, for a store.
pub fn merge_functions() -> MergeFunctions {
    [APPEND, CHAIN, LARGER, TOGGLE, DECIMATE]
        .into_iter()
        .fold(MergeFunctions::new(), |all, id| all.with(id, move |old, argument| merge(id, old, argument)))
}

fn merge(function: u16, old: Option<&[u8]>, argument: &[u8]) -> Option<Vec<u8>> {
    match function {
        APPEND => {
            let mut new = [old.unwrap_or_default(), argument].concat();
            let surplus = new.len().saturating_sub(200);
            new.drain(..surplus);
            Some(new)
        }
        CHAIN => {
            let seed = old.map_or(7, |old| xxh3_64_with_seed(old, 1));
            Some(xxh3_64_with_seed(argument, seed).to_le_bytes().to_vec())
        }
        LARGER => Some(old.unwrap_or_default().max(argument).to_vec()),
        TOGGLE => {
            if old.is_some() {
                None
            } else {
                Some(argument.to_vec())
            }
        }
        _ => old.filter(|old| xxh3_64_with_seed(old, 2).is_multiple_of(2)).map(<[u8]>::to_vec),
    }
}

/// One index.
type Map = BTreeMap<Bytes, Bytes>;

/// The indexes of a store, by slot, with a digest of them all that is kept up to date.
#[derive(Debug, Clone, Default)]
pub struct Model {
    slots: Vec<Map>,
    /// For each volume the number of its indexes, and whether it refuses changes.
    volumes: Vec<(usize, bool)>,
    digest: u128,
}

impl Model {
    /// No index yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a volume of empty indexes.
    pub fn add_slots(&mut self, count: usize) {
        self.volumes.push((count, false));
        for _ in 0..count {
            self.digest ^= xxh3_128(&[b"slot", &self.slots.len().to_le_bytes()[..]].concat());
            self.slots.push(Map::new());
        }
    }

    /// Number of volumes.
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// The indexes of a volume, counted round, and whether it refuses changes.
    fn volume(&self, volume: usize) -> (std::ops::Range<usize>, bool) {
        let volume = volume % self.volumes.len();
        let first = self.volumes[..volume].iter().map(|(count, _)| count).sum();
        let (count, read_only) = self.volumes[volume];
        (first..first + count, read_only)
    }

    /// The maps of a volume, counted round.
    pub fn volume_maps(&self, volume: usize) -> &[BTreeMap<Bytes, Bytes>] {
        &self.slots[self.volume(volume).0]
    }

    /// True if the volume of an index refuses changes.
    pub fn is_read_only(&self, slot: usize) -> bool {
        let slot = slot % self.slots.len();
        (0..self.volumes.len())
            .map(|volume| self.volume(volume))
            .any(|(slots, ro)| ro && slots.contains(&slot))
    }

    /// Carries out a step that concerns volumes as a whole; false if it cannot be.
    pub fn apply_volume(&mut self, step: &VolumeStep) -> bool {
        match *step {
            VolumeStep::Snapshot(of, read_only) => {
                let maps = self.slots[self.volume(of).0].to_vec();
                self.volumes.push((maps.len(), read_only));
                self.slots.extend(maps);
            }
            VolumeStep::Delete(_) if self.volumes.len() == 1 => return false,
            VolumeStep::Delete(volume) => {
                self.slots.drain(self.volume(volume).0);
                self.volumes.remove(volume % self.volumes.len());
            }
            VolumeStep::Restore(volume, from) => {
                let ((to, read_only), (from, _)) = (self.volume(volume), self.volume(from));
                if read_only || to.len() != from.len() {
                    return false;
                }
                let maps = self.slots[from].to_vec();
                self.slots.splice(to, maps);
            }
            VolumeStep::SnapshotPrefix(of, prefix, read_only) => {
                let prefix = prefix.bytes();
                let behind = |(key, value): (&Bytes, &Bytes)| {
                    let rest = key.starts_with(prefix).then(|| key.slice(prefix.len()..))?;
                    Some((rest, value.clone()))
                };
                let slots = &self.slots[self.volume(of).0];
                let maps: Vec<Map> =
                    slots.iter().map(|map| map.iter().filter_map(behind).collect()).collect();
                self.volumes.push((maps.len(), read_only));
                self.slots.extend(maps);
            }
            VolumeStep::Graft(volume, prefix, from) => {
                let ((to, read_only), (from, _)) = (self.volume(volume), self.volume(from));
                if read_only || to.len() != from.len() || to == from {
                    return false;
                }
                let prefix = prefix.bytes();
                for (to, from) in to.zip(from) {
                    let source = self.slots[from].clone();
                    let map = &mut self.slots[to];
                    map.retain(|key, _| !key.starts_with(prefix));
                    map.extend(
                        source.into_iter().map(|(key, value)| ([prefix, &key].concat().into(), value)),
                    );
                }
            }
        }
        let digests = (0..self.slots.len()).map(|slot| {
            let empty = xxh3_128(&[b"slot", &slot.to_le_bytes()[..]].concat());
            self.slots[slot]
                .iter()
                .fold(empty, |digest, (key, value)| digest ^ entry_digest(slot, key, value))
        });
        self.digest = digests.fold(0, |all, digest| all ^ digest);
        true
    }

    /// Number of indexes.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// A hash of the whole content: equal for equal models.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// The index in `slot`, counted round.
    pub fn slot(&self, slot: usize) -> &BTreeMap<Bytes, Bytes> {
        &self.slots[slot % self.slots.len()]
    }

    /// The value of a key.
    pub fn get(&self, slot: usize, key: &[u8]) -> Option<&Bytes> {
        self.slot(slot).get(key)
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.slots.iter().map(Map::len).sum()
    }

    /// Gives a key a value, or none.
    pub fn set(&mut self, slot: usize, key: &Bytes, value: Option<Bytes>) {
        let slot = slot % self.slots.len();
        let old = match &value {
            Some(value) => self.slots[slot].insert(key.clone(), value.clone()),
            None => self.slots[slot].remove(key),
        };
        for value in old.iter().chain(&value) {
            self.digest ^= entry_digest(slot, key, value);
        }
    }

    /// Carries out a batch.
    pub fn apply(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.apply_one(change));
    }

    fn apply_one(&mut self, change: &Change) {
        if self.is_read_only(change.slot()) {
            return;
        }
        match change {
            Change::Insert(slot, key, value) => self.set(*slot, key, Some(value.clone())),
            Change::Delete(slot, key) => self.set(*slot, key, None),
            Change::Patch(slot, key, offset, bytes) => {
                let mut value = self.get(*slot, key).map_or_else(Vec::new, |old| old.to_vec());
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                value.resize(value.len().max(end), 0);
                value[start..end].copy_from_slice(bytes);
                self.set(*slot, key, Some(value.into()));
            }
            Change::Update(slot, key, function, argument) => {
                let new = merge(*function, self.get(*slot, key).map(|v| &v[..]), argument);
                self.set(*slot, key, new.map(Bytes::from));
            }
            Change::DeleteRange(slot, range) => {
                self.keys_in(*slot, range).iter().for_each(|key| self.set(*slot, key, None));
            }
            Change::UpdateRange(slot, range, function, argument) => {
                for key in self.keys_in(*slot, range) {
                    let new = merge(*function, self.get(*slot, &key).map(|v| &v[..]), argument);
                    self.set(*slot, &key, new.map(Bytes::from));
                }
            }
            Change::CloneRange(slot, from, to) => self.clone_range(*slot, from, to),
            Change::MoveRange(slot, from, to) => {
                self.clone_range(*slot, from, to);
                let moved = self.keys_in(*slot, &KeyRange::prefix(from));
                moved.iter().for_each(|key| self.set(*slot, key, None));
            }
        }
    }

    fn clone_range(&mut self, slot: usize, from: &[u8], to: &[u8]) {
        let copy = |(key, value): (&Bytes, &Bytes)| ([to, &key[from.len()..]].concat().into(), value.clone());
        let copies: Vec<(Bytes, Bytes)> = self.entries(slot, &KeyRange::prefix(from)).map(copy).collect();
        for key in self.keys_in(slot, &KeyRange::prefix(to)) {
            self.set(slot, &key, None);
        }
        for (key, value) in copies {
            self.set(slot, &key, Some(value));
        }
    }

    fn keys_in(&self, slot: usize, range: &KeyRange) -> Vec<Bytes> {
        self.entries(slot, range).map(|(key, _)| key.clone()).collect()
    }

    /// The entries of a range, in order.
    pub fn entries(&self, slot: usize, range: &KeyRange) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        // An inverted range, which holds nothing, must not reach `BTreeMap::range`.
        let range = if range.is_empty() { KeyRange::new([], []) } else { range.clone() };
        let end = range.end.as_ref().map(|end| Bytes::copy_from_slice(end));
        let start = Bytes::copy_from_slice(&range.start);
        let end = end.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.slot(slot).range((std::ops::Bound::Included(start), end))
    }

    /// The first difference to `other`, for people.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.slots.len() != other.slots.len() {
            return Some(format!("{} and {} indexes", self.slots.len(), other.slots.len()));
        }
        (0..self.slots.len()).find_map(|slot| {
            let (a, b) = (&self.slots[slot], &other.slots[slot]);
            let key = a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).min()?;
            let value = |map: &Map| map.get(key).map_or_else(|| "nothing".into(), |v| show(v));
            Some(format!("index {slot}, key {}: {} and {}", show(key), value(a), value(b)))
        })
    }
}

fn entry_digest(slot: usize, key: &[u8], value: &[u8]) -> u128 {
    let mut bytes = Vec::with_capacity(key.len() + value.len() + 16);
    bytes.extend_from_slice(&(slot as u64).to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    xxh3_128(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_contents_apart() {
        let key = |k: &'static str| Bytes::from_static(k.as_bytes());
        let mut a = Model::new();
        a.add_slots(2);
        let empty = a.digest();
        a.apply(&[Change::Insert(0, key("x"), key("1")), Change::Patch(1, key("y"), 2, key("zz"))]);
        assert_eq!(a.get(1, b"y").map(|v| &v[..]), Some(&b"\0\0zz"[..]));
        let mut b = a.clone();
        b.apply(&[Change::UpdateRange(0, KeyRange::all(), APPEND, key("2"))]);
        assert_eq!(b.get(0, b"x").map(|v| &v[..]), Some(&b"12"[..]));
        assert_ne!(a.digest(), b.digest());
        assert!(a.difference(&b).is_some_and(|text| text.contains("\"1\" and \"12\"")));
        b.apply(&[Change::DeleteRange(0, KeyRange::prefix(b"x")), Change::DeleteRange(1, KeyRange::all())]);
        b.apply(&[Change::DeleteRange(1, KeyRange::new(*b"b", *b"a"))]);
        assert_eq!((b.digest(), b.keys()), (empty, 0));
    }
}
