//! The files of a checkout, as text.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The files of a checkout by their path relative to its root.
pub(crate) struct Workspace {
    /// The text of those that people write.
    pub(crate) files: BTreeMap<String, String>,
    /// The paths of all others.
    others: BTreeSet<String>,
}

/// Folders with nothing that people write.
const SKIPPED_FOLDERS: [&str; 6] =
    [".git", "target", "fuzz/target", "fuzz/corpus", "fuzz/artifacts", "fuzz/coverage"];

impl Workspace {
    /// Reads every text file below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut this = Self { files: BTreeMap::new(), others: BTreeSet::new() };
        this.read_folder(root, "")?;
        Ok(this)
    }

    /// Whether there is a file at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.others.contains(path)
    }

    /// The crates: the folders below `crates`.
    pub(crate) fn crates(&self) -> Vec<&str> {
        let mut crates: Vec<&str> =
            self.files.keys().filter_map(|path| path.strip_suffix("/Cargo.toml")).collect();
        crates.retain(|path| path.starts_with("crates/") && path.matches('/').count() == 1);
        crates
    }

    /// The files with this extension.
    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        let end = format!(".{extension}");
        self.files
            .iter()
            .filter(move |(path, _)| path.ends_with(&end))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    fn read_folder(&mut self, root: &Path, folder: &str) -> Result<()> {
        let place = root.join(folder);
        for entry in std::fs::read_dir(&place).with_context(|| format!("listing {}", place.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_dir() {
                if !SKIPPED_FOLDERS.contains(&path.as_str()) {
                    self.read_folder(root, &path)?;
                }
                continue;
            }
            let text = is_text(&path).then(|| std::fs::read_to_string(entry.path()));
            match text {
                Some(text) => drop(self.files.insert(path, text?)),
                None => drop(self.others.insert(path)),
            }
        }
        Ok(())
    }
}

/// Whether people write this file.
fn is_text(path: &str) -> bool {
    if path.contains("/proptest-regressions/") {
        return false;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    match extension {
        Some(extension) => ["rs", "md", "toml", "h", "c", "sh", "txt"].contains(&extension),
        None => path.starts_with("scripts/") || path.starts_with(".ci/") || name == "Makefile",
    }
}

#[cfg(test)]
impl Workspace {
    /// A checkout of these files.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string()));
        Self { files: files.collect(), others: BTreeSet::new() }
    }
}
