//! What a batch changes in the eyes of users, by its keys.

use crate::model::layout::{self, METADATA};
use crate::model::merge::MARK_OWNED;
use crate::model::record::is_directory;
use crate::volume::directory_keys::{common_directory, directories_above};
use espalier_engine::{Batch, KeyRange, Op, RangeOp, Touch};
use std::collections::BTreeSet;

/// A change to be noted.
pub(super) enum Event {
    /// An entry is new, changed or gone.
    Entry(Box<[u8]>),
    /// Everything below a content prefix changed.
    Tree(Vec<u8>),
    /// A range of keys is gone.
    Gone(KeyRange),
    /// What begins with the first prefix appears below the second.
    Cloned(Box<[u8]>, Box<[u8]>),
}

/// What a batch does to entries and directories, in order.
pub(super) fn events_of(batch: &Batch) -> Vec<Event> {
    let mut events = Vec::new();
    // A directory is stored anew with each entry that comes or goes, which is noted by its own key.
    let around: BTreeSet<&[u8]> = batch
        .touches()
        .filter_map(|touch| match touch {
            Touch::Key { index, key, .. } if index.index == METADATA => directories_above(key).last(),
            _ => None,
        })
        .collect();
    for touch in batch.touches() {
        match touch {
            Touch::Key { index, key, op, is_new } if index.index == METADATA => {
                let is_counted = matches!(op, Op::Insert(value)
                    if !is_new && value.in_memory().is_some_and(|entry| is_directory(&entry)))
                    && content_of(key).is_none_or(|content| around.contains(&*content));
                if !is_counted {
                    events.push(Event::Entry(key.into()));
                }
            }
            Touch::Range { index, range, op } if index.index == METADATA => match op {
                RangeOp::Delete => events.push(Event::Gone(range.clone())),
                RangeOp::Update(update) if update.function == MARK_OWNED => {}
                RangeOp::Update(_) => events.push(Event::Tree(common_directory(range).to_vec())),
            },
            Touch::Clone { index, source, destination } if index.index == METADATA => {
                events.push(Event::Cloned(source.into(), destination.into()));
            }
            _ => {}
        }
    }
    events
}

/// The content prefix of the directory whose entry has this key; `None` for the root.
pub(super) fn content_of(key: &[u8]) -> Option<Vec<u8>> {
    let above = directories_above(key).last()?;
    let name = key[above.len()..].strip_prefix(&[0]).filter(|name| !name.is_empty())?;
    Some([above, name, &[layout::CONTENT]].concat())
}
