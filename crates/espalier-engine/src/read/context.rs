//! Read context: what a reader needs of an open store.
//!
//! Snapshots and cursors hold it instead of the store, so they may outlive the store that made
//! them.

use super::pins::PinTable;
use crate::Result;
use crate::index::Version;
use crate::index::catalog::VolumeCatalog;
use crate::index::table::IndexTable;
use crate::model::ids::IndexId;
use crate::model::op::MergeFunctions;
use crate::model::value_reader::ValueReader;
use crate::tree::{Trees, expect};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct ReadContext {
    pub(crate) trees: Arc<Trees>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) catalog: Arc<VolumeCatalog>,
    pub(crate) pins: Arc<PinTable>,
}

impl ReadContext {
    /// The state of an index as it is now.
    ///
    /// # Errors
    /// As for [`VolumeCatalog::version`].
    pub(crate) fn version(&self, id: IndexId) -> Result<Arc<Version>> {
        self.catalog.version(id)
    }

    /// These keys of an index will be looked up: a device far away is told of all that is to be
    /// read for that. A hint; a reader meets errors again.
    pub(crate) fn expect_keys(&self, id: IndexId, keys: &[&[u8]]) {
        if keys.len() < 2 || self.trees.pieces.wanted_ahead() == 0 {
            return;
        }
        // Behind a pending clone keys lead elsewhere.
        if let Ok(version) = self.version(id)
            && !version.has_pending_clone()
        {
            let _ = expect(&self.trees, &version.root, keys);
        }
    }

    /// What updates do to values.
    pub(crate) fn merge_functions(&self) -> &MergeFunctions {
        &self.trees.merge
    }

    /// Reads values from the device.
    pub(crate) fn reader(&self) -> &dyn ValueReader {
        &*self.trees.pieces
    }
}
