//! Claiming: an opener becomes the writer by putting a root with the next epoch.
//!
//! Invariants:
//! - a claim is put only if no lease runs, the opener was told to take over, or it has the journal
//!   that the root names, whose writer is dead then;
//! - a journal goes on only with the line of roots that it belongs to: every claim without it, or
//!   with another one, ends that line.

use super::options::{Access, Options};
use super::probe;
use crate::bucket::{Condition, Failure, ObjectFacts, Version};
use crate::format::{Holder, JournalPosition, Root};
use crate::journal::Journal;
use crate::requests::{Replaced, Requests};
use espalier_storage::{Environment, Error, ErrorKind, Operation};
use std::sync::Arc;

/// How often a claim is tried again because the writer that is to be fenced was faster.
const MAX_CLAIMS: usize = 20;

/// Why a device is not opened.
pub(super) enum Refusal {
    /// A request failed.
    Failed(Failure),
    /// The journal failed, or is of another line of roots.
    Device(Error),
    /// There is no store.
    None,
    /// Another writer has it, or what it left must not be lost.
    Busy(String),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The root with its version, which has to be there.
///
/// # Errors
/// As for [`Requests::read_root`]; if there is none.
pub(super) fn read_root(requests: &Requests) -> std::result::Result<(Root, ObjectFacts, Version), Refusal> {
    requests.read_root()?.ok_or(Refusal::None)
}

/// Puts a root with the next epoch, so that every other writer is fenced.
///
/// # Errors
/// Why it may not, or cannot.
pub(super) fn claim(
    requests: &Requests,
    environment: &Arc<dyn Environment>,
    access: Access,
    options: &Options,
    journal: Option<&Journal>,
) -> std::result::Result<(Root, Version), Refusal> {
    let now = if options.probe { Some(probe::probe(requests, environment)?) } else { None };
    let (mut root, mut facts, mut version) = read_root(requests)?;
    let new_journal = environment.random() | 1 << 63;
    for _ in 0..MAX_CLAIMS {
        let same_line = is_same_line(journal, &root)?;
        // The writer with the same journal is dead, since the journal's lock was to be had.
        let forced = same_line || access == Access::TakeOver;
        if !forced && let Some(busy) = lease_of(&root, &facts, now).or_else(|| journal_of(&root)) {
            return Err(Refusal::Busy(busy));
        }
        let claim = Root {
            epoch: root.epoch + 1,
            generation: root.generation + 1,
            nonce: environment.random() | 1 << 63,
            previous: root.nonce,
            session: environment.random() | 1 << 63,
            holder: options.holder(),
            journal: match journal {
                Some(_) if same_line => root.journal,
                Some(journal) => {
                    journal.begin(root.uuid, new_journal).map_err(Refusal::Device)?;
                    Some(JournalPosition { journal: new_journal, record: 0, epoch: root.epoch + 1 })
                }
                None => None,
            },
            ..root.clone()
        };
        match requests.replace_root(&claim, &Condition::Matches(version))? {
            Replaced::Done(version) => return Ok((claim, version)),
            Replaced::Lost(found) if !forced => return Err(Refusal::Busy(holder_text(&found))),
            // The writer that is to be fenced has synced meanwhile, or the claim of a dead one has
            // arrived.
            Replaced::Lost(_) => (root, facts, version) = read_root(requests)?,
        }
    }
    Err(Refusal::Busy(holder_text(&root)))
}

/// True if the root is of the line of roots that the journal belongs to: what it has is written
/// again then. If it is not, the journal must have nothing that was not stored.
fn is_same_line(journal: Option<&Journal>, root: &Root) -> std::result::Result<bool, Refusal> {
    let Some(journal) = journal else { return Ok(false) };
    if journal.is_of(&root.uuid, root.journal.as_ref()) {
        return Ok(true);
    }
    let unknown = journal.unknown().map_err(Refusal::Device)?;
    if unknown == 0 {
        return Ok(false);
    }
    let message = format!(
        "it has {unknown} records that may not have reached the store, and another writer has had the store since \
         (epoch {}), or it is of another store; they are not applied, and the journal is kept. To go on without them, \
         name another journal, or move this one away",
        root.epoch
    );
    Err(Refusal::Device(Error::new(ErrorKind::Busy, Operation::Open, journal.name(), message)))
}

/// Says that a writer which did not end in order had a journal.
fn journal_of(root: &Root) -> Option<String> {
    let left = root.journal.is_some() && !root.holder.host.is_empty();
    left.then(|| {
        format!(
            "its last writer, process {} on {}, did not end in order and had a journal, which may have what was synced \
             there last. Mount it there with the same journal (-o journal=FILE), or give that up with --take-over",
            root.holder.process, root.holder.host
        )
    })
}

/// Whose lease runs, if one does; without a time of the server's clock every lease does.
pub(super) fn lease_of(root: &Root, facts: &ObjectFacts, now: Option<u64>) -> Option<String> {
    let end = facts.modified.saturating_add(u64::from(root.holder.lease_ms));
    let runs = !root.holder.host.is_empty() && now.is_none_or(|now| now < end);
    runs.then(|| holder_text(root))
}

fn holder_text(root: &Root) -> String {
    let Holder { host, process, lease_ms } = &root.holder;
    format!(
        "process {process} on {host} has it open for writing. Let that end, or wait until its lease of {} s has run out, \
         or take the store over (mount --take-over), which ends all writing there",
        lease_ms / 1000
    )
}
