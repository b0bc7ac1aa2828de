//! Copies of files that have so many blocks that their copy is one clone.

use crate::run::Run;
use crate::tree::Id;
use espalier_fs::{FileFlags, FsErrorKind as Kind, NodeId, SetAttr};

const BLOCK: usize = 4096;
/// The copy of a file with more blocks is a clone.
const SINGLE_MAX_BLOCKS: usize = 64;
/// So many objects may be that large.
const MAX_LARGE: usize = 5;
/// What a program asks for that does not know how large a file is.
const ENDLESS: usize = 1 << 40;

/// Copies that a run made.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// From the beginning to the end of the source, as one clone.
    pub(crate) whole: usize,
    /// Up to a block before the end.
    pub(crate) beginnings: usize,
    /// As a clone behind what was copied before.
    pub(crate) continued: usize,
    /// The copy that comes next, up to so many bytes.
    planned: Option<(Id, Id, usize)>,
    /// The last copy, if it did not reach the end of its source.
    last: Option<(Id, Id)>,
}

impl Run {
    /// Mostly a copy of a large file; else another change of one. One call, as a crash may come
    /// between two.
    pub(crate) fn copy_large(&mut self) {
        if let Some((from, to, length)) = self.copied.planned.take()
            && let (Some(from), Some(to)) = (self.in_use(from), self.in_use(to))
        {
            return self.copy_between(from, to, (0, 0), length);
        }
        if let Some((from, to)) = self.copied.last.take()
            && let (Some(from), Some(to)) = (self.in_use(from), self.in_use(to))
        {
            return self.go_on(from, to);
        }
        let is_large = |id: &Id| self.tree.objects[*id].data.len() > SINGLE_MAX_BLOCKS * BLOCK;
        let large: Vec<(Id, NodeId)> =
            self.open.iter().map(|(id, node, _)| (*id, *node)).filter(|(id, _)| is_large(id)).collect();
        if large.is_empty() || self.random.chance(6) {
            return self.write_large();
        }
        let from = *self.random.pick(&large);
        let to = if self.is_crowded() { *self.random.pick(&large) } else { self.a_file() };
        let (size, present) = (self.tree.objects[from.0].data.len(), self.tree.objects[to.0].data.len());
        let piece = (SINGLE_MAX_BLOCKS + 1 + self.random.below(8)) * BLOCK + self.random.below(2);
        match self.random.below(6) {
            // As `cp` does: into a file that was made, or cut to nothing, for it.
            0 | 1 => self.plan_copy(from, to, ENDLESS),
            // In pieces, with other calls between them now and then.
            2 | 3 => self.plan_copy(from, to, piece),
            4 => self.copy_between(from, to, (0, 0), piece),
            _ => {
                let offset = self.random.below(size / BLOCK + 2) * BLOCK;
                let to_offset = *self.random.pick(&[offset, 0, BLOCK, present]);
                let length = self.random.below(size + BLOCK);
                self.copy_between(from, to, (offset, to_offset), length);
            }
        }
    }

    /// The next piece of a copy; or first a change of one of the files, or that piece of another.
    fn go_on(&mut self, from: (Id, NodeId), to: (Id, NodeId)) {
        let at = self.tree.objects[to.0].data.len();
        match self.random.below(5) {
            0 | 1 => {
                self.copied.last = Some((from.0, to.0));
                let offset = self.random.below(at + 1);
                let file = if self.random.chance(2) { from } else { to };
                self.write_at(file, offset, &[b'!'; 100]);
            }
            2 => {
                let other = self.a_file();
                self.copy_between(other, to, (at, at), ENDLESS);
            }
            _ => self.copy_between(from, to, (at, at), ENDLESS),
        }
    }

    fn write_at(&mut self, (id, node): (Id, NodeId), offset: usize, data: &[u8]) {
        self.last = format!("write {} bytes at {offset} of {id}", data.len());
        let expected = self.tree.write(id, offset, data, false);
        let got = self.ask(|fs| fs.write(node, offset as u64, data, false));
        self.same("write", got, expected);
    }

