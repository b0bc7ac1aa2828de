//! The frame around a piece on the device: a header that says what the bytes are, then the body,
//! compressed if that saves a device block.
//!
//! Value parts have no frame: their bytes are the values.
//!
//! Invariants: the checksum in the piece's [`Location`] has been compared before [`open`] is
//! called, so what fails here is damage that was there before the checksum was made, or another
//! piece. Whatever the bytes are, opening them allocates at most [`MAX_BODY_BYTES`] bytes and never
//! panics.

use super::wire::Reader;
use crate::model::ids::Location;
use crate::model::options::Compression;
use crate::model::piece::PieceHandle;
use crate::{Error, ErrorKind, Extent, PieceId, PieceKind, Result};
use bytes::Bytes;
use espalier_storage::{AlignedBuf, BLOCK};
use std::cell::RefCell;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the header.
const FRAME_HEADER_BYTES: usize = 24;

/// The longest body of a piece in bytes, uncompressed.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;

const MAGIC: [u8; 4] = *b"ESPL";
const VERSION: u8 = 1;
const KIND_NODE: u8 = 1;
const KIND_KEY_VALUE: u8 = 2;

/// Level for zstd: the fastest that still beats lz4 by much on keys and attributes.
const ZSTD_LEVEL: i32 = 1;

/// A piece ready to be written: whole device blocks.
pub(crate) struct Encoded {
    id: PieceId,
    kind: PieceKind,
    bytes: AlignedBuf,
    len: u32,
    checksum: u64,
    holds: Vec<Arc<PieceHandle>>,
}

impl Encoded {
    /// Frames `body`. `holds` are the handles on pieces it refers to that must live as long as it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for bodies of more than [`MAX_BODY_BYTES`] bytes.
    pub(crate) fn new(
        id: PieceId,
        kind: PieceKind,
        body: &[u8],
        compression: Compression,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Self> {
        if body.len() > MAX_BODY_BYTES {
            let message = format!("piece {id} would have {} bytes, more than {MAX_BODY_BYTES}", body.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let plain_blocks = (FRAME_HEADER_BYTES + body.len()).div_ceil(BLOCK);
        let compressed = match compression {
            Compression::Lz4 if plain_blocks > 1 => Some(lz4_flex::block::compress(body)),
            Compression::Zstd if plain_blocks > 1 => zstd_compress(body),
            _ => None,
        }
        .filter(|c| (FRAME_HEADER_BYTES + c.len()).div_ceil(BLOCK) < plain_blocks);
        let (used, stored) = match &compressed {
            Some(compressed) => (compression, compressed.as_slice()),
            None => (Compression::None, body),
        };
        let len = FRAME_HEADER_BYTES + stored.len();
        let mut bytes = AlignedBuf::zeroed(len.next_multiple_of(BLOCK));
        bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header(id, kind, used, body.len(), stored.len()));
        bytes[FRAME_HEADER_BYTES..len].copy_from_slice(stored);
        let checksum = checksum(id, &bytes[..len]);
        Ok(Self { id, kind, bytes, len: len as u32, checksum, holds })
    }

    /// Device blocks it takes.
    pub(crate) fn blocks(&self) -> u32 {
        (self.bytes.len() / BLOCK) as u32
    }

    /// Its id.
    pub(crate) fn id(&self) -> PieceId {
        self.id
    }

    /// What the device gets: whole blocks.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the node translation table gets once the bytes lie in `extent`.
    pub(crate) fn location(&self, extent: Extent) -> Location {
        Location { extent, len: self.len, checksum: self.checksum, kind: self.kind, scattered: false }
    }

    /// Gives up the handles on what it refers to.
    pub(crate) fn into_holds(self) -> Vec<Arc<PieceHandle>> {
        self.holds
    }
}

/// The checksum of a framed piece: over its stored bytes, header included.
pub(crate) fn checksum(id: PieceId, stored: &[u8]) -> u64 {
    xxh3_64_with_seed(stored, id.0)
}

/// The error for a piece that is of another kind than what refers to it says.
pub(super) fn not_a(id: PieceId, what: &str) -> Error {
    Error::damaged(format!("piece {id} is referred to as a {what}, but is none"))
}

/// The body of the piece with the stored bytes `stored` (verified, without padding).
///
/// # Errors
/// [`ErrorKind::NewerFormat`], or [`ErrorKind::Damaged`] if they are not the piece `id` of this
/// kind.
pub(crate) fn open(id: PieceId, kind: PieceKind, stored: &Bytes) -> Result<Bytes> {
    let damaged = |what: &str| Error::damaged(format!("piece {id}: {what}"));
    let mut reader = Reader::new(stored);
    let head = FrameHead::read(&mut reader).ok_or_else(|| damaged("shorter than its header"))?;
    if head.magic != MAGIC {
        return Err(damaged("no piece begins like this"));
    }
    if head.version > VERSION {
        let message = format!("piece {id} has version {}, this program knows {VERSION}", head.version);
        return Err(Error::new(ErrorKind::NewerFormat, message));
    }
    if head.id != id.0 {
        return Err(damaged(&format!("it is piece #{}", head.id)));
    }
    if (head.kind, head.height) != kind_bytes(kind) {
        return Err(damaged(&format!("it is of kind {} height {}, not {kind:?}", head.kind, head.height)));
    }
    if head.stored as usize != reader.remaining() || head.body as usize > MAX_BODY_BYTES {
        return Err(damaged("its lengths contradict each other"));
    }
    let body = stored.slice(FRAME_HEADER_BYTES..);
    let length = head.body as usize;
    match head.compression {
        0 if length == body.len() => Ok(body),
        1 => lz4_decompress(&body, length).ok_or_else(|| damaged("its lz4 data cannot be read")),
        2 => zstd_decompress(&body, length).ok_or_else(|| damaged("its zstd data cannot be read")),
        0 => Err(damaged("its lengths contradict each other")),
        other => Err(damaged(&format!("compression {other} is unknown"))),
    }
}

struct FrameHead {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    height: u8,
    compression: u8,
    id: u64,
    body: u32,
    stored: u32,
}

impl FrameHead {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            magic: reader.bytes(4)?.try_into().ok()?,
            version: reader.u8()?,
            kind: reader.u8()?,
            height: reader.u8()?,
            compression: reader.u8()?,
            id: reader.u64()?,
            body: reader.u32()?,
            stored: reader.u32()?,
        })
    }
}

