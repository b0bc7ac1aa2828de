//! Nodes by id alone: what a file handle of the kernel names.
//!
//! The kernel asks for the id of a handle when it has dropped the file. If the node has left memory
//! too, the table remembers its directory and its name there ([`crate::inode::forgotten`]), or a
//! record in the store says them ([`crate::inode::saved_locations`]), and so on up to a directory
//! in memory; from there the names are looked up. An entry counts only if it
//! has the id that was remembered for it. So the answer is the file that had this id, or
//! [`FsErrorKind::Stale`]; never another one.

use crate::inode::forgotten::Location;
use crate::inode::node::{Node, Orphan, Role};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::{Entry, MAX_KEY, NodeId};
use crate::namespace::lookup::Lookup;
use crate::references::HeldNode;
use std::sync::Arc;

/// Directories above one another, at most: places of different times can make a circle.
const MAX_DEPTH: usize = MAX_KEY / 2;

/// The file or directory with this id, with a reference.
///
/// # Errors
/// [`FsErrorKind::Stale`] if it has no name any more, or is not known.
pub(crate) fn entry_by_id(lookup: &Lookup, id: NodeId) -> Result<Entry> {
    match find(lookup, id)? {
        Some(held) => lookup.entry(held),
        None => fail(FsErrorKind::Stale, format!("node {} is not known, or has no name", id.0)),
    }
}

fn find(lookup: &Lookup, id: NodeId) -> Result<Option<HeldNode<'_>>> {
    let mut unknown = Vec::new();
    let mut at = id;
    let top = loop {
        if let Some(node) = lookup.nodes.get(at) {
            match hold_named(lookup, node) {
                InMemory::Named(held) => break Some(held),
                InMemory::Nameless => break None,
                // The table knows its location by now.
                InMemory::Left => continue,
            }
        }
        let remembered = lookup.nodes.location(at);
        let location = remembered.map_or_else(|| lookup.locations.location(at), |it| Ok(Some(it)))?;
        let Some(location) = location else { return Ok(None) };
        if unknown.len() == MAX_DEPTH {
            return Ok(None);
        }
        let above = location.parent;
        unknown.push((at, location));
        at = above;
    };
    let Some(mut held) = top else { return Ok(None) };
    while let Some((id, location)) = unknown.pop() {
        let found = find_at(lookup, &held, &location)?.filter(|found| found.id == id);
        let Some(found) = found else { return Ok(None) };
        held = found;
    }
    Ok(Some(held))
}

/// What has become of a node that was in memory.
enum InMemory<'a> {
    /// It has a name; with a reference.
    Named(HeldNode<'a>),
    Nameless,
    /// It has left memory meanwhile: the kernel gave its last reference back.
    Left,
}

/// A reference on a node that was in memory just now.
fn hold_named(lookup: &Lookup, mut node: Arc<Node>) -> InMemory<'_> {
    loop {
        // Given back after the locks.
        let held;
        let tree = lookup.tree.shared();
        let is_area = node.directory.as_ref().is_some_and(|directory| directory.role != Role::Tree);
        if is_area || node.is_removed() {
            return InMemory::Nameless;
        }
        // The removal of its last name looks at the references under this lock.
        let state = node.state();
        if state.orphan != Orphan::No {
            return InMemory::Nameless;
        }
        let Some(found) = lookup.nodes.acquire(node.id) else { return InMemory::Left };
        held = lookup.references.adopt(found);
        drop((state, tree));
        if Arc::ptr_eq(&held, &node) {
            return InMemory::Named(held);
        }
        // It left memory and came back meanwhile.
        node = held.clone();
    }
}

/// What lies at a place in or at a directory, with a reference.
fn find_at<'a>(lookup: &'a Lookup, dir: &Arc<Node>, location: &Location) -> Result<Option<HeldNode<'a>>> {
    if !dir.is_dir() {
        return Ok(None);
    }
    if !location.in_link_area {
        return lookup.find(dir, &location.name);
    }
    let Some(id) = layout::area_id(&location.name).filter(|_| dir.dir().has_link_area()) else {
        return Ok(None);
    };
    let tree = lookup.tree.shared();
    let area = lookup.areas.area_of(dir)?;
    // Before the names of the area, which come last in the lock order.
    lookup.areas.load_link_counts(&area)?;
    let found = lookup.find_in_area(&tree, &area, id, None)?;
    drop(tree);
    // A copy of an area may hold files without names.
    Ok(found.filter(|found| found.state().inode.links > 0))
}

#[cfg(test)]
mod tests;
