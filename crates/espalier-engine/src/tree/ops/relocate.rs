//! Relocating sparse values: a leaf with values in parts of which much is dead is written again,
//! so that these parts come free.

use super::editor::TreeEditor;
use super::gather::Gather;
use super::leaf;
use super::rebuild::{is_shared, is_shared_root, replace_edge, root_above};
use crate::Result;
use crate::model::key::{Key, KeyRange};
use crate::tree::interior::{edges_of, split_interior};
use crate::tree::node::{Body, Edge, Node, Root};
use crate::tree::policy::Gathering;
use crate::tree::run::Run;

/// What [`TreeEditor::relocate_sparse`] came to.
pub(crate) enum Relocation {
    /// The last leaf.
    End,
    /// Enough leaves looked at; the next begins here.
    Paused(Key),
    /// A leaf was rewritten: the new root, and where the next leaf begins, if there is one.
    Rewritten(Root, Option<Key>),
}

/// The same below one node.
enum BelowNode {
    End,
    Paused(Key),
    Rewritten(Option<Key>),
}

impl TreeEditor<'_> {
    /// Looks at up to `visits` leaves from `from` on, for the first with values in sparse value
    /// parts, and rewrites that one. Leaves below pending messages are passed over: flush
    /// those first.
    pub(crate) fn relocate_sparse(&self, root: &Root, from: &[u8], visits: &mut usize) -> Result<Relocation> {
        if is_shared_root(self.trees, root)? {
            return Ok(Relocation::End);
        }
        let Ok(mut node) = self.trees.root_node(root).map(|node| (*node).clone()) else {
            return Ok(Relocation::End);
        };
        let all = KeyRange::all();
        if let Body::Leaf(base) = &node.body {
            return match self.rewrite_sparse(base, &all) {
                Ok(Some(leaves)) => Ok(Relocation::Rewritten(root_above(self.trees, leaves), None)),
                Err(error) if !error.is_of_reading() => Err(error),
                _ => Ok(Relocation::End),
            };
        }
        Ok(match self.relocate_in_node(&mut node, &all, from, visits)? {
            BelowNode::End => Relocation::End,
            BelowNode::Paused(next) => Relocation::Paused(next),
            BelowNode::Rewritten(next) => Relocation::Rewritten(
                root_above(self.trees, split_interior(node, self.trees.tuning.fanout, &all)),
                next,
            ),
        })
    }

    fn rewrite_sparse(&self, base: &Run, interval: &KeyRange) -> Result<Option<Vec<(Key, Node)>>> {
        if Gather::of(self.trees, &base.parts, true).is_some() {
            return leaf::apply(self, base, &[], interval, Gathering::Sparse).map(Some);
        }
        Ok(None)
    }

    fn relocate_in_node(
        &self,
        node: &mut Node,
        interval: &KeyRange,
        from: &[u8],
        visits: &mut usize,
    ) -> Result<BelowNode> {
        let below = node.height - 1;
        let first = Node::edge_for(edges_of(node).0, from);
        for i in first..edges_of(node).1.len() {
            let covered = node.interval(i, interval);
            let Edge { child: Some(child), runs } = edges_of(node).1[i].clone() else { continue };
            if !runs.is_empty() || is_shared(self.trees, &child)? {
                continue;
            }
            if *visits == 0 {
                return Ok(BelowNode::Paused(covered.start));
            }
            // What cannot be read stays where it is.
            let Ok(mut child) = child.load(self.trees, below, &covered) else { continue };
            if let Body::Leaf(base) = &child.body {
                *visits -= 1;
                let rewritten = match self.rewrite_sparse(base, &covered) {
                    Err(error) if error.is_of_reading() => continue,
                    rewritten => rewritten?,
                };
                if let Some(leaves) = rewritten {
                    replace_edge(self.trees, node, i, leaves, &[], interval);
                    return Ok(BelowNode::Rewritten(covered.end));
                }
                continue;
            }
            match self.relocate_in_node(&mut child, &covered, from, visits)? {
                BelowNode::End => {}
                BelowNode::Rewritten(next) => {
                    let nodes = split_interior(child, self.trees.tuning.fanout, &covered);
                    replace_edge(self.trees, node, i, nodes, &[], interval);
                    return Ok(BelowNode::Rewritten(next));
                }
                paused => return Ok(paused),
            }
        }
        Ok(BelowNode::End)
    }
}
