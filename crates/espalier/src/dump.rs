//! `espalier dump`: the tree as text.

use crate::args::Dump;
use crate::image;
use anyhow::Result;
use espalier_engine::PieceId;
use std::fmt;
use std::io::{BufWriter, Stdout, Write};

/// Memory for reading the tree.
const MEMORY_BYTES: u64 = 256 << 20;

/// Runs the command.
pub(crate) fn run(args: &Dump) -> Result<()> {
    let store = image::open_store(&args.source, MEMORY_BYTES, true)?;
    let mut out = Out { sink: BufWriter::new(std::io::stdout()), failed: None };
    let dumped = store.dump(&mut out, args.node.map(PieceId));
    if let Some(failure) = out.failed.or_else(|| out.sink.flush().err()) {
        // The reader has gone (`espalier dump IMAGE | head`): that is no failure.
        return if failure.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(failure.into()) };
    }
    dumped.map_err(|e| image::explain(e, &args.source))
}

/// Standard output as the engine writes to it.
struct Out {
    sink: BufWriter<Stdout>,
    failed: Option<std::io::Error>,
}

impl fmt::Write for Out {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.sink.write_all(text.as_bytes()).map_err(|e| {
            self.failed = Some(e);
            fmt::Error
        })
    }
}
