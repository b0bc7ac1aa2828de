//! Steps that a seed names.

use crate::model::{APPEND, CHAIN, DECIMATE, LARGER, TOGGLE};
use crate::{Change, Model, Move, ShortPrefix, VolumeStep};
use bytes::Bytes;
use espalier_engine::KeyRange;
use espalier_storage::{Fault, Random};

/// One thing to do with a store.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Commit a batch.
    Commit(Vec<Change>),
    /// Look at one key in all ways: whole, in part (offset and length), for existence.
    Read(usize, Bytes, usize, usize),
    /// Walk with a new cursor.
    Walk(usize, KeyRange, Vec<Move>),
    /// Take a snapshot and keep it, with a cursor on it.
    Snapshot(usize, KeyRange),
    /// Move the cursor of a snapshot kept, and read a key in it.
    LookBack(usize, Vec<Move>, Bytes),
    /// Give up a snapshot kept.
    Forget(usize),
    /// Make everything durable.
    Sync,
    /// Make a checkpoint.
    Checkpoint,
    /// Do so many pieces of background work, if there is any.
    Work(usize),
    /// Close and open again.
    Reopen,
    /// Drop the store as if the program had been killed, and open again.
    Kill,
    /// Make a volume of so many indexes.
    CreateVolume(u8),
    /// Snapshot, delete or restore a volume.
    Volumes(VolumeStep),
    /// Compare what begins with a prefix in one index with what begins with another in another.
    Diff((usize, Bytes), (usize, Bytes)),
    /// From here on the device has a fault.
    Inject(Fault),
    /// Compare everything, and let the store verify itself.
    Verify,
}

impl Step {
    /// True if it may change what the store holds or what is on the device.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::Commit(_)
                | Self::Sync
                | Self::Checkpoint
                | Self::Work(_)
                | Self::Reopen
                | Self::Kill
                | Self::CreateVolume(_)
                | Self::Volumes(_)
        )
    }
}

/// Most bytes in a batch: a log of 1 MiB takes a little more.
const MAX_BATCH_BYTES: usize = 400_000;

/// What a workload is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Keys to choose from.
    pub keys: usize,
    /// Most changes in a batch.
    pub batch: u64,
    /// One in so many values is large (4 KiB up to [`Profile::largest`]); 0 for none.
    pub large_values: u64,
    /// The largest value.
    pub largest: u64,
    /// One in so many keys to choose from is longer than 64 KiB; 0 for none.
    pub huge_keys: u64,
    /// One in so many changes is about a range; 0 for none.
    pub ranges: u64,
    /// One in so many changes is a clone or a move of a prefix; 0 for none.
    pub clones: u64,
    /// One in so many steps closes or kills the store; 0 for none.
    pub reopen: u64,
    /// One in so many steps verifies everything; 0 for none.
    pub verify: u64,
    /// One in so many steps is a checkpoint, three times as many are syncs.
    pub checkpoints: u64,
}

impl Profile {
    /// Few short keys: every key meets every kind of message again and again.
    pub fn dense() -> Self {
        Self {
            keys: 60,
            batch: 6,
            large_values: 40,
            largest: 9000,
            huge_keys: 0,
            ranges: 12,
            clones: 0,
            reopen: 60,
            verify: 8,
            checkpoints: 25,
        }
    }

    /// Many keys: a tree of some height that grows and shrinks.
    pub fn broad() -> Self {
        Self { keys: 1500, batch: 40, large_values: 60, ranges: 60, verify: 25, ..Self::dense() }
    }

    /// Clones and moves among few keys.
    pub fn clones() -> Self {
        Self { keys: 80, clones: 10, ..Self::dense() }
    }

    /// Clones and moves in a tree of some height.
    pub fn broad_clones() -> Self {
        Self { clones: 60, ..Self::broad() }
    }

    /// Long keys and values.
    pub fn long() -> Self {
        Self {
            keys: 120,
            batch: 4,
            large_values: 4,
            largest: 200_000,
            huge_keys: 12,
            verify: 15,
            ..Self::dense()
        }
    }

