//! The passage of files from a source to a sink: what passes, and what is told of it.
//!
//! A source gives *items* one after the other, a directory before what is in it, and the first name
//! of a file before its others. What fails for one item is told and counted, and the rest goes on;
//! an error that ends the passage is one of the sink, or of a source that cannot be read further.

use crate::files::tree::{Attributes, Data, join, show};
use crate::problem::{Exit, Shown};
use crate::ui::{self, complain};
use anyhow::Result;
use espalier_fs::NewNode;
use indicatif::ProgressBar;
use std::ops::Range;

/// What an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Directory,
    /// A regular file: its size in bytes, and the ranges that are no holes.
    Regular(u64, Vec<Range<u64>>),
    /// One more name of the file that has this path.
    HardLink(Vec<u8>),
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    Node(NewNode),
}

/// A file or directory on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// The path below the top of the tree; empty for the top.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: ItemKind,
    pub(crate) attributes: Attributes,
}

/// Where items go.
pub(crate) trait ItemSink {
    /// Takes an item; `data` is the content of a regular file, as far as it is wanted.
    ///
    /// # Errors
    /// If nothing more can be taken. What concerns the item alone goes to the report.
    fn put(&mut self, item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()>;

    /// Completes what was taken.
    ///
    /// # Errors
    /// If that cannot be done.
    fn finish(&mut self, report: &mut Report) -> Result<()>;
}

/// A sink that gets items below another path: their top gets a name there.
pub(crate) struct Below<'s> {
    pub(crate) sink: &'s mut dyn ItemSink,
    pub(crate) name: Vec<u8>,
}

impl ItemSink for Below<'_> {
    fn put(&mut self, mut item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()> {
        let below = |path: &[u8]| if path.is_empty() { self.name.clone() } else { join(&self.name, path) };
        item.path = below(&item.path);
        if let ItemKind::HardLink(first) = &mut item.kind {
            *first = below(first);
        }
        self.sink.put(item, data, report)
    }

    fn finish(&mut self, report: &mut Report) -> Result<()> {
        self.sink.finish(report)
    }
}

/// What became of items.
pub(crate) struct Report {
    command: &'static str,
    bar: ProgressBar,
    /// Items that were taken, and the bytes in them.
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    /// Items that are there already.
    pub(crate) skipped: u64,
    /// Items that failed.
    pub(crate) failed: u64,
}

impl Report {
    /// A report of a command, with signs of progress on a terminal.
    pub(crate) fn new(command: &'static str) -> Self {
        Self { command, bar: ui::spinner(command), items: 0, bytes: 0, skipped: 0, failed: 0 }
    }

    /// An item with so many bytes is on its way.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.items += 1;
        self.bytes += bytes;
        self.bar.set_message(format!(
            "{}: {} files, {}",
            self.command,
            self.items,
            crate::units::Size(self.bytes)
        ));
    }

    /// Says why an item failed.
    pub(crate) fn complain(&mut self, path: &[u8], error: impl Into<anyhow::Error>) {
        self.failed += 1;
        let (command, path) = (self.command, if path.is_empty() { b"." } else { path });
        let text = format!("espalier {command}: {}: {}", show(path), Shown(&error.into()));
        self.bar.suspend(|| complain!("{text}"));
    }

    /// Says something of an item that is no failure.
    pub(crate) fn note(&mut self, path: &[u8], text: &str) {
        let (command, path) = (self.command, show(path));
        self.bar.suspend(|| complain!("espalier {command}: {path}: {text}"));
    }

    /// The exit status so far.
    pub(crate) fn exit(&self) -> Exit {
        self.bar.finish_and_clear();
        if self.failed == 0 { Exit::Success } else { Exit::Failure }
    }
}

/// Content that there is none of.
pub(crate) struct NoData;

impl Data for NoData {
    fn next(&mut self, _: &mut Vec<u8>) -> Result<Option<u64>> {
        Ok(None)
    }
}
