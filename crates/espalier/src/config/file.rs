//! One configuration file: TOML taken apart into entries with their places.

use crate::ui::complain;
use anyhow::{Context, Result, anyhow};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The one option that all commands have.
const VERBOSE: &str = "verbose";

/// `name = value` in a table.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// File and line.
    pub(super) place: String,
    /// The table: a command, or a command and one below it; empty before the first table.
    pub(super) commands: Vec<String>,
    pub(super) name: String,
    pub(super) value: Value,
}

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    /// A number, true or false, as text.
    Other(String),
}

impl Value {
    pub(super) fn text(&self) -> &str {
        let (Self::Text(text) | Self::Other(text)) = self;
        text
    }
}

/// True if the file may lead this user: it belongs to the user of this process or to root, and
/// others cannot write it. A file that is not trusted is named on standard error, unless this user
/// cannot even see it: then the environment is that of another user.
pub(super) fn is_trusted(path: &Path) -> bool {
    let metadata = match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(metadata) => metadata,
        Err(error) => return error.kind() != ErrorKind::PermissionDenied,
    };
    let user = rustix::process::geteuid().as_raw();
    let shown = path.display();
    if metadata.uid() != user && metadata.uid() != 0 {
        complain!("espalier: {shown} belongs to another user and is not read");
        return false;
    }
    if metadata.mode() & 0o002 != 0 {
        complain!("espalier: {shown} can be written by every user and is not read (chmod o-w)");
        return false;
    }
    true
}

/// What the file says; `None` if there is no such file.
///
/// # Errors
/// If it cannot be read or holds an error.
pub(super) fn read(path: &Path) -> Result<Option<Vec<Entry>>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
    };
    parse(path, &text).map(Some)
}

/// Takes the text of a file apart.
///
/// # Errors
/// An error in the file, with its line.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Entry>> {
    let place = |at: usize| {
        let line = 1 + text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count();
        format!("{}:{line}", path.display())
    };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        anyhow!("{}: {}", place(at), error.message().trim())
    })?;
    let mut entries = Vec::new();
    collect(table.get_ref(), &[], &place, &mut entries)?;
    Ok(entries)
}

fn collect(
    table: &DeTable<'_>,
    commands: &[String],
    place: &dyn Fn(usize) -> String,
    entries: &mut Vec<Entry>,
) -> Result<()> {
    for (key, value) in table {
        let name = key.get_ref().to_string();
        let place_here = place(key.span().start);
        if let DeValue::Table(below) = value.get_ref() {
            let commands: Vec<String> = commands.iter().cloned().chain([name]).collect();
            collect(below, &commands, place, entries)?;
            continue;
        }
        if commands.is_empty() && name != VERBOSE {
            return Err(anyhow!(
                "{place_here}: '{name}' stands in no table; begin one with [mount] or another command"
            ));
        }
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => Value::Other(number.to_string()),
            DeValue::Float(number) => Value::Other(number.to_string()),
            DeValue::Boolean(yes) => Value::Other(yes.to_string()),
            other => return Err(anyhow!("{place_here}: '{name}' cannot be {}", other.type_str())),
        };
        entries.push(Entry { place: place_here, commands: commands.to_vec(), name, value });
    }
    Ok(())
}