    /// One of them, or something between.
    pub fn any(random: &mut Random) -> Self {
        match random.below(7) {
            0 => Self::dense(),
            1 => Self::broad(),
            2 => Self::long(),
            3 => Self::clones(),
            4 => Self::broad_clones(),
            _ => Self {
                keys: random.between(5..=800) as usize,
                batch: random.between(1..=60),
                large_values: random.between(3..=100),
                largest: random.between(4096..=100_000),
                huge_keys: *random.choose(&[0, 0, 0, 40]),
                ranges: *random.choose(&[0, 4, 20, 200]),
                clones: *random.choose(&[0, 5, 30, 200]),
                reopen: random.between(20..=200),
                verify: random.between(10..=60),
                checkpoints: random.between(5..=80),
            },
        }
    }
}

/// A seeded source of steps.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    profile: Profile,
    keys: Vec<Bytes>,
    slots: usize,
    /// What there is after the steps so far: clones must not multiply without bound.
    model: Model,
}

/// Most keys that a clone may copy, and most bytes of them.
const MAX_CLONED_KEYS: usize = 1500;
const MAX_CLONED_BYTES: usize = 300_000;

impl Workload {
    /// The workload that `seed` names.
    pub fn new(seed: u64, profile: Profile, slots: usize) -> Self {
        let mut random = Random::new(seed);
        let keys = key_pool(&mut random, &profile);
        let mut model = Model::new();
        model.add_slots(slots);
        Self { random, profile, keys, slots, model }
    }

    /// The first `count` steps.
    pub fn steps(mut self, count: usize) -> Vec<Step> {
        (0..count).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        let Profile { reopen, verify, checkpoints, .. } = self.profile;
        if self.random.one_in(reopen) {
            return if self.random.one_in(2) { Step::Reopen } else { Step::Kill };
        }
        if self.random.one_in(verify) {
            return Step::Verify;
        }
        if self.random.one_in(checkpoints) {
            return Step::Checkpoint;
        }
        if self.random.one_in(checkpoints.div_ceil(3)) {
            return Step::Sync;
        }
        let slot = self.random.index(self.slots);
        match self.random.below(100) {
            0..60 => Step::Commit(self.changes()),
            60..66 if self.profile.clones != 0 => self.diff_step(),
            60..78 => {
                let (offset, length) = (self.offset(), self.random.below(5000) as usize);
                Step::Read(slot, self.key(), offset, length)
            }
            78..86 => Step::Walk(slot, self.range(), self.moves()),
            86..90 => Step::Snapshot(slot, self.range()),
            90 if self.profile.clones != 0 => self.volume_step(),
            90..97 => Step::LookBack(self.random.index(8), self.moves(), self.key()),
            97 => Step::Forget(self.random.index(8)),
            98 => Step::Work(self.random.between(1..=20) as usize),
            _ if self.profile.clones != 0 && self.random.one_in(2) => self.volume_step(),
            _ if self.slots < 12 && self.random.one_in(3) => {
                let indexes = self.random.between(1..=3);
                self.slots += indexes as usize;
                self.model.add_slots(indexes as usize);
                Step::CreateVolume(indexes as u8)
            }
            _ => Step::Sync,
        }
    }

    /// Mostly of what may be a clone and its source: two that have much in common.
    fn diff_step(&mut self) -> Step {
        let slot = self.random.index(self.slots);
        let other = if self.random.one_in(2) { self.random.index(self.slots) } else { slot };
        let from = self.prefix();
        let to = match self.random.below(3) {
            0 => self.prefix(),
            1 => [&from[..from.len().saturating_sub(1)], &self.short_name()].concat().into(),
            _ => from.clone(),
        };
        Step::Diff((slot, from), (other, to))
    }

