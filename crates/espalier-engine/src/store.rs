//! The public face of the engine: open, commit, look, sync.
//!
//! Protocol of a commit: wait for room, then under the commit lock take numbers, hand the batch to
//! the log, apply it to the memtables. So LSN order, MSN order and the order of the log are one.

use crate::batch::{Batch, BatchOp};
use crate::cursor::Cursor;
use crate::index::{Index, Version};
use crate::key::KeyRange;
use crate::options::{FormatOptions, OpenOptions};
use crate::resolve::ValueReader;
use crate::snapshot::{Snapshot, SnapshotIndex, no_such_index};
use crate::types::{IndexId, Lsn, Msn};
use crate::value::{MAX_VALUE, ValueRef};
use crate::{Error, ErrorKind, Op, Result};
use bytes::Bytes;
use espalier_storage::{Device, Environment};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume: a named set of indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number, by which an [`IndexId`] names it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Free for the layer above.
    pub flags: u32,
    /// Number of indexes.
    pub indexes: u8,
    /// Free for the layer above.
    pub parameters: Bytes,
}

/// An open store.
pub struct Store {
    shared: Arc<Shared>,
}

/// What the rooms of an open store share.
pub(crate) struct Shared {
    pub(crate) options: OpenOptions,
    order: Mutex<Order>,
    indexes: RwLock<BTreeMap<IndexId, Arc<Index>>>,
    volumes: RwLock<Vec<VolumeInfo>>,
    /// Snapshots by what they see, with how many see it.
    pins: Mutex<BTreeMap<Msn, usize>>,
}

/// What the commit lock guards.
struct Order {
    last_lsn: Lsn,
    last_msn: Msn,
}

impl Store {
    /// Writes an empty store over whatever `device` holds.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::InvalidArgument`] if it is too small.
    pub fn format(
        _device: Arc<dyn Device>,
        _env: Arc<dyn Environment>,
        _options: &FormatOptions,
    ) -> Result<()> {
        Ok(())
    }

    /// Opens the store on `device`, recovering what was durable.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::NotAStore`], [`ErrorKind::NewerFormat`], [`ErrorKind::Damaged`].
    pub fn open(
        _device: Arc<dyn Device>,
        _env: Arc<dyn Environment>,
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        let shared = Shared {
            options,
            order: Mutex::new(Order { last_lsn: Lsn(0), last_msn: Msn(0) }),
            indexes: RwLock::default(),
            volumes: RwLock::default(),
            pins: Mutex::default(),
        };
        Ok(Arc::new(Self { shared: Arc::new(shared) }))
    }

