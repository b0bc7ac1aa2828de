//! A store on a simulated device, beside the model of it.

use crate::failure::ensure;
use crate::model::show;
use crate::walk::walk_all;
use crate::{Change, CrashDevice, Failure, Model, Outcome, VolumeStep, merge_functions};
use bytes::Bytes;
use espalier_engine::{
    Compression, ErrorKind, FormatOptions, IndexId, KeyRange, OpenOptions, READ_ONLY_VOLUME, Rescue, Slice,
    Store, Tuning,
};
use espalier_storage::{Device, Random, SimulatedDevice, SimulatedEnvironment};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a store is made with; a seed decides.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Size of the device in bytes.
    pub device: u64,
    /// Size of the log in bytes.
    pub log: Option<u64>,
    /// How parts are compressed.
    pub compression: Compression,
    /// Sizes of the structures.
    pub tuning: Tuning,
    /// The memory budget in bytes.
    pub memory: u64,
    /// Indexes of the first volume.
    pub indexes: u8,
    /// Tell the device about space no longer used.
    pub discard: bool,
    /// Seeds the device and the environments.
    pub seed: u64,
}

impl Setup {
    /// Tiny nodes, on a device of 64 MiB.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5e7u64);
        let mut setup = Self {
            device: 64 << 20,
            log: *random.choose(&[None, Some(1 << 20), Some(4 << 20)]),
            compression: *random.choose(&[Compression::None, Compression::Lz4, Compression::Zstd]),
            tuning: Tuning::tiny(),
            memory: *random.choose(&[1 << 20, 4 << 20, 64 << 20]),
            indexes: random.between(1..=3) as u8,
            discard: random.one_in(2),
            seed,
        };
        setup.tuning.joined = *random.choose(&[0, 8, 8, 64]);
        // Not drawn, so that older seeds still choose what they chose.
        setup.tuning.accepted = [4, 0, 1, 32][(seed % 4) as usize];
        setup
    }

    /// A device that is soon full, and nodes that waste less of it than tiny ones.
    #[must_use]
    pub fn small(&self) -> Self {
        let tuning = Tuning {
            memtable: 64 << 10,
            part: 4 << 10,
            leaf: 64 << 10,
            fanout: 8,
            edge: 32 << 10,
            early_binding: 64 << 10,
            joined: self.tuning.joined,
            accepted: self.tuning.accepted,
            unlogged: false,
        };
        Self { device: 16 << 20, log: Some(2 << 20), tuning, ..self.clone() }
    }

    /// A device that is read in no time, with a short log: for histories of a few steps.
    #[must_use]
    pub fn tiny(&self) -> Self {
        Self { device: 8 << 20, log: Some(512 << 10), memory: self.memory.min(4 << 20), ..self.clone() }
    }

    fn environment(&self) -> Arc<SimulatedEnvironment> {
        Arc::new(SimulatedEnvironment::new(self.seed))
    }

    /// What stores are opened with.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions {
            memory: self.memory,
            merge: merge_functions(),
            tuning: self.tuning,
            discard: self.discard,
            ..OpenOptions::default()
        }
    }

    /// A device that holds garbage.
    pub fn blank_device(&self) -> Arc<SimulatedDevice> {
        Arc::new(SimulatedDevice::with_garbage(self.device, self.seed))
    }

    /// Writes an empty store.
    ///
    /// # Errors
    /// Those of the store.
    pub fn format(&self, device: Arc<dyn Device>) -> espalier_engine::Result<()> {
        let options =
            FormatOptions { compression: self.compression, log_bytes: self.log, label: "simulation".into() };
        Store::format(device, self.environment(), &options)
    }

    /// Opens the store on a device.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(&self, device: Arc<dyn Device>) -> espalier_engine::Result<Arc<Store>> {
        Store::open(device, self.environment(), self.open_options())
    }

    /// Opens the damaged store on a device for repair.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open_damaged(&self, device: Arc<dyn Device>) -> espalier_engine::Result<Rescue> {
        Store::open_damaged(device, self.environment(), self.open_options(), &mut |progress| {
            assert!(progress.done <= progress.total, "{progress:?}");
        })
    }
}

/// An open store, the device below it and the model beside it.
#[derive(Debug)]
pub struct Bench<D = SimulatedDevice> {
    /// What the store is made with.
    pub setup: Setup,
    /// The device.
    pub device: Arc<D>,
    /// The store.
    pub store: Arc<Store>,
    /// What it denotes.
    pub model: Model,
}

impl Bench {
    /// A new store with one volume, on a simulated device.
    ///
    /// # Errors
    /// Those of the store.
    pub fn new(setup: Setup) -> Outcome<Self> {
        Self::on_blank(setup)
    }
}

impl<D: CrashDevice> Bench<D> {
    /// A new store with one volume.
    ///
    /// # Errors
    /// Those of the store.
    pub fn on_blank(setup: Setup) -> Outcome<Self> {
        let device = D::blank(setup.device, setup.seed)?;
        setup.format(device.clone())?;
        let store = setup.open(device.clone())?;
        let mut bench = Self { setup, device, store, model: Model::new() };
        bench.create_volume(bench.setup.indexes)?;
        Ok(bench)
    }

