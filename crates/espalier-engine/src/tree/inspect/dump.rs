//! Dump: a tree as text, for people and for tests.

use crate::Result;
use crate::model::key::Key;
use crate::tree::node::{Body, Node, NodeSlot, Root};
use crate::tree::run::Run;
use crate::tree::trees::Trees;
use crate::tree::write::header_bytes;
use std::fmt::Write;
use std::sync::Arc;

impl Trees {
    /// Writes the tree below `root`, a line per node, run and part.
    pub(crate) fn dump(&self, root: &Root, out: &mut dyn Write) -> Result<()> {
        match &root.slot {
            Some(slot) => self.dump_slot(slot, root.height, 0, out),
            None => {
                write_line(out, 0, "empty");
                Ok(())
            }
        }
    }

    fn dump_slot(&self, slot: &Arc<NodeSlot>, height: u8, depth: usize, out: &mut dyn Write) -> Result<()> {
        let place = slot.place().map_or("in memory".into(), |h| h.id().to_string());
        let node = slot.load(self, height)?;
        let (weight, bytes) = (node.weight(), header_bytes(&node));
        write_line(out, depth, &format!("node {place} height {height}, weight {weight}, {bytes} bytes"));
        self.dump_node(&node, depth + 1, out)
    }

    /// Writes one node, and the nodes below it.
    pub(crate) fn dump_node(&self, node: &Node, depth: usize, out: &mut dyn Write) -> Result<()> {
        match &node.body {
            Body::Leaf(run) => dump_run("entries", run, depth, out),
            Body::Interior { pivots, edges } => {
                for (i, edge) in edges.iter().enumerate() {
                    let from = i.checked_sub(1).map_or(String::new(), |i| key_text(&pivots[i]));
                    write_line(
                        out,
                        depth,
                        &format!("edge from \"{from}\", {} bytes pending", edge.pending()),
                    );
                    for run in &edge.runs {
                        dump_run("messages", run, depth + 1, out);
                    }
                    match &edge.child {
                        None => write_line(out, depth + 1, "nothing below"),
                        Some(child) => {
                            let view = &child.view;
                            write_line(
                                out,
                                depth + 1,
                                &format!(
                                    "seen \"{}\" -> \"{}\" {:?}",
                                    key_text(&view.from),
                                    key_text(&view.to),
                                    view.bounds
                                ),
                            );
                            self.dump_slot(&child.slot, node.height - 1, depth + 1, out)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn dump_run(what: &str, run: &Run, depth: usize, out: &mut dyn Write) {
    write_line(out, depth, &format!("{what}: {} parts, {} bytes", run.parts.len(), run.weight()));
    for part in &run.parts {
        let place = part.slot.place().map_or("in memory".into(), |p| p.handle.id().to_string());
        let summary = &part.slot.summary;
        let last = part.last.as_ref().map_or("?".into(), key_text);
        let mut line = format!(
            "part {place}: {} entries, {} bytes, {} in values, \"{}\" .. \"{last}\"",
            summary.entries,
            summary.bytes,
            summary.value_bytes,
            key_text(&part.first)
        );
        if !part.view.is_identity() {
            let view = &part.view;
            let _ = write!(
                line,
                ", seen \"{}\" -> \"{}\" {:?}",
                key_text(&view.from),
                key_text(&view.to),
                view.bounds
            );
        }
        write_line(out, depth + 1, &line);
    }
    for (range, ops) in run.ranges.iter() {
        write_line(out, depth + 1, &format!("{range:?} {ops:?}"));
    }
}

fn key_text(key: &Key) -> String {
    const MAX_KEY_CHARS: usize = 80;
    let cut = &key[..key.len().min(MAX_KEY_CHARS)];
    format!("{}{}", cut.escape_ascii(), if key.len() > MAX_KEY_CHARS { "..." } else { "" })
}

/// A line at a depth; a writer into memory does not fail.
fn write_line(out: &mut dyn Write, depth: usize, line: &str) {
    let _ = writeln!(out, "{:depth$}{line}", "", depth = 2 * depth);
}
