//! What is recorded of a workspace: a JSON file, replaced as a whole.

use crate::error::{AtPath, Error, Result};
use crate::path_text;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The format of records.
const VERSION: u32 = 1;
/// The file's name.
const FILE: &str = "record";

/// The top directory of a workspace, as it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// Its number (`st_ino`).
    pub number: u64,
    /// The user that it belongs to.
    pub owner: u32,
}

impl Top {
    /// The directory at a path.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn of(dir: &Path) -> Result<Self> {
        let found = dir.symlink_metadata().at(dir)?;
        Ok(Self { number: found.ino(), owner: found.uid() })
    }
}

/// What is recorded of a workspace. Paths are relative to [`Home::above`](crate::Home::above).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// 16 hexadecimal digits that no other workspace has.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it is, or was when it was last found.
    #[serde(with = "path_text")]
    pub place: PathBuf,
    /// By what its top directory is known, which bears an attribute that can be forged.
    #[serde(default)]
    pub top: Option<Top>,
    /// The number (`st_ino`) of the top directory that an undo gives it.
    #[serde(default)]
    pub undoing: Option<u64>,
    /// The number of the directory that this record lies in: that of a copy has another one.
    #[serde(default)]
    pub data_number: Option<u64>,
    /// The directory that it is a clone of, where its changes are applied.
    #[serde(with = "path_text")]
    pub original: PathBuf,
    /// The number of that directory (`st_ino`), by which it is found where it was moved to.
    #[serde(default)]
    pub original_number: Option<u64>,
    /// Its identifier if it is a workspace itself.
    #[serde(default)]
    pub original_id: Option<String>,
    /// What it was made from, for people: the original, a snapshot or another workspace.
    pub made_from: String,
    /// When it was made, in seconds since the Unix epoch.
    pub created: u64,
    /// When `gc` may throw it away, in seconds since the Unix epoch.
    pub expires: Option<u64>,
    /// When its changes were last applied, in seconds since the Unix epoch.
    pub applied: Option<u64>,
    /// The process that it was made for: its number and the time of its start.
    pub process: Option<(i32, u64)>,
    /// States that were kept, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// It is about to change places with its original.
    pub promoting: bool,
    /// The numbers (`st_ino`) of its own and the original's directory before that.
    #[serde(default)]
    pub promoting_numbers: Option<(u64, u64)>,
    /// Where a command stages files in the tree that it applies changes to.
    #[serde(default, with = "path_text::optional")]
    pub staging: Option<PathBuf>,
    /// The number of that directory.
    #[serde(default)]
    pub staging_number: Option<u64>,
    /// Since when it has not been at its place, in seconds since the Unix epoch.
    pub missing: Option<u64>,
}

/// A state of a workspace that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its number, from 1.
    pub number: u64,
    /// When it was made, in seconds since the Unix epoch.
    pub created: u64,
    /// What its maker says about it.
    pub message: String,
    /// It is what an undo took back, and no apply of everything came after that.
    #[serde(default)]
    pub set_aside: bool,
}

impl Record {
    /// The record of a new workspace.
    pub(crate) fn new(id: String, name: String, place: PathBuf, original: PathBuf) -> Self {
        Self {
            version: VERSION,
            id,
            name,
            place,
            top: None,
            undoing: None,
            data_number: None,
            original,
            original_number: None,
            original_id: None,
            made_from: String::new(),
            created: now(),
            expires: None,
            applied: None,
            process: None,
            checkpoints: Vec::new(),
            promoting: false,
            promoting_numbers: None,
            staging: None,
            staging_number: None,
            missing: None,
        }
    }

    /// The record in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`]; of the system.
    pub(crate) fn load(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(FILE);
        let text = match std::fs::read(&file) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            read => read.at(&file)?,
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(record) if record.version == VERSION => Ok(Some(record)),
            Ok(record) => {
                let what = format!("the record has format {}, this program knows {VERSION}", record.version);
                Err(Error::Damaged { path: file, what })
            }
            Err(error) => Err(Error::Damaged { path: file, what: format!("not a record: {error}") }),
        }
    }

    /// Puts it into a directory in place of what is there.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn store(&self, dir: &Path) -> Result<()> {
        let (file, new) = (dir.join(FILE), dir.join("record.new"));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Damaged { path: file.clone(), what: error.to_string() })?;
        File::create(&new).and_then(|mut out| out.write_all(&text)).at(&new)?;
        std::fs::rename(&new, &file).at(&file)
    }

    /// Everything was applied: what an undo set aside before that is not wanted.
    pub(crate) fn settle(&mut self) {
        self.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.set_aside = false);
    }

    /// The checkpoint with this number.
    pub fn checkpoint(&self, number: u64) -> Option<&Checkpoint> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.number == number)
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
