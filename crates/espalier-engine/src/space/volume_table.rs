//! The volume table: which volumes there are, and the roots of their indexes.
//!
//! Read whole when the store is opened, written whole (as far as it changed) by each checkpoint.
//! The layout is in docs/format.md, "Volume table".

use super::byte_table;
use crate::{Error, ErrorKind, PieceId, Result};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The longest volume name, in bytes.
pub const MAX_VOLUME_NAME: usize = 255;
/// The most parameter bytes of a volume.
pub const MAX_PARAMETERS: usize = 65536;
/// The most bytes of an index's view.
const MAX_VIEW_BYTES: usize = 4 << 20;

/// What precedes the volumes, and what precedes the fields of variable length of a volume and of an
/// index.
const TABLE_HEADER_BYTES: usize = 8;
const VOLUME_HEADER_BYTES: usize = 16;
const INDEX_HEADER_BYTES: usize = 16;

/// The root of one index.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct IndexRoot {
    /// The root node; `None` for an index that holds nothing. The table counts as a reference to
    /// it.
    pub(crate) node: Option<PieceId>,
    /// The root's height; 0 for a leaf.
    pub(crate) height: u8,
    /// How the root is seen (bounds and translation), encoded by the tree; empty for "as it is".
    pub(crate) view: Bytes,
}

/// One volume.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct VolumeEntry {
    /// Meaning given by the store and the layer above.
    pub(crate) flags: u32,
    /// Unique; at most [`MAX_VOLUME_NAME`] bytes.
    pub(crate) name: String,
    /// Opaque bytes of the layer above, at most [`MAX_PARAMETERS`].
    pub(crate) parameters: Bytes,
    /// The indexes, by their number; at most 255.
    pub(crate) indexes: Vec<IndexRoot>,
}

impl VolumeEntry {
    fn encoded_bytes(&self) -> usize {
        let indexes = self.indexes.iter().map(|index| INDEX_HEADER_BYTES + index.view.len());
        VOLUME_HEADER_BYTES + self.name.len() + self.parameters.len() + indexes.sum::<usize>()
    }
}

/// All volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeTable {
    /// The number the next volume gets; numbers are never reused.
    pub(crate) next_id: u32,
    /// The volumes, by number.
    pub(crate) volumes: BTreeMap<u32, VolumeEntry>,
}

impl Default for VolumeTable {
    fn default() -> Self {
        Self { next_id: 1, volumes: BTreeMap::new() }
    }
}

impl VolumeTable {
    /// Enters a volume and returns its number.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken, [`ErrorKind::InvalidArgument`] beyond the
    /// limits.
    pub(crate) fn add(&mut self, entry: VolumeEntry) -> Result<u32> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        if entry.name.is_empty() || entry.name.len() > MAX_VOLUME_NAME {
            return invalid("a volume's name has 1 to 255 bytes");
        }
        if entry.parameters.len() > MAX_PARAMETERS || entry.indexes.len() > usize::from(u8::MAX) {
            return invalid("a volume has at most 64 KiB of parameters and 255 indexes");
        }
        // Else no checkpoint could be made any more.
        if self.encoded_bytes() + entry.encoded_bytes() > byte_table::MAX_STRING_BYTES {
            return invalid("the volumes have more parameters together than the volume table holds");
        }
        if self.volumes.values().any(|v| v.name == entry.name) {
            let message = format!("there is a volume {} already", entry.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let id = self.next_id;
        let Some(next) = id.checked_add(1) else { return invalid("all volume numbers are used up") };
        self.next_id = next;
        self.volumes.insert(id, entry);
        Ok(id)
    }

    fn encoded_bytes(&self) -> usize {
        TABLE_HEADER_BYTES + self.volumes.values().map(VolumeEntry::encoded_bytes).sum::<usize>()
    }

    /// The bytes of the table.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.next_id.to_le_bytes());
        out.extend((self.volumes.len() as u32).to_le_bytes());
        for (id, volume) in &self.volumes {
            out.extend(id.to_le_bytes());
            out.extend(volume.flags.to_le_bytes());
            out.extend((volume.name.len() as u16).to_le_bytes());
            out.extend([volume.indexes.len() as u8, 0]);
            out.extend((volume.parameters.len() as u32).to_le_bytes());
            out.extend(volume.name.as_bytes());
            out.extend(&volume.parameters);
            for index in &volume.indexes {
                out.extend(index.node.map_or(0, |id| id.0).to_le_bytes());
                out.extend([index.height, 0, 0, 0]);
                out.extend((index.view.len() as u32).to_le_bytes());
                out.extend(&index.view);
            }
        }
        out
    }

    /// The table that [`Self::encode`] made; nothing at all is the empty table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut input = Input(bytes);
        let mut table = Self { next_id: input.u32()?, volumes: BTreeMap::new() };
        for _ in 0..input.u32()? {
            let id = input.u32()?;
            let fresh = id < table.next_id && table.volumes.last_key_value().is_none_or(|(l, _)| *l < id);
            if !fresh {
                return Err(Error::damaged("the volume table is not in order"));
            }
            table.volumes.insert(id, input.volume()?);
        }
        if input.0.is_empty() { Ok(table) } else { Err(Error::damaged("the volume table is too long")) }
    }
}

/// Reads fields from untrusted bytes.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, tail) =
            self.0.split_at_checked(len).ok_or_else(|| Error::damaged("the volume table is too short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut field = [0; N];
        field.copy_from_slice(self.take(N)?);
        Ok(field)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn string(&mut self, len: usize, most: usize) -> Result<Bytes> {
        if len > most {
            return Err(Error::damaged("a field of the volume table is too long"));
        }
        Ok(Bytes::copy_from_slice(self.take(len)?))
    }

    fn volume(&mut self) -> Result<VolumeEntry> {
        let flags = self.u32()?;
        let name_len = u16::from_le_bytes(self.array()?);
        let [count, _] = self.array()?;
        let parameters_len = self.u32()?;
        let name = self.string(name_len.into(), MAX_VOLUME_NAME)?;
        let name =
            String::from_utf8(name.into()).map_err(|_| Error::damaged("a volume's name is no text"))?;
        let parameters = self.string(parameters_len as usize, MAX_PARAMETERS)?;
        let indexes = (0..count).map(|_| self.index()).collect::<Result<_>>()?;
        Ok(VolumeEntry { flags, name, parameters, indexes })
    }

    fn index(&mut self) -> Result<IndexRoot> {
        let node = u64::from_le_bytes(self.array()?);
        let [height, ..] = self.array::<4>()?;
        let view_len = self.u32()?;
        let view = self.string(view_len as usize, MAX_VIEW_BYTES)?;
        Ok(IndexRoot { node: (node != 0).then_some(PieceId(node)), height, view })
    }
}