    fn volume_step(&mut self) -> Step {
        let (a, b) = (self.random.index(self.model.volumes()), self.random.index(self.model.volumes()));
        let prefix = ShortPrefix::of(&self.prefix(), self.random.between(1..=4) as usize);
        let step = match self.random.below(10) {
            0..3 if self.slots < 15 => VolumeStep::Snapshot(a, self.random.one_in(2)),
            3..5 if self.slots < 15 => VolumeStep::SnapshotPrefix(a, prefix, self.random.one_in(2)),
            5..7 if !self.overflows(b) => VolumeStep::Graft(a, prefix, b),
            0..8 => VolumeStep::Delete(a),
            _ => VolumeStep::Restore(a, b),
        };
        self.model.apply_volume(&step);
        self.slots = self.model.slots();
        Step::Volumes(step)
    }

    /// True if a graft of a volume would copy too much.
    fn overflows(&self, volume: usize) -> bool {
        let maps = self.model.volume_maps(volume);
        let (keys, bytes) = maps
            .iter()
            .flatten()
            .fold((0, 0), |(keys, bytes), (key, value)| (keys + 1, bytes + key.len() + value.len()));
        keys > MAX_CLONED_KEYS || bytes > MAX_CLONED_BYTES
    }

    /// The changes of one batch.
    pub fn changes(&mut self) -> Vec<Change> {
        let count = self.random.between(1..=self.profile.batch.max(1));
        let mut room = MAX_BATCH_BYTES;
        let mut fits = |change: &Change| {
            room = room.saturating_sub(change.bytes());
            room > 0
        };
        let mut changes = Vec::new();
        for _ in 0..count {
            let Some(change) = Some(self.change()).filter(&mut fits) else { break };
            if !self.multiplies(&change) {
                self.model.apply(std::slice::from_ref(&change));
                changes.push(change);
            }
        }
        changes
    }

    /// True if a clone would copy too much.
    fn multiplies(&self, change: &Change) -> bool {
        let (Change::CloneRange(slot, from, to) | Change::MoveRange(slot, from, to)) = change else {
            return false;
        };
        let range = KeyRange::prefix(from);
        let copied = self.model.entries(*slot, &range);
        let (mut keys, mut bytes) = (0, 0);
        for (key, value) in copied.take(MAX_CLONED_KEYS) {
            keys += 1;
            bytes += key.len() + to.len() + value.len();
        }
        let longer = to.len().saturating_sub(from.len()) > 5000;
        keys == MAX_CLONED_KEYS
            || bytes > MAX_CLONED_BYTES
            || longer
            || self.model.keys() + keys > 8 * MAX_CLONED_KEYS
    }

    fn change(&mut self) -> Change {
        let slot = self.random.index(self.slots);
        if self.random.one_in(self.profile.ranges) {
            return if self.random.one_in(2) {
                Change::DeleteRange(slot, self.range())
            } else {
                let function = *self.random.choose(&[APPEND, CHAIN, LARGER, DECIMATE]);
                Change::UpdateRange(slot, self.range(), function, self.short_value())
            };
        }
        if self.random.one_in(self.profile.clones) {
            return self.clone_change(slot);
        }
        let key = self.key();
        match self.random.below(10) {
            0..5 => Change::Insert(slot, key, self.value()),
            5 | 6 => Change::Delete(slot, key),
            7 => Change::Patch(slot, key, self.offset() as u32, self.short_value()),
            _ => {
                let function = *self.random.choose(&[APPEND, CHAIN, LARGER, TOGGLE]);
                Change::Update(slot, key, function, self.short_value())
            }
        }
    }

    fn clone_change(&mut self, slot: usize) -> Change {
        let (mut from, mut to) = (self.prefix(), self.prefix());
        match self.random.below(8) {
            // Into itself, and over what it lies in.
            0 => to = [&from[..], &self.short_name()].concat().into(),
            1 => from = [&to[..], &self.short_name()].concat().into(),
            // To its neighbour, which may be there or not.
            2..5 => to = [&from[..from.len().saturating_sub(1)], &self.short_name()].concat().into(),
            _ => {}
        }
        if self.random.one_in(2) && !from.starts_with(&to) && !to.starts_with(&from) {
            Change::MoveRange(slot, from, to)
        } else {
            Change::CloneRange(slot, from, to)
        }
    }

