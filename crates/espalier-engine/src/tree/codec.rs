//! Node headers as bytes; `docs/format.md`, section "Node headers", has the table.

use crate::message::range_messages::RangeOps;
use crate::model::ids::{Msn, PieceId};
use crate::model::key::{Key, KeyRange};
use crate::model::op::{RangeOp, Update};
use crate::model::piece::PieceHandle;
use crate::model::view::View;
use crate::pieces::Filter;
use crate::pieces::wire::{Reader, put_varint};
use crate::space::Locator;
use crate::tree::node::{Body, Child, Edge, Node, NodeSlot};
use crate::tree::part_slot::{PartSlot, PartSummary, StoredPart};
use crate::tree::run::{Run, ViewedPart};
use crate::{Error, Result};
use std::sync::Arc;

const LEAF: u8 = 0;
const INTERIOR: u8 = 1;

/// What a view has that the identity has not.
const VIEW_FROM: u8 = 1;
const VIEW_TO: u8 = 2;
const VIEW_START: u8 = 4;
const VIEW_END: u8 = 8;

const RANGE_DELETE: u8 = 0;
const RANGE_UPDATE: u8 = 1;

/// More bytes of values than a header can name of one value part.
const MAX_NAMED_VALUE_BYTES: u64 = 1 << 40;

/// The header's body, and handles on what it refers to. Everything below must be stored.
pub(crate) fn encode(node: &Node) -> Result<(Vec<u8>, Vec<Arc<PieceHandle>>)> {
    let mut out = HeaderEncoder { bytes: Vec::new(), holds: Vec::new(), previous: Key::default() };
    match &node.body {
        Body::Leaf(run) => {
            out.bytes.push(LEAF);
            out.run(run)?;
        }
        Body::Interior { pivots, edges } => {
            out.bytes.push(INTERIOR);
            out.number(edges.len() as u64);
            for (i, edge) in edges.iter().enumerate() {
                if let Some(pivot) = i.checked_sub(1).map(|i| &pivots[i]) {
                    out.key(pivot);
                }
                out.edge(edge)?;
            }
        }
    }
    Ok((out.bytes, out.holds))
}

struct HeaderEncoder {
    bytes: Vec<u8>,
    holds: Vec<Arc<PieceHandle>>,
    /// Keys are written as the difference to the one before.
    previous: Key,
}

impl HeaderEncoder {
    fn number(&mut self, number: u64) {
        put_varint(&mut self.bytes, number);
    }

    fn key(&mut self, key: &[u8]) {
        let shared = crate::model::key::common_prefix_len(&self.previous, key);
        self.number(shared as u64);
        self.text(&key[shared..]);
        self.previous = key.into();
    }

    fn text(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn view(&mut self, view: &View) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(!view.from.is_empty(), VIEW_FROM)
            | flag(!view.to.is_empty(), VIEW_TO)
            | flag(!view.bounds.start.is_empty(), VIEW_START)
            | flag(view.bounds.end.is_some(), VIEW_END);
        self.bytes.push(flags);
        if flags & VIEW_FROM != 0 {
            self.text(&view.from);
        }
        if flags & VIEW_TO != 0 {
            self.text(&view.to);
        }
        if flags & VIEW_START != 0 {
            self.text(&view.bounds.start);
        }
        if let Some(end) = &view.bounds.end {
            self.text(end);
        }
    }

    fn edge(&mut self, edge: &Edge) -> Result<()> {
        match &edge.child {
            None => self.number(0),
            Some(child) => {
                let handle = child.slot.place().ok_or_else(unwritten)?;
                self.number(handle.id().0);
                self.holds.push(handle);
                self.number(child.weight);
                self.view(&child.view);
            }
        }
        self.number(edge.runs.len() as u64);
        edge.runs.iter().try_for_each(|run| self.run(run))
    }

    fn run(&mut self, run: &Run) -> Result<()> {
        self.number(run.parts.len() as u64);
        for part in &run.parts {
            let stored = part.slot.place().ok_or_else(unwritten)?;
            let summary = &part.slot.summary;
            self.number(stored.handle.id().0);
            self.key(&summary.first);
            self.key(&summary.last);
            self.number(summary.entries.into());
            self.number(summary.bytes.into());
            self.number(summary.value_bytes);
            let filter = summary.filter.to_bytes();
            self.text(&filter);
            self.number(stored.values.len() as u64);
            for (value, bytes) in stored.values.iter() {
                self.number(value.0);
                self.number(*bytes);
            }
            self.view(&part.view);
            self.holds.push(stored.handle);
        }
        self.number(run.ranges.len() as u64);
        for (range, ops) in run.ranges.iter() {
            self.range(&range, ops);
        }
        Ok(())
    }

    fn range(&mut self, range: &KeyRange, ops: &RangeOps) {
        self.key(&range.start);
        match &range.end {
            None => self.bytes.push(0),
            Some(end) => {
                self.bytes.push(1);
                self.key(end);
            }
        }
        self.number(ops.len() as u64);
        for (msn, op) in ops {
            self.number(msn.0);
            match op {
                RangeOp::Delete => self.bytes.push(RANGE_DELETE),
                RangeOp::Update(update) => {
                    self.bytes.push(RANGE_UPDATE);
                    self.number(update.function.into());
                    self.text(&update.argument);
                }
            }
        }
    }
}

fn unwritten() -> Error {
    Error::damaged("a header refers to a piece that is not on the device")
}

