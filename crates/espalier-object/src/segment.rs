//! Segments: blocks that were written, on their way into an object.
//!
//! Protocol: a [`SegmentBuilder`] takes blocks until it is full or a sync wants it; then it is
//! sealed and uploaded as a [`Segment`], whose bytes never change. What of it is in memory is read
//! from there; once the server has acknowledged it, the memory may go.

use crate::bucket::{Condition, Failure, FailureKind, Request, Ticket};
use crate::format::{FRAME_BLOCKS, Header, NewObject, ObjectId, ObjectKind, frame_bytes, frame_sum, trailer};
use crate::requests::Requests;
use bytes::Bytes;
use espalier_storage::BLOCK;
use espalier_sync::Mutex;

/// Blocks and what they are copies of, not sealed yet.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    id: ObjectId,
    nonce: u64,
    /// Up to [`FRAME_BLOCKS`] blocks each.
    frames: Vec<Vec<u8>>,
    /// The number on the device of each block.
    blocks: Vec<u64>,
}

impl SegmentBuilder {
    /// An empty one.
    pub(crate) fn new(id: ObjectId, nonce: u64) -> Self {
        Self { id, nonce, frames: Vec::new(), blocks: Vec::new() }
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// How many blocks it has.
    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Adds a block; the next one follows it.
    pub(crate) fn push(&mut self, number: u64, block: &[u8]) {
        debug_assert_eq!(block.len(), BLOCK);
        if self.blocks.len().is_multiple_of(FRAME_BLOCKS as usize) {
            self.frames.push(Vec::with_capacity(frame_bytes(FRAME_BLOCKS)));
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.extend_from_slice(block);
            self.blocks.push(number);
        }
    }

    /// The bytes of block `index`.
    pub(crate) fn block(&self, index: u32) -> Option<&[u8]> {
        let at = (index % FRAME_BLOCKS) as usize * BLOCK;
        self.frames.get((index / FRAME_BLOCKS) as usize)?.get(at..at + BLOCK)
    }

    /// The same, to be overwritten.
    pub(crate) fn block_mut(&mut self, index: u32) -> Option<&mut [u8]> {
        let at = (index % FRAME_BLOCKS) as usize * BLOCK;
        self.frames.get_mut((index / FRAME_BLOCKS) as usize)?.get_mut(at..at + BLOCK)
    }

    /// Its final bytes.
    pub(crate) fn seal(self) -> Segment {
        let mut index: Vec<(u64, u32)> = Vec::new();
        for number in &self.blocks {
            match index.last_mut() {
                Some((first, blocks)) if *first + u64::from(*blocks) == *number => *blocks += 1,
                _ => index.push((*number, 1)),
            }
        }
        let blocks = self.blocks.len() as u32;
        let header = Header { id: self.id, nonce: self.nonce, kind: ObjectKind::Data, blocks, index };
        let header = Bytes::from(header.encode());
        let frames = self.frames.into_iter().zip(0..).map(|(mut frame, number)| {
            let sum = frame_sum(self.id, self.nonce, number, &frame);
            frame.extend_from_slice(&trailer(sum));
            Bytes::from(frame)
        });
        let body: Vec<Bytes> = std::iter::once(header.clone()).chain(frames).collect();
        let object = NewObject {
            id: self.id,
            nonce: self.nonce,
            kind: ObjectKind::Data,
            blocks,
            header_bytes: header.len() as u32,
            bytes: body.iter().map(Bytes::len).sum::<usize>() as u32,
        };
        Segment { object, body, upload: Mutex::new(Upload::Waiting) }
    }
}

/// A segment whose bytes are final.
pub(crate) struct Segment {
    pub(crate) object: NewObject,
    /// The header, then the frames.
    body: Vec<Bytes>,
    upload: Mutex<Upload>,
}

enum Upload {
    Waiting,
    UnderWay(Box<dyn Ticket>),
    Done,
    Failed(Failure),
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({:?})", self.object)
    }
}

impl Segment {
    /// The bytes of block `index`.
    pub(crate) fn block(&self, index: u32) -> Option<&[u8]> {
        let at = (index % FRAME_BLOCKS) as usize * BLOCK;
        let frame = self.body.get(1 + (index / FRAME_BLOCKS) as usize)?;
        if index < self.object.blocks { frame.get(at..at + BLOCK) } else { None }
    }

    /// Its frames with their trailers, by number.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (u32, &Bytes)> {
        (0..).zip(self.body.iter().skip(1))
    }

    /// All its bytes.
    #[cfg(test)]
    pub(crate) fn body(&self) -> Vec<Bytes> {
        self.body.clone()
    }

    fn put(&self) -> Request {
        Request::Put { name: self.object.name(), body: self.body.clone(), condition: Condition::None }
    }

    /// Begins the upload.
    pub(crate) fn begin_upload(&self, requests: &Requests) {
        let mut upload = self.upload.lock();
        if matches!(*upload, Upload::Waiting) {
            *upload = Upload::UnderWay(requests.begin(&self.put()));
        }
    }

    /// Gives an upload up; true if it was begun, so that the server may have the segment. What is
    /// under way has ended then, unless it is given up because the device ends, and nothing is sent
    /// again. For a segment that no root names.
    pub(crate) fn give_up(&self, requests: &Requests) -> bool {
        let given_up = Failure::new(FailureKind::Unknown, "the upload of a segment was given up");
        match std::mem::replace(&mut *self.upload.lock(), Upload::Failed(given_up)) {
            Upload::Waiting => return false,
            // Whatever it says, the server may have it.
            Upload::UnderWay(ticket) => drop(requests.wait(ticket, &self.put())),
            Upload::Done | Upload::Failed(_) => {}
        }
        true
    }

    /// Returns when the server has acknowledged it.
    ///
    /// # Errors
    /// If it did not, however often it was tried; the same from then on.
    pub(crate) fn finish_upload(&self, requests: &Requests) -> Result<(), Failure> {
        let mut upload = self.upload.lock();
        // What a panic leaves behind must not look as if the server had acknowledged it.
        let half_way = Failure::new(FailureKind::Unknown, "the upload of a segment ended half-way");
        let outcome = match std::mem::replace(&mut *upload, Upload::Failed(half_way)) {
            Upload::Done => Ok(()),
            Upload::Failed(failure) => Err(failure),
            Upload::Waiting => requests.call(&self.put()).map(drop),
            Upload::UnderWay(ticket) => requests.finish(ticket, &self.put()).map(drop),
        };
        *upload = match &outcome {
            Ok(()) => Upload::Done,
            Err(failure) => Upload::Failed(failure.clone()),
        };
        outcome
    }
}
