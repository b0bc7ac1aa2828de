//! Check: is everything there that the root names, and what is there that it does not name?
//!
//! A list is believed only about what nothing names, here as in mkfs over an older store.

use super::error;
use super::object_device::ObjectDevice;
use super::options::{Access, Options};
use super::probe;
use crate::bucket::{Bucket, Failure, FailureKind, ObjectFacts, Reply, Request, Ticket};
use crate::format::{
    FRAME_BLOCKS, Header, Malformed, NewObject, ObjectId, ObjectKind, frame_bytes, frames, open_frame,
};
use crate::objects::{ObjectEntry, Usage};
use crate::requests::{Deletes, PARALLEL_REQUESTS};
use bytes::Bytes;
use espalier_storage::{BLOCK, Device, Environment, Operation, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whole objects that are got at a time: a bound on memory.
const PARALLEL_WHOLE_GETS: usize = 4;

/// How long a probe may take at most, in milliseconds: a day.
const LONGEST_PROBE_MS: u64 = 24 * 3600 * 1000;

/// The check of an object, which is on its way.
struct BegunCheck {
    object: NewObject,
    request: Request,
    ticket: Box<dyn Ticket>,
}

/// What a check found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// What is stored, and what of it is in use.
    pub usage: Usage,
    /// Objects in use that are not there, or not as long as they should be.
    pub missing: Vec<String>,
    /// Objects in use whose bytes are wrong, with what is wrong.
    pub damaged: Vec<String>,
    /// Objects of which the table has another live count than the map.
    pub miscounted: Vec<String>,
    /// Objects that nothing names, with their bytes. A writer that works puts objects before it
    /// names them; those of older epochs are of use to nothing.
    pub orphans: Vec<(String, u64)>,
    /// Of the orphans, those of older epochs, and of probes that ended long ago.
    pub old_orphans: Vec<String>,
    /// Objects with names that are not of a store.
    pub strangers: Vec<String>,
}

impl CheckReport {
    /// True if everything that is named is there and right.
    pub fn is_sound(&self) -> bool {
        self.missing.is_empty() && self.damaged.is_empty() && self.miscounted.is_empty()
    }
}

/// Checks all objects of a store. With `deep` every byte in use is got.
///
/// # Errors
/// As for [`ObjectDevice::open`]; if a page of the map cannot be got;
/// [`ErrorKind::Gone`](espalier_storage::ErrorKind::Gone) if that takes longer than the grace time
/// and the writer has deleted what is looked for.
pub fn check_objects(
    bucket: Arc<dyn Bucket>,
    environment: &Arc<dyn Environment>,
    options: &Options,
    deep: bool,
) -> Result<CheckReport> {
    let device = ObjectDevice::open(bucket, environment, Access::ReadOnly, options.clone())?;
    device.check(deep)
}

impl ObjectDevice {
    fn check(&self, deep: bool) -> Result<CheckReport> {
        let inner = &self.inner;
        let failed = |failure: Failure| inner.read_error(&failure);
        inner.load_all_pages(&inner.requests).map_err(failed)?;
        let mut report = CheckReport { usage: self.usage(), ..CheckReport::default() };
        self.recount(&mut report);
        let entries: Vec<ObjectEntry> = inner.state.read().objects.iter().copied().collect();
        let used: Vec<NewObject> = entries.iter().filter(|e| !e.is_dead()).map(|e| e.object).collect();
        for part in used.chunks(if deep { PARALLEL_WHOLE_GETS } else { PARALLEL_REQUESTS }) {
            let begun: Vec<BegunCheck> = part.iter().map(|object| self.begin_check(object, deep)).collect();
            for check in begun {
                self.finish_check(check, deep, &mut report).map_err(failed)?;
            }
        }
        let known: BTreeSet<String> = entries.iter().map(ObjectEntry::name).collect();
        self.find_orphans(&known, &mut report).map_err(failed)?;
        self.find_probes(&mut report).map_err(failed)?;
        Ok(report)
    }

    /// Compares the table with the map.
    fn recount(&self, report: &mut CheckReport) {
        let state = self.inner.state.read();
        let mut live = state.counts(std::slice::from_ref(&(0..self.inner.blocks)));
        for entry in state.objects.iter().filter(|entry| entry.object.kind == ObjectKind::Data) {
            let found = live.remove(&entry.object.id).unwrap_or(0);
            if found != entry.live {
                report.miscounted.push(format!("{}: {} instead of {found}", entry.name(), entry.live));
            }
        }
        report.miscounted.extend(live.keys().map(|id| format!("object {id} is in no table")));
    }

    /// Begins to get what an object is checked by: all of it if `deep`, else its header.
    fn begin_check(&self, object: &NewObject, deep: bool) -> BegunCheck {
        // As much as it should have, and no more, whatever lies there.
        let end = if deep { object.bytes } else { object.header_bytes };
        let request = Request::Get { name: object.name(), range: Some(0..u64::from(end)) };
        let ticket = self.inner.requests.begin(&request);
        BegunCheck { object: *object, request, ticket }
    }