    fn prefix(&mut self) -> Bytes {
        let key = self.key();
        key.slice(..self.random.index(key.len().min(12) + 1))
    }

    fn short_name(&mut self) -> Vec<u8> {
        vec![*self.random.choose(b"abcd\0\x01\xff"); self.random.between(1..=2) as usize]
    }

    fn key(&mut self) -> Bytes {
        // Squared, so that some keys are met more often than others.
        let roll = self.random.index(self.keys.len()).min(self.random.index(self.keys.len()));
        self.keys[roll].clone()
    }

    fn short_value(&mut self) -> Bytes {
        let length = self.random.below(20) as usize;
        self.bytes(length)
    }

    fn value(&mut self) -> Bytes {
        let length = if self.random.one_in(self.profile.large_values) {
            let largest = self.profile.largest.max(4097);
            match self.random.below(6) {
                0 => 4095,
                1 => 4096,
                2 => 4097,
                3 => self.random.between(1..=(largest / 4096).max(1)) * 4096,
                _ => self.random.between(4096..=largest),
            }
        } else if self.random.one_in(8) {
            self.random.below(700)
        } else {
            self.random.below(24)
        };
        self.bytes(length as usize)
    }

    /// Half of the values can be compressed.
    fn bytes(&mut self, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        if self.random.one_in(2) {
            bytes.fill(b'a' + self.random.below(26) as u8);
            let head = length.min(3);
            self.random.fill(&mut bytes[..head]);
        } else {
            self.random.fill(&mut bytes);
        }
        bytes.into()
    }

    /// Mostly near the start; sometimes behind the end of the largest values.
    fn offset(&mut self) -> usize {
        match self.random.below(8) {
            0 => self.random.below(self.profile.largest + 100) as usize,
            1 => 4090 + self.random.below(12) as usize,
            _ => self.random.below(30) as usize,
        }
    }

    fn range(&mut self) -> KeyRange {
        let (a, b) = (self.key(), self.key());
        match self.random.below(12) {
            0 => KeyRange::all(),
            1 => KeyRange { start: a[..].into(), end: None },
            2 => KeyRange::new(&a[..], &b[..]),
            3..6 => {
                let prefix = self.random.index(a.len() + 1);
                KeyRange::prefix(&a[..prefix])
            }
            6..8 => KeyRange::prefix(&a),
            _ => {
                let (start, end) = if a <= b { (a, b) } else { (b, a) };
                KeyRange::new(&start[..], &end[..])
            }
        }
    }

    fn moves(&mut self) -> Vec<Move> {
        let count = self.random.between(1..=6);
        (0..count)
            .map(|_| match self.random.below(8) {
                0..3 => Move::Next(self.random.between(1..=12) as usize),
                3..6 => Move::Prev(self.random.between(1..=12) as usize),
                6 => Move::Seek(self.key()),
                _ => Move::SeekToEnd,
            })
            .collect()
    }
}

/// Keys that share prefixes in many ways: paths of short names, neighbours, prefixes of each other,
/// and bytes at both ends of the order.
fn key_pool(random: &mut Random, profile: &Profile) -> Vec<Bytes> {
    let mut keys = vec![Bytes::new()];
    while keys.len() < profile.keys {
        let mut key = random.choose(&keys).to_vec();
        if key.len() > 1000 && !random.one_in(3) {
            continue;
        }
        if random.one_in(3) {
            key.truncate(random.index(key.len() + 1));
        }
        match random.below(10) {
            0 => key.push(0),
            1 => key.push(0xff),
            2..4 => key.extend_from_slice(&[1, b'a' + random.below(3) as u8]),
            4 if random.one_in(10) => key.extend(std::iter::repeat_n(b'l', 300)),
            _ => key.push(b'a' + random.below(4) as u8),
        }
        if random.one_in(profile.huge_keys) {
            let length = random.between(65_530..=70_000) as usize;
            key.resize(length, b'a' + random.below(2) as u8);
            key.push(random.next_u64() as u8);
        }
        keys.push(key.into());
    }
    keys
}
