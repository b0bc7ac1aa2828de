//! Volumes API: making, copying, replacing and deleting volumes.
//!
//! All changes are made at the cut of a checkpoint ([`crate::checkpoint::volume_changes`]): so they
//! are atomic against batches, durable when the call returns, and a copy is nothing but one more
//! count on the same roots.

use super::Store;
#[cfg(doc)]
use crate::READ_ONLY_VOLUME;
use crate::checkpoint::volume_changes::{VolumeChange, no_such_volume};
use crate::index::accounting::CLONE_BLOCKS;
use crate::index::catalog::VolumeInfo;
use crate::model::key::MAX_KEY;
use crate::space::{Purpose, Reservation, VolumeEntry};
use crate::tree::MAX_HEIGHT;
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;

impl Store {
    /// The volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.components.read.catalog.volumes()
    }

    /// The volume of this name.
    pub fn volume_by_name(&self, name: &str) -> Option<VolumeInfo> {
        self.volumes().into_iter().find(|volume| volume.name == name)
    }

    /// The number of the volume of this name, which is made with so many empty indexes if there is
    /// none.
    ///
    /// # Errors
    /// As for [`Store::create_volume`], but [`ErrorKind::AlreadyExists`].
    pub fn open_or_create_volume(&self, name: &str, indexes: u8) -> Result<u32> {
        let found = || self.volume_by_name(name).map(|volume| volume.id);
        if let Some(id) = found() {
            return Ok(id);
        }
        match self.create_volume(name, indexes, 0, &[]) {
            // Another thread has just made it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => found().ok_or(error),
            made => made,
        }
    }

    /// Makes a volume of `indexes` empty indexes and returns its number. Durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken; of the device.
    pub fn create_volume(&self, name: &str, indexes: u8, flags: u32, parameters: &[u8]) -> Result<u32> {
        self.components.write.pipeline.writable()?;
        let entry = VolumeEntry {
            flags,
            name: name.into(),
            parameters: Bytes::copy_from_slice(parameters),
            indexes: vec![Default::default(); indexes.into()],
        };
        let id = self.components.read.catalog.add(entry)?;
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
        let components = &self.components;
        components.write.pipeline.writable()?;
        let _reserved = self.reserve_borders(prefix)?;
        let made = components
            .write
            .checkpointer
            .change_volumes(&VolumeChange::Snapshot { of: volume, prefix, name, flags }, wanted)?;
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
        let components = &self.components;
        components.write.pipeline.writable()?;
        if prefix.is_empty() || prefix.len() > MAX_KEY || volume == from {
            let message = "a volume can be put behind a prefix of another volume only";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let _reserved = self.reserve_borders(prefix)?;
        components
            .write
            .checkpointer
            .change_volumes(&VolumeChange::Graft { volume, from, prefix }, &|| true)
            .map(drop)
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
        self.components.write.pipeline.writable()?;
        self.components.write.checkpointer.change_volumes(&VolumeChange::Delete(volume), wanted).map(drop)
    }

    /// Makes `volume` hold what `from` holds now, instead of what it held. It keeps its name,
    /// number, flags and parameters. Takes a checkpoint, and is durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without one of the volumes, [`ErrorKind::InvalidArgument`] if they
    /// differ in indexes or parameters; of the device.
    pub fn restore_volume(&self, volume: u32, from: u32) -> Result<()> {
        self.components.write.pipeline.writable()?;
        self.components
            .write
            .checkpointer
            .change_volumes(&VolumeChange::Restore { volume, from }, &|| true)
            .map(drop)
    }

    /// Sets aside what the headers take that a change behind a prefix makes in each index.
    fn reserve_borders(&self, prefix: &[u8]) -> Result<Option<Reservation>> {
        let indexes = self.components.indexes.read();
        let most = indexes.keys().map(|id| u64::from(id.index) + 1).max().unwrap_or(0);
        if prefix.is_empty() {
            return Ok(None);
        }
        if indexes.values().any(|index| index.version().root.height >= MAX_HEIGHT) {
            let message = "a range has been cloned into itself too many times";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        drop(indexes);
        let each = if self.components.accounting.is_low() { 8 } else { 2 } * CLONE_BLOCKS;
        let reserve = || self.components.accounting.reserve(each * most, Purpose::Growth);
        match reserve() {
            // What is promised to batches that wait may be more than they take.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.components.write.checkpointer.checkpoint().and_then(|()| reserve())
            }
            reserved => reserved,
        }
        .map(Some)
    }
}
