//! Bash, whose words end at `=` and `:`.

use clap::Command;
use clap_complete::env::{Bash as Plain, EnvCompleter};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

/// What bash runs: `transport=classic` and `disk.img:/data` are words for it.
const SCRIPT: &str = include_str!("espalier.bash");

/// Bash, with words as the program has them.
pub(super) struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        Plain.name()
    }

    fn is(&self, name: &str) -> bool {
        Plain.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        let script = SCRIPT
            .replace("COMPLETER", completer)
            .replace("NAME", &name.replace('-', "_"))
            .replace("BIN", bin)
            .replace("VAR", var);
        buf.write_all(script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        Plain.write_complete(command, words, directory, buf)
    }
}