/// The node that the header `id` of height `height` with this body is.
///
/// # Errors
/// [`crate::ErrorKind::Damaged`] for anything that `encode` does not write.
pub(crate) fn decode(id: PieceId, height: u8, body: &[u8], locator: &dyn Locator) -> Result<Node> {
    let mut decoder = HeaderDecoder { reader: Reader::new(body), previous: Vec::new(), locator };
    let node = decoder.node(height).filter(|_| decoder.reader.remaining() == 0);
    node.ok_or_else(|| Error::damaged(format!("node {id}: its header cannot be decoded")))
}

struct HeaderDecoder<'a> {
    reader: Reader<'a>,
    previous: Vec<u8>,
    locator: &'a dyn Locator,
}

impl HeaderDecoder<'_> {
    fn node(&mut self, height: u8) -> Option<Node> {
        let body = match (self.reader.u8()?, height) {
            (LEAF, 0) => {
                let run = self.run()?;
                run.ranges.is_empty().then(|| Body::Leaf(Arc::new(run)))?
            }
            (INTERIOR, 1..) => self.interior()?,
            _ => return None,
        };
        Some(Node { height, body })
    }

    fn interior(&mut self) -> Option<Body> {
        let count = self.count()?;
        let (mut pivots, mut edges): (Vec<Key>, Vec<Edge>) = (Vec::new(), Vec::new());
        for i in 0..count {
            if i > 0 {
                let pivot = self.key()?;
                if pivots.last().is_some_and(|last| *last >= pivot) {
                    return None;
                }
                pivots.push(pivot);
            }
            edges.push(self.edge()?);
        }
        (count > 0).then_some(Body::Interior { pivots, edges })
    }

    /// A number of things of at least one byte each, so that it bounds what is allocated.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.reader.varint()?).ok()?;
        (count <= self.reader.remaining()).then_some(count)
    }

    fn text(&mut self) -> Option<Key> {
        let len = usize::try_from(self.reader.varint()?).ok()?;
        self.reader.bytes(len).map(Into::into)
    }

    fn key(&mut self) -> Option<Key> {
        let shared = usize::try_from(self.reader.varint()?).ok()?;
        let len = usize::try_from(self.reader.varint()?).ok()?;
        let rest = self.reader.bytes(len)?;
        if shared > self.previous.len() {
            return None;
        }
        self.previous.truncate(shared);
        self.previous.extend_from_slice(rest);
        Some(self.previous.clone().into())
    }

    fn view(&mut self) -> Option<View> {
        let flags = self.reader.u8()?;
        if flags >= VIEW_END << 1 {
            return None;
        }
        let mut view = View::identity();
        if flags & VIEW_FROM != 0 {
            view.from = self.text()?;
        }
        if flags & VIEW_TO != 0 {
            view.to = self.text()?;
        }
        if flags & VIEW_START != 0 {
            view.bounds.start = self.text()?;
        }
        if flags & VIEW_END != 0 {
            view.bounds.end = Some(self.text()?);
        }
        Some(view)
    }

    fn edge(&mut self) -> Option<Edge> {
        let child = match self.reader.varint()? {
            0 => None,
            id => {
                let handle = self.locator.handle(PieceId(id));
                let weight = self.reader.varint()?;
                Some(Child { slot: NodeSlot::stored(handle), view: self.view()?, weight })
            }
        };
        let count = self.count()?;
        let mut runs = Vec::new();
        for _ in 0..count {
            runs.push(Arc::new(self.run()?));
        }
        Some(Edge { child, runs })
    }

    fn run(&mut self) -> Option<Run> {
        let mut run = Run::default();
        for _ in 0..self.count()? {
            let part = self.part()?;
            let overlaps = |last: &Arc<ViewedPart>| last.last.as_ref().unwrap_or(&last.first) > &part.first;
            if run.parts.last().is_some_and(overlaps) {
                return None;
            }
            run.parts.push(Arc::new(part));
        }
        for _ in 0..self.count()? {
            let (range, ops) = self.range()?;
            run.ranges.push_fragment(range, ops);
        }
        Some(run)
    }

    fn part(&mut self) -> Option<ViewedPart> {
        let id = PieceId(self.reader.varint()?);
        let (first, last) = (self.key()?, self.key()?);
        let (entries, bytes, value_bytes) =
            (self.reader.varint32()?, self.reader.varint32()?, self.reader.varint()?);
        let filter = Filter::from_bytes(&self.text()?).ok()?;
        let mut values = Vec::new();
        for _ in 0..self.count()? {
            let part = PieceId(self.reader.varint()?);
            let bytes = self.reader.varint()?;
            // No more than one header can name of one part.
            if bytes > MAX_NAMED_VALUE_BYTES {
                return None;
            }
            values.push((part, bytes));
        }
        let view = self.view()?;
        let summary = PartSummary { first, last, entries, bytes, value_bytes, filter };
        let stored = StoredPart { handle: self.locator.handle(id), values: values.into() };
        ViewedPart::viewed(PartSlot::stored(summary, stored), view)
    }

    fn range(&mut self) -> Option<(KeyRange, RangeOps)> {
        let start = self.key()?;
        let end = match self.reader.u8()? {
            0 => None,
            1 => Some(self.key()?),
            _ => return None,
        };
        let range = KeyRange { start, end };
        let mut ops = RangeOps::new();
        for _ in 0..self.count()? {
            let msn = Msn(self.reader.varint()?);
            let op = match self.reader.u8()? {
                RANGE_DELETE => RangeOp::Delete,
                RANGE_UPDATE => {
                    let function = u16::try_from(self.reader.varint()?).ok()?;
                    RangeOp::Update(Update { function, argument: self.text()?.into_vec().into() })
                }
                _ => return None,
            };
            ops.push((msn, op));
        }
        (!range.is_empty() && !ops.is_empty()).then_some((range, ops))
    }
}
