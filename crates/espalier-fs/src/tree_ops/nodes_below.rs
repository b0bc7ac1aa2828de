//! The nodes in memory of a directory and everything below it, which a mount tells the kernel
//! about.

use crate::model::error::Result;
use crate::model::layout;
use crate::model::types::NodeId;
use crate::namespace::context::Namespace;
use std::sync::Arc;

/// Names that are looked at, at most, for each node that is asked for.
const NAMES_PER_NODE: usize = 16;

/// Names in removed trees that are still in use, each with its directory, what lies deeper first;
/// at most `limit` of them.
pub(crate) fn names_in_removed_trees(namespace: &Namespace, limit: usize) -> Vec<(NodeId, Arc<[u8]>)> {
    let _tree = namespace.tree.shared();
    let mut found = Vec::new();
    let mut waiting = namespace.orphans.trees_in_use();
    while let Some(dir) = waiting.pop().filter(|_| found.len() < limit) {
        let names = dir.dir().names.lock();
        for (name, node) in names.entries() {
            let Some(node) = namespace.nodes.get(node) else { continue };
            found.push((dir.id, name.clone()));
            if node.is_dir() {
                waiting.push(node);
            }
        }
    }
    found.reverse();
    found.truncate(limit);
    found
}

/// The nodes in memory of a directory (or file) and everything below it, each file by any name that
/// is known; `None` if there are more than `limit`, or many more names have to be looked at.
pub(crate) fn nodes_below(namespace: &Namespace, node: NodeId, limit: usize) -> Result<Option<Vec<NodeId>>> {
    let top = namespace.nodes.node(node)?;
    let tree = namespace.tree.shared();
    let (mut found, mut looked_at) = (vec![top.id], 0);
    let mut waiting = vec![top.clone()];
    while let Some(node) = waiting.pop() {
        let Some(directory) = &node.directory else { continue };
        let names = directory.names.lock();
        looked_at += names.len();
        if looked_at > NAMES_PER_NODE * limit {
            return Ok(None);
        }
        for node in names.nodes().filter_map(|id| namespace.nodes.get(id)) {
            found.push(node.id);
            waiting.push(node);
        }
        if found.len() > limit {
            return Ok(None);
        }
    }
    if top.is_dir() && !top.is_removed() {
        // What is known by a name elsewhere.
        let area = namespace.areas.area_of(&top)?;
        let (mut known, mut room) = (Vec::new(), limit);
        namespace.links.for_each_below(&top.content_prefix(tree.epoch), |_, id| {
            known.push(layout::area_name(id));
            room = room.saturating_sub(1);
            room > 0
        })?;
        if room == 0 {
            return Ok(None);
        }
        let names = area.dir().names.lock();
        let nodes = known.iter().filter_map(|name| names.get(name)).filter_map(|known| known.node());
        found.extend(nodes.filter(|id| namespace.nodes.is_live(*id)));
    }
    found.sort_unstable();
    found.dedup();
    Ok(Some(found))
}
