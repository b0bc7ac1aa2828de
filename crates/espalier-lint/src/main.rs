//! The structure lint: layers and circles of modules, sizes of functions, names of types, widths,
//! words, links, and names in documents.
//!
//! `cargo run -p espalier-lint -- check` fails when a check finds something; `-- report` prints the
//! figures and every finding. Both take the root of another checkout as a further argument.
//!
//! The order of the modules of a crate is written in its `layers.txt`: a line for each layer, from
//! the top down, with module paths relative to `src` (`tree/ops`) and comments after `#`. A module
//! may use those of lower lines, and those of its own line if no circle comes of it.
//!
//! A line of a comment or document that contains `lint: quotation` or `lint: people`, and the line
//! after it, may use the words of the list.

mod findings;
mod functions;
mod graph;
mod layers;
mod lexer;
mod links;
mod modules;
mod names;
mod report;
mod resolve;
mod text;
mod types;
mod workspace;

use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "check".into());
    let root = arguments.next().map_or_else(default_root, PathBuf::from);
    let workspace = workspace::Workspace::read(&root)?;
    match mode.as_str() {
        "check" => report::check(&workspace),
        "report" => report::report(&workspace),
        _ => bail!("usage: espalier-lint [check|report] [CHECKOUT]"),
    }
}

/// The checkout that this program was built from.
fn default_root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
