//! Batch checks: what a batch must keep to, looked at before anything is done for it.

use crate::index::catalog::{VolumeCatalog, no_such_index};
use crate::index::table::IndexTable;
use crate::log::{Log, LoggedOp};
use crate::model::batch::Batch;
use crate::model::key::MAX_KEY;
use crate::model::op::{Op, RangeOp, Update};
use crate::model::value::MAX_VALUE;
use crate::tree::{MAX_HEIGHT, Trees};
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct BatchChecks {
    pub(crate) trees: Arc<Trees>,
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) catalog: Arc<VolumeCatalog>,
}

impl BatchChecks {
    /// Refuses a batch that breaks a documented rule; returns the bytes that it takes at most in
    /// the log. Large values of a batch that is too long for the log only because of them are
    /// written to their place first, so that the log need only refer to them: the rename of a
    /// directory names all of its data.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::ReadOnly`], [`ErrorKind::NotFound`]; of the
    /// device.
    pub(crate) fn check(&self, batch: &Batch) -> Result<u64> {
        self.check_rules(batch)?;
        self.limit_height(batch)?;
        if let Ok(bytes) = self.log.check(&batch.ops) {
            return Ok(bytes);
        }
        self.trees.pieces.writer.write_values(&batch.large_values(), None)?;
        self.log.check(&batch.ops)
    }

    fn check_rules(&self, batch: &Batch) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if batch.nested {
            return invalid("a range cannot be moved into itself, nor over what it lies in".into());
        }
        if let Some(id) = batch.indexes().find(|id| !self.indexes.contains(*id)) {
            return Err(self.catalog.unchangeable(id));
        }
        for op in &batch.ops {
            let Some((key, update)) = longest_key(op) else { continue };
            if key.len() > MAX_KEY {
                return invalid(format!("a key of {} bytes is longer than {MAX_KEY}", key.len()));
            }
            if let Some(update) = update.filter(|u| !self.trees.merge.knows(u.function)) {
                return invalid(format!("merge function {} is not registered", update.function));
            }
            let end = match op {
                LoggedOp::Point { op: Op::Insert(value), .. } => value.len(),
                LoggedOp::Point { op: Op::Patch { offset, bytes }, .. } => *offset as usize + bytes.len(),
                _ => 0,
            };
            if end > MAX_VALUE {
                return invalid(format!("a value of {end} bytes is longer than {MAX_VALUE}"));
            }
        }
        Ok(())
    }

    /// Refuses clones in a tree that is too high already. How many can wait to be bound is limited,
    /// too, so the height stays far below what a byte holds.
    fn limit_height(&self, batch: &Batch) -> Result<()> {
        for op in &batch.ops {
            if let LoggedOp::Clone { index, .. } = op
                && self.catalog.version(*index)?.root.height >= MAX_HEIGHT
            {
                let message = "a range has been cloned into itself too many times";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        Ok(())
    }

    /// Refuses a batch for a volume that was deleted since [`Self::check`]: the log must not name
    /// it. Under the commit lock.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn check_indexes(&self, batch: &Batch) -> Result<()> {
        let indexes = self.indexes.read();
        match batch.ops.iter().filter_map(LoggedOp::index).find(|id| !indexes.contains_key(id)) {
            Some(id) => Err(no_such_index(id)),
            None => Ok(()),
        }
    }

    /// Counts the memory of a batch's large values. The log takes composed ones by reference only.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) fn charge_values(&self, batch: &Batch) -> Result<()> {
        for op in &batch.ops {
            let values = op.large_values();
            if values.len() > 1 && !values.iter().all(|value| value.is_stored()) {
                self.trees.pieces.writer.write_values(values, None)?;
            }
            values.iter().for_each(|value| value.charge(&self.trees.memory.value_bytes));
        }
        Ok(())
    }
}

/// The longest key that an operation names, and the update in it.
fn longest_key(op: &LoggedOp) -> Option<(&[u8], Option<&Update>)> {
    Some(match op {
        LoggedOp::Point { key, op, .. } => {
            (key, if let Op::Update(update) = op { Some(update) } else { None })
        }
        LoggedOp::Range { range, op, .. } => {
            (&range.start, if let RangeOp::Update(update) = op { Some(update) } else { None })
        }
        LoggedOp::Clone { source, destination, .. } => {
            (if source.len() > destination.len() { source } else { destination }, None)
        }
        LoggedOp::Superseded => return None,
    })
}
