//! Volumes: making, copying, replacing and deleting them.
//!
//! A volume is an entry in the volume table with the roots of its indexes. All changes to the table
//! are made at the cut of a checkpoint: so they are atomic against batches, durable when the call
//! returns, and a copy is nothing but one more count on the same roots. It adds no height to
//! anything.
//!
//! A volume with [`READ_ONLY_VOLUME`] takes no messages: it has no memtables and no [`Index`] that
//! anybody would have to look at, so that a thousand of them cost what their entries in the table
//! take.

use crate::checkpoint::{Alias, Changed, Graft, StoredRoot, VolumeChange};
use crate::index::{Index, Version};
use crate::model::ids::IndexId;
use crate::read::snapshot::no_such_index;
use crate::space::{IndexRoot, Purpose, Reservation, VolumeEntry, VolumeTable};
use crate::store::{CLONE_BLOCKS, MAX_HEIGHT, MAX_KEY, Shared, Store};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The flag of a volume that refuses every change. The other flags are free for the layer above.
pub const READ_ONLY_VOLUME: u32 = 1 << 31;

/// A volume: a named set of indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number, by which an [`IndexId`] names it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// [`READ_ONLY_VOLUME`]; the others are free for the layer above.
    pub flags: u32,
    /// Number of indexes.
    pub indexes: u8,
    /// Free for the layer above.
    pub parameters: Bytes,
}