    /// The indexes, by slot.
    pub fn slots(&self) -> Vec<IndexId> {
        slots(&self.store)
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// Those of the store, or if the volume is not as it was wanted.
    pub fn create_volume(&mut self, indexes: u8) -> Outcome {
        let name = self.free_name();
        let parameters = indexes.to_string();
        let id = self.store.create_volume(&name, indexes, 5, parameters.as_bytes())?;
        let found = self.store.volumes().into_iter().find(|v| v.id == id);
        let found = found.ok_or_else(|| Failure::new(format!("volume {id} was made and is not there")))?;
        ensure!(
            (&*found.name, found.indexes, found.flags, &found.parameters[..])
                == (&*name, indexes, 5, parameters.as_bytes()),
            "the volume made is {found:?}"
        );
        self.model.add_slots(indexes.into());
        Ok(())
    }

    fn free_name(&self) -> String {
        let last = self.store.volumes().last().map_or(0, |volume| volume.id);
        format!("volume {}", last + 1)
    }

    /// Carries out a step that concerns volumes as a whole; false if it cannot be.
    ///
    /// # Errors
    /// Those of the store, or if it does not refuse what it must.
    pub fn change_volumes(&mut self, step: &VolumeStep) -> Outcome<bool> {
        let mut after = self.model.clone();
        let possible = after.apply_volume(step);
        let volumes = self.store.volumes();
        let id = |volume: usize| volumes[volume % volumes.len()].id;
        let outcome = match *step {
            VolumeStep::Snapshot(of, read_only) => {
                let flags = if read_only { READ_ONLY_VOLUME } else { 0 };
                self.store.snapshot_volume(id(of), &self.free_name(), flags).map(drop)
            }
            VolumeStep::Delete(_) if !possible => return Ok(false),
            VolumeStep::Delete(volume) => self.store.delete_volume(id(volume)),
            VolumeStep::Restore(volume, from) => self.store.restore_volume(id(volume), id(from)),
            VolumeStep::SnapshotPrefix(of, prefix, read_only) => {
                let flags = if read_only { READ_ONLY_VOLUME } else { 0 };
                let prefix = prefix.bytes();
                self.store.snapshot_prefix(id(of), prefix, &self.free_name(), flags).map(drop)
            }
            VolumeStep::Graft(volume, prefix, from) => {
                self.store.graft_volume(id(volume), prefix.bytes(), id(from))
            }
        };
        if !possible {
            ensure!(outcome.is_err(), "{step:?} was carried out");
            return Ok(false);
        }
        outcome?;
        self.model = after;
        Ok(true)
    }

    /// Commits to the store and to the model. What concerns a volume that takes no changes is tried
    /// alone.
    ///
    /// # Errors
    /// Those of the store; the model is as before then.
    pub fn commit(&mut self, changes: &[Change]) -> espalier_engine::Result<()> {
        let slots = self.slots();
        let (refused, taken): (Vec<Change>, Vec<Change>) =
            changes.iter().cloned().partition(|change| self.model.is_read_only(change.slot()));
        if !refused.is_empty() && !Change::batch(&refused, &slots).is_empty() {
            let refusal = self.store.commit(Change::batch(&refused, &slots));
            assert!(
                refusal.as_ref().is_err_and(|error| error.kind() == ErrorKind::ReadOnly),
                "a read-only volume was changed: {refusal:?}"
            );
        }
        self.store.commit(Change::batch(&taken, &slots))?;
        self.model.apply(changes);
        Ok(())
    }

    /// Does so many pieces of background work, if there is any.
    ///
    /// # Errors
    /// Those of the store.
    pub fn work(&self, pieces: usize) -> espalier_engine::Result<()> {
        for _ in 0..pieces {
            let read_ahead = self.store.read_ahead();
            if !self.store.step()? && !read_ahead {
                break;
            }
        }
        Ok(())
    }

    /// Opens the store again, on the same device.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open_again(&mut self) -> Outcome {
        self.store = self.setup.open(self.device.clone())?;
        Ok(())
    }

    /// Compares everything and lets the store verify itself.
    ///
    /// # Errors
    /// If anything differs, and errors of the store.
    pub fn verify(&self) -> Outcome {
        compare(&self.store, &self.model)?;
        verify(&self.store)
    }

