//! Operations: what a message does to a key or a range of keys; merge functions of updates.

use crate::model::value::{LargeValue, Value};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a message does to one key.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// The key has this value from now on.
    Insert(Value),
    /// The key has no value from now on.
    Delete,
    /// `bytes` replace what the value has at `offset`; a shorter or missing value is first extended
    /// with zeros. A blind write into the middle of a value.
    Patch {
        /// First byte replaced.
        offset: u32,
        /// What stands there afterwards. Large ones are best at whole pages: those are never
        /// copied.
        bytes: Value,
    },
    /// The value becomes what a registered [`MergeFunction`] makes of it.
    Update(Update),
}

impl Op {
    /// True if the outcome does not depend on older messages.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Insert(_) | Self::Delete)
    }

    /// The value that it brings, if it brings one: all of the key's, or a part of it.
    pub(crate) fn value(&self) -> Option<&Value> {
        match self {
            Self::Insert(value) | Self::Patch { bytes: value, .. } => Some(value),
            Self::Delete | Self::Update(_) => None,
        }
    }

    /// The same with other bytes.
    pub(crate) fn with_value(&self, value: Value) -> Self {
        match self {
            Self::Patch { offset, .. } => Self::Patch { offset: *offset, bytes: value },
            _ => Self::Insert(value),
        }
    }

    /// What is left of it when its value is lost: nothing, or zeros where a patch was. What lay
    /// there before must not come back.
    pub(crate) fn without_value(&self) -> Self {
        match self {
            Self::Patch { offset, bytes } => {
                Self::Patch { offset: *offset, bytes: Value::from(vec![0; bytes.len()]) }
            }
            _ => Self::Delete,
        }
    }

    /// The large values that it brings.
    pub(crate) fn large_values(&self) -> &[Arc<LargeValue>] {
        self.value().map_or(&[], Value::segments)
    }
}

/// What a message does to every existing key of a range.
#[derive(Debug, Clone, PartialEq)]
pub enum RangeOp {
    /// The keys have no value from now on.
    Delete,
    /// Each existing value becomes what a registered [`MergeFunction`] makes of it.
    Update(Update),
}

/// A call of a registered merge function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The stable id of the function.
    pub function: u16,
    /// Passed to the function as it is.
    pub argument: Bytes,
}

/// Computes a new value from the old one and an argument. It must be a pure function of its
/// arguments for ever: messages that name it lie on the device.
///
/// The first argument is the old value (`None` if the key has none), the second the message's
/// argument; the result is the new value, `None` to have none.
pub type MergeFunction = dyn Fn(Option<&[u8]>, &[u8]) -> Option<Vec<u8>> + Send + Sync;

/// Makes one argument of an older and a newer one, so that two updates become one; `None` if they
/// cannot be one.
pub type ComposeFunction = dyn Fn(&[u8], &[u8]) -> Option<Vec<u8>> + Send + Sync;

/// The merge functions of a store, by stable id.
#[derive(Clone, Default)]
pub struct MergeFunctions(BTreeMap<u16, Registered>);

#[derive(Clone)]
struct Registered {
    merge: Arc<MergeFunction>,
    compose: Option<Arc<ComposeFunction>>,
}

impl MergeFunctions {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `function` under `id`, which must mean the same for ever.
    ///
    /// # Panics
    /// If the id is taken.
    #[must_use]
    pub fn with(
        mut self,
        id: u16,
        function: impl Fn(Option<&[u8]>, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let registered = Registered { merge: Arc::new(function), compose: None };
        assert!(self.0.insert(id, registered).is_none(), "merge function {id} is registered twice");
        self
    }

    /// Says how two successive updates by the function `id` become one, whatever they apply to.
    ///
    /// # Panics
    /// If `id` is not registered.
    #[must_use]
    pub fn with_compose(
        mut self,
        id: u16,
        compose: impl Fn(&[u8], &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let registered = self.0.get_mut(&id).expect("the merge function is registered");
        registered.compose = Some(Arc::new(compose));
        self
    }

    /// One update equal to `older` followed by `newer`, if there is one.
    pub fn compose(&self, older: &Update, newer: &Update) -> Option<Update> {
        let registered = self.0.get(&older.function).filter(|_| older.function == newer.function)?;
        let argument = registered.compose.as_ref()?(&older.argument, &newer.argument)?;
        Some(Update { function: older.function, argument: argument.into() })
    }

    /// Calls the function that `update` names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if none is registered under its id.
    pub fn apply(&self, update: &Update, old: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let function = self.0.get(&update.function).ok_or_else(|| {
            let message = format!(
                "the store names merge function {}, which the program that opened it does not have",
                update.function
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        Ok((function.merge)(old, &update.argument))
    }

    /// True if a function is registered under `id`.
    pub fn knows(&self, id: u16) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for MergeFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Bytes that an operation carries.
pub(crate) fn range_op_bytes(op: &RangeOp) -> usize {
    match op {
        RangeOp::Delete => 0,
        RangeOp::Update(update) => update.argument.len(),
    }
}