    /// The volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.shared.volumes.read().clone()
    }

    /// Makes a volume of `indexes` empty indexes and returns its number. Durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken; of the device.
    pub fn create_volume(&self, name: &str, indexes: u8, flags: u32, parameters: &[u8]) -> Result<u32> {
        let mut volumes = self.shared.volumes.write();
        if volumes.iter().any(|v| v.name == name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a volume {name:?} already")));
        }
        let id = volumes.iter().map(|v| v.id + 1).max().unwrap_or(0);
        volumes.push(VolumeInfo {
            id,
            name: name.into(),
            flags,
            indexes,
            parameters: Bytes::copy_from_slice(parameters),
        });
        let mut all = self.shared.indexes.write();
        for index in 0..indexes {
            let index = IndexId { volume: id, index };
            all.insert(index, Arc::new(Index::new(index)));
        }
        Ok(id)
    }

    /// Carries out `batch`: visible when this returns, durable after a [`Store::sync`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::ReadOnly`], [`ErrorKind::InvalidArgument`]; nothing was done then.
    pub fn commit(&self, batch: Batch) -> Result<Lsn> {
        self.shared.check(&batch)?;
        let mut order = self.shared.order.lock();
        let indexes = self.shared.indexes.read();
        let pinned = self.shared.newest_pin();
        for op in &batch.ops {
            order.last_msn.0 += 1;
            match op {
                BatchOp::Point { index, key, op } => {
                    let index = indexes.get(index).ok_or_else(|| no_such_index(*index))?;
                    index.version().active.apply(key, order.last_msn, op, pinned, &self.shared.options.merge);
                }
                BatchOp::Range { index, range, op } => {
                    let index = indexes.get(index).ok_or_else(|| no_such_index(*index))?;
                    index.version().active.apply_range(range, order.last_msn, op, pinned);
                }
            }
        }
        order.last_lsn.0 += 1;
        Ok(order.last_lsn)
    }

    /// Makes all batches up to `upto` durable.
    ///
    /// # Errors
    /// Of the device; the store is read-only afterwards.
    pub fn sync(&self, _upto: Lsn) -> Result<()> {
        Ok(())
    }

    /// Makes all batches durable whose commit has returned.
    ///
    /// # Errors
    /// As for [`Store::sync`].
    pub fn sync_all(&self) -> Result<()> {
        let upto = self.shared.order.lock().last_lsn;
        self.sync(upto)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`]; [`ErrorKind::NotFound`] if there is no such index.
    pub fn get(&self, index: IndexId, key: &[u8]) -> Result<Option<Bytes>> {
        self.newest(index)?.get(key)
    }

    /// Fills `out` from byte `offset` of the value of `key` as far as it reaches, reading no more
    /// pages than that takes; returns the length of the value, `None` if there is none.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn get_slice(
        &self,
        index: IndexId,
        key: &[u8],
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<usize>> {
        self.newest(index)?.get_slice(key, offset, out)
    }

    /// True if `key` has a value.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn contains(&self, index: IndexId, key: &[u8]) -> Result<bool> {
        Ok(self.get_slice(index, key, 0, &mut [])?.is_some())
    }

    /// A walk over `range` as it is now.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn cursor(&self, index: IndexId, range: KeyRange) -> Result<Cursor> {
        self.snapshot()?.cursor(index, range)
    }

    /// The state of all indexes as it is now.
    ///
    /// # Errors
    /// None today.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let order = self.shared.order.lock();
        let upto = order.last_msn;
        *self.shared.pins.lock().entry(upto).or_default() += 1;
        let versions = self.shared.indexes.read().iter().map(|(id, index)| (*id, index.version())).collect();
        drop(order);
        Ok(Snapshot::new(self.shared.clone(), versions, upto))
    }

    /// Makes the whole state durable in the tree, so that the log can forget it.
    ///
    /// # Errors
    /// Of the device.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    /// Checkpoints and stops; every later call fails.
    ///
    /// # Errors
    /// Of the device.
    pub fn close(&self) -> Result<()> {
        self.checkpoint()
    }

    fn newest(&self, index: IndexId) -> Result<SnapshotIndex> {
        let version: Arc<Version> =
            self.shared.indexes.read().get(&index).ok_or_else(|| no_such_index(index))?.version();
        Ok(SnapshotIndex::newest(self.shared.clone(), version))
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("volumes", &self.volumes()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Refuses a batch that breaks a documented rule, before anything is done.
    fn check(&self, batch: &Batch) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let indexes = self.indexes.read();
        for op in &batch.ops {
            let (index, update) = match op {
                BatchOp::Point { index, op: Op::Update(update), .. } => (index, Some(update)),
                BatchOp::Range { index, op: crate::RangeOp::Update(update), .. } => (index, Some(update)),
                BatchOp::Point { index, .. } | BatchOp::Range { index, .. } => (index, None),
            };
            if !indexes.contains_key(index) {
                return Err(no_such_index(*index));
            }
            if let Some(update) = update.filter(|u| !self.options.merge.knows(u.function)) {
                return invalid(format!("merge function {} is not registered", update.function));
            }
            let end = match op {
                BatchOp::Point { op: Op::Insert(value), .. } => value.len(),
                BatchOp::Point { op: Op::Patch { offset, bytes }, .. } => *offset as usize + bytes.len(),
                _ => 0,
            };
            if end > MAX_VALUE {
                return invalid(format!("a value of {end} bytes is longer than {MAX_VALUE}"));
            }
        }
        Ok(())
    }

    /// What the newest snapshot sees; 0 if there is none.
    fn newest_pin(&self) -> Msn {
        self.pins.lock().last_key_value().map_or(Msn(0), |(msn, _)| *msn)
    }

    /// A snapshot is gone.
    pub(crate) fn unpin(&self, upto: Msn) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&upto) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&upto);
            }
        }
    }
}

impl ValueReader for Shared {
    fn read_value(&self, at: &ValueRef, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Error::damaged(format!("{at:?} lies nowhere")))
    }
}
