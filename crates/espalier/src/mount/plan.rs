//! What a mount command has decided before it starts a server.

use super::options::Settings;
use std::path::PathBuf;

/// What to mount, where, and how. Paths are absolute and without links.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) source: PathBuf,
    pub(crate) dir: PathBuf,
    /// An object store is taken from another writer.
    pub(crate) take_over: bool,
    pub(crate) settings: Settings,
}
