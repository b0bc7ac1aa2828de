//! Volume changes: what making, copying, replacing and deleting volumes does at a checkpoint's cut.
//!
//! A volume is an entry in the volume table with the roots of its indexes. All changes to the table
//! are made at the cut of a checkpoint: so they are atomic against batches, durable when the
//! checkpoint ends, and a copy is nothing but one more count on the same roots. It adds no height
//! to anything.

use crate::index::Index;
use crate::index::catalog::{READ_ONLY_VOLUME, StoredRoot, VolumeCatalog};
use crate::index::table::IndexTable;
use crate::model::ids::IndexId;
use crate::model::key::Key;
use crate::space::{IndexRoot, Space, VolumeEntry, VolumeTable};
use crate::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What happens to the volumes at the cut, at no cost but that of a checkpoint: roots are counted,
/// not copied.
pub(crate) enum VolumeChange<'a> {
    None,
    /// A new volume that holds what volume `of` holds behind a prefix, without the prefix.
    Snapshot {
        of: u32,
        prefix: &'a [u8],
        name: &'a str,
        flags: u32,
    },
    /// A volume is no more.
    Delete(u32),
    /// A volume holds what another one holds.
    Restore {
        volume: u32,
        from: u32,
    },
    /// Behind a prefix a volume holds what another one holds.
    Graft {
        volume: u32,
        from: u32,
        prefix: &'a [u8],
    },
}

/// An index that gets the root of another one.
pub(crate) struct Alias {
    pub(crate) id: IndexId,
    pub(crate) from: IndexId,
    /// Only what begins with this, which is taken off.
    pub(crate) prefix: Key,
    /// Present if it is there already, and is to forget what it holds.
    pub(crate) replaced: Option<Arc<Index>>,
}

/// An index that gets, behind a prefix, what another one holds.
pub(crate) struct Graft {
    pub(crate) id: IndexId,
    pub(crate) from: IndexId,
    pub(crate) prefix: Key,
}

/// What a change of the volumes means for the roots.
#[derive(Default)]
pub(crate) struct VolumeEffects {
    /// The volume that was made.
    pub(crate) made: Option<u32>,
    pub(crate) aliases: Vec<Alias>,
    pub(crate) grafts: Vec<Graft>,
}

/// The entry of `from`, if volume `volume`, which can be changed, is of the same kind.
fn same_kind(volumes: &VolumeTable, volume: u32, from: u32) -> Result<VolumeEntry> {
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

pub(crate) fn no_such_volume(volume: u32) -> Error {
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

/// See the [module](self).
pub(crate) struct VolumeChanges {
    pub(crate) space: Arc<Space>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) catalog: Arc<VolumeCatalog>,
}

impl VolumeChanges {
    /// Changes the table and the indexes in memory; returns a volume that was made, and which
    /// indexes get the roots of which. Under the commit lock, during a checkpoint.
    pub(super) fn begin(&self, change: &VolumeChange<'_>) -> Result<VolumeEffects> {
        let mut catalog = self.catalog.lock();
        let volumes = &mut catalog.table;
        let find = |volumes: &VolumeTable, id: u32| {
            volumes.volumes.get(&id).cloned().ok_or_else(|| no_such_volume(id))
        };
        let aliases = |to: u32, from: u32, prefix: &[u8], entry: &VolumeEntry| {
            let alias = |index| {
                let (id, from) = (IndexId { volume: to, index }, IndexId { volume: from, index });
                Alias { id, from, prefix: prefix.into(), replaced: self.indexes.get(id) }
            };
            (0..entry.indexes.len() as u8).map(alias).collect()
        };
        match *change {
            VolumeChange::None => Ok(VolumeEffects::default()),
            VolumeChange::Snapshot { of, prefix, name, flags } => {
                let entry = find(volumes, of)?;
                let aliases = aliases(volumes.next_id, of, prefix, &entry);
                // Hidden from readers until the roots are known.
                let id = volumes.add(VolumeEntry { flags, name: name.into(), ..entry })?;
                catalog.hidden = Some(id);
                Ok(VolumeEffects { made: Some(id), aliases, grafts: Vec::new() })
            }
            VolumeChange::Delete(id) => {
                volumes.volumes.remove(&id).ok_or_else(|| no_such_volume(id))?;
                self.indexes.remove_volume(id);
                Ok(VolumeEffects::default())
            }
            VolumeChange::Restore { volume, from } => {
                let new = same_kind(volumes, volume, from)?;
                let same = volume == from;
                let aliases = if same { Vec::new() } else { aliases(volume, from, b"", &new) };
                Ok(VolumeEffects { aliases, ..VolumeEffects::default() })
            }
            VolumeChange::Graft { volume, from, prefix } => {
                let entry = same_kind(volumes, volume, from)?;
                let graft = |index| Graft {
                    id: IndexId { volume, index },
                    from: IndexId { volume: from, index },
                    prefix: prefix.into(),
                };
                Ok(VolumeEffects {
                    grafts: (0..entry.indexes.len() as u8).map(graft).collect(),
                    ..VolumeEffects::default()
                })
            }
        }
    }

    /// A volume that was to be made has not been made.
    pub(super) fn undo(&self, made: Option<u32>) {
        if let Some(id) = made {
            let mut catalog = self.catalog.lock();
            catalog.table.volumes.remove(&id);
            catalog.hidden = None;
        }
    }

    /// Shows a new volume to readers, and the roots of all that are read-only. During a checkpoint.
    pub(super) fn publish(&self, made: Option<u32>, stored: &VolumeTable) {
        let pin = Arc::new(self.space.deferred.pin_version());
        let mut catalog = self.catalog.lock();
        for (id, volume) in &mut catalog.table.volumes {
            let Some(entry) = stored.volumes.get(id) else { continue };
            if volume.flags & READ_ONLY_VOLUME != 0 {
                volume.indexes.clone_from(&entry.indexes);
            } else if Some(*id) == made {
                let index = |(index, root): (u8, &IndexRoot)| {
                    let root = StoredRoot::from(root).as_root(&*self.space);
                    Index::new(IndexId { volume: *id, index }, root, pin.clone())
                };
                self.indexes.add((0..).zip(&entry.indexes).map(index));
            }
        }
        catalog.hidden = None;
    }
}