impl Store {
    /// The volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let info = |(id, v): (&u32, &VolumeEntry)| VolumeInfo {
            id: *id,
            name: v.name.clone(),
            flags: v.flags,
            indexes: v.indexes.len() as u8,
            parameters: v.parameters.clone(),
        };
        let volumes = self.shared.volumes.lock();
        let hidden = self.shared.hidden.load(Ordering::Relaxed);
        volumes.volumes.iter().filter(|(id, _)| **id != hidden).map(info).collect()
    }

    /// Makes a volume of `indexes` empty indexes and returns its number. Durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken; of the device.
    pub fn create_volume(&self, name: &str, indexes: u8, flags: u32, parameters: &[u8]) -> Result<u32> {
        self.shared.writable()?;
        let entry = VolumeEntry {
            flags,
            name: name.into(),
            parameters: Bytes::copy_from_slice(parameters),
            indexes: vec![Default::default(); indexes.into()],
        };
        let pin = Arc::new(self.shared.space.pin_version()?);
        let id = self.shared.volumes.lock().add(entry)?;
        if flags & READ_ONLY_VOLUME == 0 {
            let mut all = self.shared.indexes.write();
            for index in 0..indexes {
                let index = IndexId { volume: id, index };
                all.insert(index, Arc::new(Index::new(index, Default::default(), pin.clone())));
            }
        }
        self.checkpoint()?;
        Ok(id)
    }

    /// Makes a volume that holds what `volume` holds now, with the same parameters, and returns its
    /// number: a snapshot if `flags` have [`READ_ONLY_VOLUME`], else a second volume to go on with.
    /// Both share everything until one of them changes. Takes a checkpoint, and is durable when it
    /// returns.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the volume, [`ErrorKind::AlreadyExists`] if the name is
    /// taken; of the device.
    pub fn snapshot_volume(&self, volume: u32, name: &str, flags: u32) -> Result<u32> {
        self.snapshot_prefix(volume, b"", name, flags)
    }

    /// As [`Store::snapshot_volume`], of what begins with `prefix` in each index, without the
    /// prefix. It holds nothing else of the volume, at the cost of a clone.
    ///
    /// # Errors
    /// As for [`Store::snapshot_volume`], and [`ErrorKind::NoSpace`].
    pub fn snapshot_prefix(&self, volume: u32, prefix: &[u8], name: &str, flags: u32) -> Result<u32> {
        self.snapshot_prefix_if(volume, prefix, name, flags, &|| true)
    }

    /// As [`Store::snapshot_prefix`], if it is still `wanted` when the volume is about to be there,
    /// as for [`Store::commit_if`].
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if it is not; as for [`Store::snapshot_prefix`].
    pub fn snapshot_prefix_if(
        &self,
        volume: u32,
        prefix: &[u8],
        name: &str,
        flags: u32,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u32> {
        let shared = &self.shared;
        shared.writable()?;
        let _reserved = shared.room_for_borders(prefix)?;
        let made =
            shared.change_volumes(&VolumeChange::Snapshot { of: volume, prefix, name, flags }, wanted)?;
        made.ok_or_else(|| no_such_volume(volume))
    }

    /// Makes `volume` hold behind `prefix`, in each index, what `from` holds now, instead of what
    /// it held there. Batches that are committed while this runs count as newer; they should leave
    /// the prefix alone. Nothing connects the two volumes afterwards. Takes a checkpoint, and is
    /// durable when it returns.
    ///
    /// # Errors
    /// As for [`Store::restore_volume`]; [`ErrorKind::NoSpace`]; [`ErrorKind::InvalidArgument`] for
    /// a prefix that is empty or too long, and a volume that is to hold itself.
    pub fn graft_volume(&self, volume: u32, prefix: &[u8], from: u32) -> Result<()> {
        let shared = &self.shared;
        shared.writable()?;
        if prefix.is_empty() || prefix.len() > MAX_KEY || volume == from {
            let message = "a volume can be put behind a prefix of another volume only";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let _reserved = shared.room_for_borders(prefix)?;
        shared.change_volumes(&VolumeChange::Graft { volume, from, prefix }, &|| true).map(drop)
    }

    /// Deletes a volume. What only it held is free soon afterwards. Takes a checkpoint, and is
    /// durable when it returns. Cursors and snapshots in memory go on seeing what they saw.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the volume; of the device.
    pub fn delete_volume(&self, volume: u32) -> Result<()> {
        self.delete_volume_if(volume, &|| true)
    }

    /// As [`Store::delete_volume`], if it is still `wanted` when the volume is about to go, as for
    /// [`Store::commit_if`].
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if it is not; as for [`Store::delete_volume`].
    pub fn delete_volume_if(&self, volume: u32, wanted: &dyn Fn() -> bool) -> Result<()> {
        self.shared.writable()?;
        self.shared.change_volumes(&VolumeChange::Delete(volume), wanted).map(drop)
    }

    /// Makes `volume` hold what `from` holds now, instead of what it held. It keeps its name,
    /// number, flags and parameters. Takes a checkpoint, and is durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without one of the volumes, [`ErrorKind::InvalidArgument`] if they
    /// differ in indexes or parameters; of the device.
    pub fn restore_volume(&self, volume: u32, from: u32) -> Result<()> {
        self.shared.writable()?;
        self.shared.change_volumes(&VolumeChange::Restore { volume, from }, &|| true).map(drop)
    }
}

/// The entry of `from`, if volume `volume`, which can be changed, is of the same kind.
fn alike(volumes: &VolumeTable, volume: u32, from: u32) -> Result<VolumeEntry> {
    let find = |id: u32| volumes.volumes.get(&id).ok_or_else(|| no_such_volume(id));
    let (old, new) = (find(volume)?, find(from)?);
    if old.flags & READ_ONLY_VOLUME != 0 {
        let message = format!("the volume {} is read-only", old.name);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    if old.indexes.len() != new.indexes.len() || old.parameters != new.parameters {
        let message = format!("volumes {volume} and {from} are of different kinds");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(new.clone())
}

fn no_such_volume(volume: u32) -> Error {
    Error::new(ErrorKind::NotFound, format!("the store has no volume {volume}"))
}

/// Gives the volumes of a table the roots that their indexes have.
pub(crate) fn enter_roots(volumes: &mut VolumeTable, roots: &BTreeMap<IndexId, StoredRoot>) {
    for (id, root) in roots {
        if let Some(index) =
            volumes.volumes.get_mut(&id.volume).and_then(|v| v.indexes.get_mut(usize::from(id.index)))
        {
            *index = IndexRoot { node: root.node, height: root.height, view: Default::default() };
        }
    }
}

impl Shared {
    /// Sets aside what the headers take that a change behind a prefix makes in each index.
    fn room_for_borders(&self, prefix: &[u8]) -> Result<Option<Reservation>> {
        let indexes = self.indexes.read();
        let most = indexes.keys().map(|id| u64::from(id.index) + 1).max().unwrap_or(0);
        if prefix.is_empty() {
            return Ok(None);
        }
        if indexes.values().any(|index| index.version().root.height >= MAX_HEIGHT) {
            let message = "a range has been cloned into itself too many times";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        drop(indexes);
        let each = if self.trees.lean.load(Ordering::Relaxed) { 8 } else { 2 } * CLONE_BLOCKS;
        let reserve = || self.space.reserve(each * most, Purpose::Growth, self.owed_blocks());
        match reserve() {
            // What is promised to batches that wait may be more than they take.
            Err(error) if error.kind() == ErrorKind::NoSpace => self.checkpoint().and_then(|()| reserve()),
            reserved => reserved,
        }
        .map(Some)
    }

    /// Changes the table and the indexes in memory; returns a volume that was made, and which
    /// indexes get the roots of which. Under the commit lock, during a checkpoint.
    pub(crate) fn begin_change(&self, change: &VolumeChange<'_>) -> Result<Changed> {
        let mut volumes = self.volumes.lock();
        let find = |volumes: &VolumeTable, id: u32| {
            volumes.volumes.get(&id).cloned().ok_or_else(|| no_such_volume(id))
        };
        let aliases = |to: u32, from: u32, prefix: &[u8], entry: &VolumeEntry| {
            let alias = |index| {
                let (id, from) = (IndexId { volume: to, index }, IndexId { volume: from, index });
                Alias { id, from, prefix: prefix.into(), replaced: self.indexes.read().get(&id).cloned() }
            };
            (0..entry.indexes.len() as u8).map(alias).collect()
        };
        match *change {
            VolumeChange::None => Ok(Changed::default()),
            VolumeChange::Snapshot { of, prefix, name, flags } => {
                let entry = find(&volumes, of)?;
                let aliases = aliases(volumes.next_id, of, prefix, &entry);
                // Hidden from readers until the roots are known.
                let id = volumes.add(VolumeEntry { flags, name: name.into(), ..entry })?;
                self.hidden.store(id, Ordering::Relaxed);
                Ok(Changed { made: Some(id), aliases, grafts: Vec::new() })
            }
            VolumeChange::Delete(id) => {
                volumes.volumes.remove(&id).ok_or_else(|| no_such_volume(id))?;
                self.indexes.write().retain(|index, _| index.volume != id);
                Ok(Changed::default())
            }
            VolumeChange::Restore { volume, from } => {
                let new = alike(&volumes, volume, from)?;
                let same = volume == from;
                let aliases = if same { Vec::new() } else { aliases(volume, from, b"", &new) };
                Ok(Changed { aliases, ..Changed::default() })
            }
            VolumeChange::Graft { volume, from, prefix } => {
                let entry = alike(&volumes, volume, from)?;
                let graft = |index| Graft {
                    id: IndexId { volume, index },
                    from: IndexId { volume: from, index },
                    prefix: prefix.into(),
                };
                Ok(Changed {
                    grafts: (0..entry.indexes.len() as u8).map(graft).collect(),
                    ..Changed::default()
                })
            }
        }
    }

    /// A volume that was to be made has not been made.
    pub(crate) fn forget_volume(&self, made: Option<u32>) {
        if let Some(id) = made {
            let mut volumes = self.volumes.lock();
            volumes.volumes.remove(&id);
            self.hidden.store(0, Ordering::Relaxed);
        }
    }

    /// Shows a new volume to readers, and the roots of all that are read-only. During a checkpoint.
    pub(crate) fn show_volume(&self, made: Option<u32>, stored: &VolumeTable) -> Result<()> {
        let pin = Arc::new(self.space.pin_version()?);
        let mut volumes = self.volumes.lock();
        for (id, volume) in volumes.volumes.iter_mut() {
            let Some(entry) = stored.volumes.get(id) else { continue };
            if volume.flags & READ_ONLY_VOLUME != 0 {
                volume.indexes.clone_from(&entry.indexes);
            } else if Some(*id) == made {
                let mut all = self.indexes.write();
                for (index, root) in (0..).zip(&entry.indexes) {
                    let id = IndexId { volume: *id, index };
                    let root = StoredRoot { node: root.node, height: root.height };
                    all.insert(id, Arc::new(Index::new(id, root.as_root(&*self.space), pin.clone())));
                }
            }
        }
        self.hidden.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The state of an index as it is now.
    pub(crate) fn version(&self, id: IndexId) -> Result<Arc<Version>> {
        if let Some(index) = self.indexes.read().get(&id) {
            return Ok(index.version());
        }
        let volumes = self.volumes.lock();
        // Pinned before the look, so that what is found stays.
        let pin = Arc::new(self.space.pin_version()?);
        let hidden = self.hidden.load(Ordering::Relaxed) == id.volume;
        let volume = volumes.volumes.get(&id.volume).filter(|v| v.flags & READ_ONLY_VOLUME != 0 && !hidden);
        let root =
            volume.and_then(|v| v.indexes.get(usize::from(id.index))).ok_or_else(|| no_such_index(id))?;
        let root = StoredRoot { node: root.node, height: root.height }.as_root(&*self.space);
        Ok(Arc::new(Version { active: Arc::default(), sealed: Vec::new(), root, pin }))
    }

    /// The error for a change of an index that takes none.
    pub(crate) fn unchangeable(&self, id: IndexId) -> Error {
        let volumes = self.volumes.lock();
        match volumes.volumes.get(&id.volume).filter(|v| usize::from(id.index) < v.indexes.len()) {
            Some(volume) => {
                Error::new(ErrorKind::ReadOnly, format!("the volume {} is read-only", volume.name))
            }
            None => no_such_index(id),
        }
    }
}
