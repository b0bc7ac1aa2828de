//! Following: a reader finds out whether the root names another state by now, and opens that; and
//! whether an object that it misses was deleted in order, because newer states do not need it.

use super::error;
use super::inner::Line;
use super::inner::{Inner, Latched};
use super::object_device::ObjectDevice;
use crate::bucket::{Failure, Version};
use crate::format::{ObjectId, Root};
use espalier_storage::{Error, ErrorKind, Operation, Result};
use espalier_sync::Mutex;
use std::sync::Arc;

/// Bytes of what was written last that are got with each new state.
const NEWEST_BYTES: u64 = 256 << 10;

impl ObjectDevice {
    /// The device as the root has it now, for reading, if that is another state than this one's. A
    /// root that renews a lease alone is none. It shares the caches and counts requests with this
    /// device, which stays as it is: what it names is there for the grace time, and then reads
    /// fail.
    ///
    /// # Errors
    /// What a request fails with; [`ErrorKind::NotFound`] if the store was deleted or made anew.
    pub fn newer(&self) -> Result<Option<Self>> {
        let Some(newer) = self.inner.newer_state()? else { return Ok(None) };
        newer.announce_newest(NEWEST_BYTES);
        let _ = newer.latch.set(Latched::Closed("it is open for reading only"));
        Ok(Some(Self { inner: Arc::new(newer), threads: Mutex::default() }))
    }

    /// True if the root names another state by now than this device has: what
    /// [`ObjectDevice::newer`] would open.
    ///
    /// # Errors
    /// As for [`ObjectDevice::newer`].
    pub fn is_replaced(&self) -> Result<bool> {
        Ok(self.inner.newer_root()?.is_some())
    }
}

impl Inner {
    /// The error for what kept a read from its blocks: [`ErrorKind::Gone`] for an object that the
    /// writer has deleted because newer states do not need it. Anything else that is missing is
    /// damage.
    pub(super) fn read_error(&self, failure: &Failure) -> Error {
        match &failure.missing {
            Some(object) if self.was_deleted(object) => error::of_deleted(object, &self.name),
            _ => error::of_failure(failure, Operation::Read, &self.name),
        }
    }

    /// True if an object that is missing is of an older state than the newest, which does not need
    /// it. False if that cannot be found out, and on a device that is open for writing.
    pub(super) fn was_deleted(&self, object: &str) -> bool {
        let Some((id, ..)) = ObjectId::of_name(object) else { return false };
        if !matches!(self.latch.get(), Some(Latched::Closed(_))) {
            return false;
        }
        // What was found once stays so: nothing ever refers to a dead object again.
        if self.deleted.lock().contains(&id) {
            return true;
        }
        let newer = match self.newer_state() {
            Ok(Some(newer)) => newer,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(device = self.name, %error, "the newest state cannot be read");
                return false;
            }
        };
        let newer = newer.state.read();
        let is_needed = |id: ObjectId| newer.objects.get(id).is_some_and(|entry| !entry.is_dead());
        if is_needed(id) {
            return false;
        }
        // The state is not read again for the others that it does not need.
        let state = self.state.read();
        let others = state.objects.iter().map(|entry| entry.object.id).filter(|other| !is_needed(*other));
        self.deleted.lock().extend(others.chain([id]));
        true
    }

    /// The newest state, if it is another one than this.
    ///
    /// # Errors
    /// As for [`ObjectDevice::newer`].
    fn newer_state(&self) -> Result<Option<Self>> {
        let Some((root, version)) = self.newer_root()? else { return Ok(None) };
        let newer = Self::new(
            (Arc::clone(&self.requests), Arc::clone(&self.cache)),
            &self.environment,
            self.options.clone(),
            Line::new(root, version, self.elapsed()),
            None,
        );
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Open, &self.name);
        newer.load_state(None).map_err(failed)?;
        Ok(Some(newer))
    }

    /// The root, if it names another state than the one that the device was opened with.
    ///
    /// # Errors
    /// What a request fails with; [`ErrorKind::NotFound`] if the store was deleted or made anew.
    fn newer_root(&self) -> Result<Option<(Root, Version)>> {
        let found = self.requests.read_root();
        let found = found.map_err(|failure| error::of_failure(&failure, Operation::Open, &self.name))?;
        let line = self.line.lock();
        match found {
            Some((root, _, version)) if root.uuid == line.root.uuid => {
                Ok((!is_same_state(&line.root, &root)).then_some((root, version)))
            }
            _ => {
                let message = "the store was deleted, or another one was made in its place; mount again";
                Err(Error::new(ErrorKind::NotFound, Operation::Open, &self.name, message))
            }
        }
    }
}

/// True if a root of the same store is no later one, or has every block in the same place.
fn is_same_state(a: &Root, b: &Root) -> bool {
    b.generation <= a.generation || (a.map == b.map && a.delta == b.delta)
}
