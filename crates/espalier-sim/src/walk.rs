//! Cursors, compared with a walk over a sorted list.

use crate::failure::ensure;
use crate::model::{show, show_range};
use crate::{Model, Outcome};
use bytes::Bytes;
use espalier_engine::{Cursor, KeyRange};

/// One movement of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// So many entries up.
    Next(usize),
    /// So many entries down.
    Prev(usize),
    /// To the gap before a key.
    Seek(Bytes),
    /// Behind the last entry.
    SeekToEnd,
}

/// A cursor over a list.
#[derive(Debug, Clone)]
pub struct Reference {
    entries: Vec<(Bytes, Bytes)>,
    /// The gap where it stands: before this entry.
    at: usize,
}

impl Reference {
    /// A walk over a range of one index of `model`.
    pub fn new(model: &Model, slot: usize, range: &KeyRange) -> Self {
        let entries = model.entries(slot, range).map(|(k, v)| (k.clone(), v.clone())).collect();
        Self { entries, at: 0 }
    }

    fn next(&mut self) -> Option<&(Bytes, Bytes)> {
        let entry = self.entries.get(self.at)?;
        self.at += 1;
        Some(entry)
    }

    fn prev(&mut self) -> Option<&(Bytes, Bytes)> {
        self.at = self.at.checked_sub(1)?;
        self.entries.get(self.at)
    }

    /// Moves `cursor` in the same way and compares what they see.
    ///
    /// # Errors
    /// If they differ, and errors of the store.
    pub fn walk(&mut self, cursor: &mut Cursor, moves: &[Move]) -> Outcome {
        for (i, movement) in moves.iter().enumerate() {
            self.follow(cursor, movement)
                .map_err(|e| e.during(format_args!("move {i} of a cursor, {movement:?}")))?;
        }
        Ok(())
    }

    fn follow(&mut self, cursor: &mut Cursor, movement: &Move) -> Outcome {
        match movement {
            Move::Seek(key) => {
                cursor.seek(key);
                self.at = self.entries.partition_point(|(k, _)| k < key);
            }
            Move::SeekToEnd => {
                cursor.seek_to_end();
                self.at = self.entries.len();
            }
            Move::Next(count) => {
                for _ in 0..*count {
                    let found = cursor.next()?;
                    compare(self.next(), found, cursor)?;
                }
            }
            Move::Prev(count) => {
                for _ in 0..*count {
                    let found = cursor.prev()?;
                    compare(self.prev(), found, cursor)?;
                }
            }
        }
        Ok(())
    }
}

fn compare(
    expected: Option<&(Bytes, Bytes)>,
    found: Option<espalier_engine::Entry>,
    cursor: &Cursor,
) -> Outcome {
    let found = match found {
        Some(entry) => {
            let bytes = cursor.read(&entry.value)?;
            ensure!(
                bytes.len() == entry.value.len(),
                "a value of {} bytes reads as {}",
                entry.value.len(),
                bytes.len()
            );
            Some((Bytes::copy_from_slice(&entry.key), bytes))
        }
        None => None,
    };
    let text = |entry: Option<&(Bytes, Bytes)>| {
        entry.map_or_else(|| "nothing".to_owned(), |(k, v)| format!("{} = {}", show(k), show(v)))
    };
    ensure!(expected == found.as_ref(), "expected {}, found {}", text(expected), text(found.as_ref()));
    Ok(())
}

/// Walks over all of a range, upward and downward.
///
/// # Errors
/// If the store differs from the model, and errors of the store.
pub(crate) fn walk_all(model: &Model, slot: usize, range: &KeyRange, mut cursor: Cursor) -> Outcome {
    let mut reference = Reference::new(model, slot, range);
    // One more than there are, to see the end.
    let count = reference.entries.len() + 1;
    let moves = [Move::Next(count), Move::Prev(count), Move::SeekToEnd, Move::Prev(1)];
    reference
        .walk(&mut cursor, &moves)
        .map_err(|e| e.during(format_args!("all of {} in index {slot}", show_range(range))))
}