    fn finish_check(
        &self,
        check: BegunCheck,
        deep: bool,
        report: &mut CheckReport,
    ) -> std::result::Result<(), Failure> {
        let BegunCheck { object, request, ticket } = check;
        let name = object.name();
        let reply = match self.inner.requests.finish(ticket, &request) {
            Ok(reply) => reply,
            Err(failure) if failure.is_of_a_missing_object() && !self.inner.was_deleted(&name) => {
                report.missing.push(name);
                return Ok(());
            }
            Err(failure) if failure.kind == FailureKind::Unsupported => {
                report.damaged.push(failure.message);
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        if let (true, Reply::Got(_, facts)) = (deep, &reply)
            && facts.bytes > u64::from(object.bytes)
        {
            let what = format!("it has {} bytes instead of {}", facts.bytes, object.bytes);
            report.damaged.push(format!("{name} of {} is damaged: {what}", self.inner.name));
            return Ok(());
        }
        match self.inner.requests.checked(&request, reply, |bytes| open_object(&object, deep, bytes)) {
            Ok(()) => Ok(()),
            Err(failure) if failure.kind == FailureKind::Unsupported => {
                report.damaged.push(failure.message);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn find_orphans(
        &self,
        known: &BTreeSet<String>,
        report: &mut CheckReport,
    ) -> std::result::Result<(), Failure> {
        for kind in [ObjectKind::Data, ObjectKind::Map] {
            let request = Request::List { folder: kind.folder().into() };
            let Reply::Listed(listed) = self.inner.requests.call(&request)? else { continue };
            for ObjectFacts { name, bytes, .. } in listed {
                match ObjectId::of_name(&name) {
                    None => report.strangers.push(name),
                    Some(_) if known.contains(&name) => {}
                    Some((id, ..)) => {
                        if id.epoch() < self.inner.epoch {
                            report.old_orphans.push(name.clone());
                        }
                        report.orphans.push((name, bytes));
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds what probes have left behind whose process died. One that was put long before the root
    /// is of no probe that is under way: its time and the root's are of the server's clock.
    fn find_probes(&self, report: &mut CheckReport) -> std::result::Result<(), Failure> {
        let requests = &self.inner.requests;
        let Reply::Listed(listed) = requests.call(&Request::List { folder: probe::FOLDER.into() })? else {
            return Ok(());
        };
        if listed.is_empty() {
            return Ok(());
        }
        let now = requests.read_root()?.map_or(0, |(_, facts, _)| facts.modified);
        for ObjectFacts { name, bytes, modified, .. } in listed {
            if !probe::is_name(&name) {
                report.strangers.push(name);
                continue;
            }
            if now.saturating_sub(modified) > LONGEST_PROBE_MS {
                report.old_orphans.push(name.clone());
            }
            report.orphans.push((name, bytes));
        }
        Ok(())
    }

    /// Deletes objects that a check found to be orphans of older epochs. Only for a device that is
    /// open for writing: then nothing older can name them any more.
    ///
    /// # Errors
    /// What a request fails with; if the device takes no writes.
    pub fn delete_orphans(&self, names: &[String]) -> Result<()> {
        let inner = &self.inner;
        inner.writable(Operation::Discard)?;
        let deletes: Vec<String> = {
            let state = inner.state.read();
            let known: BTreeSet<String> = state.objects.iter().map(ObjectEntry::name).collect();
            let old = |name: &&String| {
                let is_older = ObjectId::of_name(name).is_some_and(|(id, ..)| id.epoch() < inner.epoch);
                (is_older || probe::is_name(name)) && !known.contains(*name)
            };
            names.iter().filter(old).cloned().collect()
        };
        let Deletes { refused, failed, .. } = inner.requests.delete_all(&deletes);
        let failed = failed.or(refused);
        failed.map_or(Ok(()), |failure| Err(error::of_failure(&failure, Operation::Discard, &inner.name)))
    }

    /// Bytes of the device that are in use.
    pub fn mapped_bytes(&self) -> u64 {
        let state = self.inner.state.read();
        let live = state.objects.iter().filter(|entry| entry.object.kind == ObjectKind::Data);
        live.map(|entry| u64::from(entry.live) * BLOCK as u64).sum::<u64>().min(self.len())
    }
}

/// Checks the header of an object, and with `deep` all of it.
fn open_object(object: &NewObject, deep: bool, bytes: &Bytes) -> std::result::Result<(), Malformed> {
    Header::decode(object.id, object.nonce, bytes)?;
    if !deep {
        return Ok(());
    }
    if bytes.len() as u64 != u64::from(object.bytes) {
        return Err(Malformed::new(format!("it has {} bytes instead of {}", bytes.len(), object.bytes)));
    }
    for frame in 0..frames(object.blocks) {
        let start = object.header_bytes as usize + frame as usize * frame_bytes(FRAME_BLOCKS);
        let end = (start + frame_bytes(FRAME_BLOCKS)).min(bytes.len());
        open_frame(object.id, object.nonce, frame, &bytes[start.min(end)..end])?;
    }
    Ok(())
}