    /// Cuts a file to nothing, into which another one is copied next.
    fn plan_copy(&mut self, from: (Id, NodeId), to: (Id, NodeId), length: usize) {
        if from.0 != to.0 {
            self.set(to.0, to.1, &SetAttr { size: Some(0), ..Default::default() });
            self.copied.planned = Some((from.0, to.0, length));
        }
    }

    /// An object with its node, if it is in use still.
    fn in_use(&self, id: Id) -> Option<(Id, NodeId)> {
        self.open.iter().find(|(of, ..)| *of == id).map(|(id, node, _)| (*id, *node))
    }

    /// True if there are many large objects already, in use or not.
    fn is_crowded(&self) -> bool {
        let large = |data: &Vec<u8>| data.len() > SINGLE_MAX_BLOCKS * BLOCK;
        self.tree.objects.iter().filter(|object| large(&object.data)).count() >= MAX_LARGE
    }

    /// Makes a file large, mostly with a hole in it.
    fn write_large(&mut self) {
        if self.is_crowded() {
            return self.write();
        }
        let file = self.a_file();
        let byte = self.random.next() as u8;
        // Of one piece that is a clone, or two.
        let blocks = *self.random.pick(&[SINGLE_MAX_BLOCKS, 2 * SINGLE_MAX_BLOCKS + 9]);
        let len = (blocks + self.random.below(8)) * BLOCK + self.random.below(BLOCK);
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 7) as u8)).collect();
        let offset = *self.random.pick(&[0, 0, 3 * BLOCK, 5 * BLOCK + 17]);
        self.write_at(file, offset, &data);
    }

    /// One call, which may copy less than it is asked for.
    fn copy_between(
        &mut self,
        (from, from_node): (Id, NodeId),
        (to, to_node): (Id, NodeId),
        (offset, to_offset): (usize, usize),
        length: usize,
    ) {
        self.last = format!("copy up to {length} bytes from {offset} of {from} to {to_offset} of {to}");
        let kill = self.random.chance(2);
        let args = (offset as u64, to_offset as u64, length as u64);
        let got = self.ask(|fs| fs.copy_file_range(from_node, args.0, to_node, args.1, args.2, kill));
        let what = format!("seed {}, step {}: {}: {got:?}", self.seed, self.step, self.last);
        let (size, before) = (self.tree.objects[from].data.len(), self.tree.objects[to].data.len());
        let asked = got.as_ref().map_or(length, |copied| *copied as usize).min(size);
        let overlap = from == to && offset < to_offset + length && to_offset < offset + length;
        let data = match overlap {
            true => Err(Kind::Invalid),
            false if length == 0 => Ok(Vec::new()),
            false => self.tree.read(from, offset, asked),
        };
        let available = size.saturating_sub(offset).min(length);
        assert!(
            got.as_ref().is_ok_and(|copied| (*copied > 0) == (available > 0)) || got.is_err(),
            "{what} of {available}"
        );
        let expected = data.and_then(|data| match data.is_empty() {
            true => Ok(0),
            false => self.tree.write(to, to_offset, &data, kill),
        });
        let Some(copied) = self.same("copy_file_range", got, expected.map(|n| n as u64)) else { return };
        let copied = copied as usize;
        let object = &self.tree.objects[to];
        if copied > 0 && object.flags.has(FileFlags::SYNC) && object.names > 0 {
            self.synced = Some(Some(to));
        }
        if copied > SINGLE_MAX_BLOCKS * BLOCK && offset == to_offset && before <= offset + copied {
            let is_whole = offset + copied == size;
            self.copied.whole += usize::from(offset == 0 && is_whole);
            self.copied.beginnings += usize::from(offset == 0 && !is_whole);
            self.copied.continued += usize::from(offset > 0 && before == offset);
            self.copied.last = (!is_whole).then_some((from, to));
        }
    }
}