    /// Compares two ranges in the store, and that with the model.
    ///
    /// # Errors
    /// If anything differs, and errors of the store.
    pub fn diff(&self, old: &(usize, Bytes), new: &(usize, Bytes)) -> Outcome {
        let slots = self.slots();
        let entries = |(slot, prefix): &(usize, Bytes)| -> BTreeMap<Bytes, Bytes> {
            let range = KeyRange::prefix(prefix);
            let entries = self.model.entries(*slot, &range);
            entries.map(|(key, value)| (key.slice(prefix.len()..), value.clone())).collect()
        };
        let (a, b) = (entries(old), entries(new));
        let keys: BTreeSet<&Bytes> =
            a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).collect();
        let side = |(slot, prefix): &(usize, Bytes)| (slots[slot % slots.len()], prefix.clone());
        let (old, new) = (side(old), side(new));
        let mut diff = self.store.diff((old.0, &old.1), (new.0, &new.1))?;
        for key in keys {
            let Some(found) = diff.next()? else {
                return Err(Failure::new(format!("the difference at {} is missing", show(key))));
            };
            ensure!(*found.key == **key, "a difference at {} instead of {}", show(&found.key), show(key));
            for (value, expected) in [(&found.old, a.get(key)), (&found.new, b.get(key))] {
                let value = value.as_ref().map(|value| diff.read(value)).transpose()?;
                ensure!(value.as_ref() == expected, "the difference at {} has other values", show(key));
            }
        }
        let more = diff.next()?;
        ensure!(
            more.is_none(),
            "a difference too many, at {}",
            show(&more.map_or_else(Default::default, |d| d.key))
        );
        Ok(())
    }

    /// Looks at one key in all ways.
    ///
    /// # Errors
    /// If anything differs, and errors of the store.
    pub fn read(&self, slot: usize, key: &[u8], offset: usize, length: usize) -> Outcome {
        let slots = self.slots();
        let index = slots[slot % slots.len()];
        let expected = self.model.get(slot, key);
        let found = self.store.get(index, key)?;
        ensure!(expected == found.as_ref(), "{}", differs(slot, key, expected, found.as_ref()));
        ensure!(self.store.contains(index, key)? == expected.is_some(), "contains({}) is wrong", show(key));
        let mut out = vec![0xee; length];
        let total = self.store.get_slice(index, key, offset, &mut out)?;
        ensure!(total == expected.map(Bytes::len), "get_slice({}) has length {total:?}", show(key));
        let expected = expected.map_or(&[][..], |v| v.get(offset..).unwrap_or_default());
        let common = expected.len().min(length);
        ensure!(out[..common] == expected[..common], "get_slice({}, {offset}, {length}) is wrong", show(key));
        // The same as the second half of a row.
        let slices = [(0, 7), (offset, length)].map(|(offset, len)| Slice { key, offset, len });
        let mut row = vec![0xee; 7 + length];
        let lengths = self.store.get_slices(index, &slices, &mut row)?;
        ensure!(lengths == [total, total], "get_slices({}) has lengths {lengths:?}", show(key));
        ensure!(
            row[7..7 + common] == expected[..common],
            "get_slices({}, {offset}, {length}) is wrong",
            show(key)
        );
        Ok(())
    }
}

fn differs(slot: usize, key: &[u8], expected: Option<&Bytes>, found: Option<&Bytes>) -> String {
    let text = |v: Option<&Bytes>| v.map_or_else(|| "nothing".to_owned(), |v| show(v));
    format!("index {slot}, key {}: expected {}, found {}", show(key), text(expected), text(found))
}

/// The indexes of a store, by slot.
pub(crate) fn slots(store: &Store) -> Vec<IndexId> {
    let volumes = store.volumes().into_iter();
    volumes.flat_map(|v| (0..v.indexes).map(move |index| IndexId { volume: v.id, index })).collect()
}

/// Compares all of a store with a model.
///
/// # Errors
/// If anything differs, and errors of the store.
pub(crate) fn compare(store: &Store, model: &Model) -> Outcome {
    let slots = slots(store);
    ensure!(slots.len() == model.slots(), "{} indexes instead of {}", slots.len(), model.slots());
    for (slot, index) in slots.into_iter().enumerate() {
        let range = KeyRange::all();
        walk_all(model, slot, &range, store.cursor(index, range.clone())?)?;
        for (key, value) in model.entries(slot, &range) {
            let found = store.get(index, key)?;
            ensure!(found.as_ref() == Some(value), "{}", differs(slot, key, Some(value), found.as_ref()));
        }
    }
    Ok(())
}

/// Lets a store verify itself.
///
/// # Errors
/// If it finds a problem, and errors of the store.
pub(crate) fn verify(store: &Store) -> Outcome {
    let report = store.verify(&mut |_| ())?;
    ensure!(report.problems.is_empty(), "{} problems, first {:?}", report.problems.len(), report.problems[0]);
    ensure!(report.more_problems == 0, "problems that are not listed");
    Ok(())
}

/// Reads all of a store.
///
/// # Errors
/// Those of the store.
pub(crate) fn contents(store: &Store) -> espalier_engine::Result<Model> {
    let mut model = Model::new();
    let slots = slots(store);
    model.add_slots(slots.len());
    for (slot, index) in slots.into_iter().enumerate() {
        let mut cursor = store.cursor(index, KeyRange::all())?;
        while let Some(entry) = cursor.next()? {
            let value = cursor.read(&entry.value)?;
            model.set(slot, &Bytes::copy_from_slice(&entry.key), Some(value));
        }
    }
    Ok(model)
}