fn header(
    id: PieceId,
    kind: PieceKind,
    compression: Compression,
    body: usize,
    stored: usize,
) -> [u8; FRAME_HEADER_BYTES] {
    let (kind, height) = kind_bytes(kind);
    let compression = match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    };
    let mut out = [0; FRAME_HEADER_BYTES];
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&[VERSION, kind, height, compression]);
    out[8..16].copy_from_slice(&id.0.to_le_bytes());
    out[16..20].copy_from_slice(&(body as u32).to_le_bytes());
    out[20..24].copy_from_slice(&(stored as u32).to_le_bytes());
    out
}

fn kind_bytes(kind: PieceKind) -> (u8, u8) {
    match kind {
        PieceKind::Node(height) => (KIND_NODE, height),
        PieceKind::KeyValue => (KIND_KEY_VALUE, 0),
        // Never framed; no header has this byte, so one that claims to be is refused.
        PieceKind::Values => (0, 0),
    }
}

fn lz4_decompress(compressed: &[u8], length: usize) -> Option<Bytes> {
    // One byte of lz4 stands for at most 255: a longer claim is false, and not worth the memory.
    if length > compressed.len().saturating_mul(255) {
        return None;
    }
    let mut body = vec![0; length];
    let got = lz4_flex::block::decompress_into(compressed, &mut body).ok()?;
    (got == length).then(|| body.into())
}

thread_local! {
    // Contexts are expensive to make and hold no state between calls.
    static ZSTD_COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static ZSTD_DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// `None` if zstd cannot, for lack of memory for instance: the body is stored as it is then.
fn zstd_compress(body: &[u8]) -> Option<Vec<u8>> {
    ZSTD_COMPRESSOR.with_borrow_mut(|context| {
        if context.is_none() {
            *context = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        context.as_mut()?.compress(body).ok()
    })
}

fn zstd_decompress(compressed: &[u8], length: usize) -> Option<Bytes> {
    ZSTD_DECOMPRESSOR.with_borrow_mut(|context| {
        if context.is_none() {
            *context = zstd::bulk::Decompressor::new().ok();
        }
        let mut body = Vec::with_capacity(length);
        let got = context.as_mut()?.decompress_to_buffer(compressed, &mut body).ok()?;
        (got == length).then(|| body.into())
    })
}
