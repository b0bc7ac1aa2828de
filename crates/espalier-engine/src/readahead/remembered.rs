//! Remembered results: what the walk of a scan found for a key, kept for the reader.

use crate::message::resolve::{InMemory, KeyMessages};
use crate::model::value::{LargeValue, Value};
use bytes::Bytes;
use std::sync::{Arc, Weak};

/// Patches to a value that are remembered with it, at most.
const MAX_REMEMBERED_PATCHES: usize = 64;

/// Bytes of patches that are remembered with a value, at most: as many as the smallest value has
/// that lies in a value part. With more, a window would hold more than what is read for it.
const MAX_REMEMBERED_PATCH_BYTES: usize = 4096;

/// The value of a key, and the patches to it.
pub(super) struct RememberedValue {
    base: PatchBase,
    /// Newest first.
    patches: Vec<InMemory>,
}

/// A value before its patches.
enum PatchBase {
    Small(Bytes),
    /// Owned by a part, which the cache may drop.
    Large(Weak<LargeValue>),
}

impl RememberedValue {
    /// What is known about a key, if that is one value and a few patches to it.
    pub(super) fn of(found: &KeyMessages) -> Option<Self> {
        let few = |patches: &[InMemory]| {
            let bytes: usize = patches.iter().map(|(_, bytes)| bytes.len()).sum();
            patches.len() <= MAX_REMEMBERED_PATCHES && bytes <= MAX_REMEMBERED_PATCH_BYTES
        };
        let (value, patches) = found.patched().filter(|(_, patches)| few(patches))?;
        let base = match value.large() {
            Some(large) => PatchBase::Large(Arc::downgrade(large)),
            None if value.segments().is_empty() => PatchBase::Small(value.in_memory()?),
            None => return None,
        };
        Some(Self { base, patches })
    }

    /// Bytes that it keeps in memory.
    pub(super) fn memory(&self) -> u64 {
        let base = match &self.base {
            PatchBase::Small(bytes) => bytes.len(),
            PatchBase::Large(_) => 0,
        };
        let patches: usize = self.patches.iter().map(|(_, bytes)| bytes.len() + size_of::<InMemory>()).sum();
        (base + patches) as u64
    }

    /// The same as the result of a look-up; `None` if the value has left the cache.
    pub(super) fn found(&self) -> Option<KeyMessages> {
        let value = match &self.base {
            PatchBase::Small(bytes) => bytes.clone().into(),
            PatchBase::Large(large) => large.upgrade().map(Value::shared)?,
        };
        Some(KeyMessages::known(value, &self.patches))
    }
}
