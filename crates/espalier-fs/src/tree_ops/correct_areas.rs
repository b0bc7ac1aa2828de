//! Correction of link areas that are copies: files without a name in them are deleted, and the
//! right link counts stored.
//!
//! A copy shares all with its source, so what it holds without need costs nothing while the source
//! has it, too; to correct it costs a record for each file. So the background does that when room
//! is short ([`AreaCorrection`]). It looks through the links index for marks of stale areas, and
//! corrects each in steps that hold up other operations for a moment.

use crate::inode::node::Node;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::types::{AreaCorrection, NodeId};
use crate::namespace::context::Namespace;
use crate::references::HeldNode;
use crate::volume::link_index::StaleSearch;
use espalier_engine::Key;
use std::sync::Arc;
use std::time::Duration;

/// Room is short if less than one part in so many is free.
const SHORT_PART: u64 = 8;
/// So long one call looks for areas.
const SEARCH_TIME: Duration = Duration::from_millis(100);

/// Corrects areas, if it is time for that; called now and then, without locks. A call that has
/// looked for long enough leaves the rest to the next one.
///
/// # Errors
/// Of the store.
pub(crate) fn correct_areas(namespace: &Namespace) -> Result<()> {
    let (volume, areas) = (&namespace.volume, &namespace.areas);
    let always = volume.options.area_correction == AreaCorrection::Always;
    if !namespace.links.is_in_use() || !(always || is_room_short(namespace)) {
        return Ok(());
    }
    let begun = volume.env.monotonic();
    let in_time = || always || volume.env.monotonic().saturating_sub(begun) < SEARCH_TIME;
    let mut from = if always { Key::default() } else { areas.searched.lock().clone() };
    while in_time() {
        match namespace.links.find_stale(&from, in_time)? {
            StaleSearch::Found(prefix) => {
                if let Some(top) = directory_at(namespace, &prefix)? {
                    correct(namespace, &top)?;
                }
                // Its own mark is not found again; those of areas below are.
                from = [&prefix, &[0][..]].concat().into();
            }
            StaleSearch::Reached(key) => from = key,
            StaleSearch::End => {
                from = Key::default();
                break;
            }
        }
    }
    *areas.searched.lock() = from;
    Ok(())
}

fn is_room_short(namespace: &Namespace) -> bool {
    let space = namespace.volume.space();
    space.free.saturating_mul(SHORT_PART) < space.total
}

/// The directory with this content prefix, as long as it has a link area.
fn directory_at<'a>(namespace: &'a Namespace, prefix: &[u8]) -> Result<Option<HeldNode<'a>>> {
    let root = namespace.nodes.acquire(NodeId::ROOT).map(|root| namespace.references.adopt(root));
    let Some(mut at) = root else { return Ok(None) };
    for name in layout::names_of(prefix) {
        match namespace.lookup.find(&at, &name)? {
            Some(found) if found.is_dir() => at = found,
            _ => return Ok(None),
        }
    }
    Ok(Some(at).filter(|top| top.dir().has_link_area()))
}

/// Corrects the area of a directory.
fn correct(namespace: &Namespace, top: &Arc<Node>) -> Result<()> {
    let areas = &namespace.areas;
    let area = {
        let _tree = namespace.tree.shared();
        match top.link_area_directory() {
            Some(own) if own.id == top.id => areas.area_of(top)?,
            _ => return Ok(()),
        }
    };
    areas.load_link_counts(&area)?;
    let mut first = Some(0);
    while let Some(from) = first {
        let tree = namespace.tree.exclusive();
        // It may be removed by now, or its area dissolved.
        let is_there = !top.is_removed() && top.dir().has_link_area();
        first = if is_there { areas.correct_some(&tree, (top, &area), from)? } else { None };
    }
    Ok(())
}
