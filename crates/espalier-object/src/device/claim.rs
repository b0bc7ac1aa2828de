//! Claiming: an opener becomes the writer by putting a root with the next epoch.
//!
//! Invariants:
//! - a claim is put only if no lease runs, the opener was told to take over, or it has the journal
//!   that the root names, whose writer is dead then;
//! - a claim is put only after the probe, and no table counts that is not of the root before it;
//! - a journal goes on only with the line of roots that it belongs to: every claim without it, or
//!   with another one, ends that line;
//! - a journal that begins anew does so once for a store, before the root is read that the first
//!   claim replaces: neither that claim nor those after it wait for the journal's device, so they
//!   are as fast as those without a journal.

use super::inner::Line;
use super::options::{Access, Options};
use super::probe::Probe;
use super::tables::{PagesGet, Tables, TablesGet};
use crate::bucket::{Condition, Failure, ObjectFacts, Version};
use crate::format::{Holder, JournalPosition, Root};
use crate::journal::Journal;
use crate::requests::{Replaced, Requests};
use espalier_storage::{Environment, Error, ErrorKind, Operation};
use std::sync::Arc;
use std::time::Duration;

/// For so long claims are tried, however long the lease is.
const MAX_CLAIMING: Duration = Duration::from_secs(600);
/// A writer that is to be fenced may be faster: a claim is tried so often at least, and for as long
/// as its lease lasts.
const MIN_CLAIMS: usize = 20;
/// The longest pause between two claims. It is random, so that a writer which puts roots at equal
/// times does not meet each claim.
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

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

/// What an opener becomes the writer with.
pub(super) struct Claimed {
    pub(super) line: Line,
    /// The tables of the root, if they were got meanwhile.
    pub(super) tables: Option<Tables>,
}

/// Puts a root with the next epoch, so that every other writer is fenced. Probe, root, tables and
/// pages are got side by side: three rounds of requests, or two without a probe and tables, and one
/// more if a journal begins anew.
///
/// # Errors
/// Why it may not, or cannot.
pub(super) fn claim(
    requests: &Requests,
    environment: &Arc<dyn Environment>,
    access: Access,
    options: &Options,
    journal: Option<&Journal>,
) -> std::result::Result<Claimed, Refusal> {
    let probe = options.probe.then(|| Probe::begin(requests, environment));
    let found = read_root(requests);
    let tables = found.as_ref().ok().and_then(|(root, ..)| TablesGet::begin(requests, root));
    let probed = probe.map(|probe| probe.finish(requests)).transpose()?;
    let now = probed.as_ref().map(|probed| probed.now);
    let claimed = found.and_then(|(root, facts, version)| {
        let got = tables.and_then(|get| Got::begin_pages(requests, get, &root));
        let claim = Claim { requests, environment, access, options, journal, now };
        let (line, is_first) = claim.put(root, facts, version)?;
        // What cannot be got here, or is of a root that was replaced, is got again.
        let tables = got.filter(|_| is_first).and_then(|got| got.finish(requests));
        Ok(Claimed { line, tables })
    });
    if let Some(probed) = probed {
        probed.end(requests);
    }
    claimed
}

/// The tables of a root, with the pages that are on their way.
struct Got(Tables, PagesGet);

impl Got {
    fn begin_pages(requests: &Requests, get: TablesGet, root: &Root) -> Option<Self> {
        let tables = get.finish(requests, root).ok()?;
        let pages = tables.begin_pages(requests, root).ok()?;
        Some(Self(tables, pages))
    }

    fn finish(self, requests: &Requests) -> Option<Tables> {
        let Self(mut tables, pages) = self;
        tables.load(pages.finish(requests).ok()?);
        Some(tables)
    }
}

/// What an opener claims with.
struct Claim<'a> {
    requests: &'a Requests,
    environment: &'a Arc<dyn Environment>,
    access: Access,
    options: &'a Options,
    journal: Option<&'a Journal>,
    /// The time of the server's clock.
    now: Option<u64>,
}

impl Claim<'_> {
    /// Puts the root that follows `root`, or the one that is there by then; returns it, and true if
    /// it follows `root`.
    fn put(
        &self,
        mut root: Root,
        mut facts: ObjectFacts,
        mut version: Version,
    ) -> std::result::Result<(Line, bool), Refusal> {
        let new_journal = self.environment.random() | 1 << 63;
        // What the root says is the other writer's word.
        let lease = Duration::from_millis(u64::from(root.holder.lease_ms)).min(MAX_CLAIMING);
        let until = self.environment.monotonic() + lease;
        let first = root.nonce;
        // The store for which the journal has begun anew.
        let mut begun: Option<[u8; 16]> = None;
        let mut claims = 0;
        while claims < MIN_CLAIMS || self.environment.monotonic() < until {
            let has_begun = begun == Some(root.uuid);
            let same_line = !has_begun && is_same_line(self.journal, &root)?;
            // The writer with the same journal is dead, since the journal's lock was to be had.
            let forced = same_line || self.access == Access::TakeOver;
            let busy = || lease_of(&root, &facts, self.now).or_else(|| journal_of(&root));
            if !forced && let Some(busy) = busy() {
                return Err(Refusal::Busy(busy));
            }
            if let Some(journal) = self.journal.filter(|_| !same_line && !has_begun) {
                journal.begin(root.uuid, new_journal).map_err(Refusal::Device)?;
                begun = Some(root.uuid);
                // That took a while, in which the writer may have synced.
                (root, facts, version) = read_root(self.requests)?;
                continue;
            }
            let claim = Root {
                epoch: root.epoch + 1,
                generation: root.generation + 1,
                nonce: self.environment.random() | 1 << 63,
                previous: root.nonce,
                session: self.environment.random() | 1 << 63,
                holder: self.options.holder(),
                journal: self.position(&root, same_line, new_journal),
                ..root.clone()
            };
            let put_at = self.environment.monotonic();
            match self.requests.replace_root(&claim, &Condition::Matches(version))? {
                Replaced::Done(version) => {
                    return Ok((Line::new(claim, version, put_at), root.nonce == first));
                }
                Replaced::Lost(found) if !forced => return Err(Refusal::Busy(holder_text(&found))),
                // The writer that is to be fenced has synced meanwhile, or the claim of a dead one
                // has arrived. There is no pause between the look and the claim.
                Replaced::Lost(_) => {
                    claims += 1;
                    let pause = self.environment.random() % CLAIM_PAUSE.as_nanos() as u64;
                    self.environment.sleep(Duration::from_nanos(pause));
                    (root, facts, version) = read_root(self.requests)?;
                }
            }
        }
        let held = holder_text(&root);
        let message = format!(
            "it syncs so often that {claims} claims came too late; try again, or end it there: {held}"
        );
        Err(Refusal::Busy(message))
    }

    /// What of the journal is in the map of the root that follows `root`. The journal has begun as
    /// `new_journal`, unless it goes on with the `same_line`.
    fn position(&self, root: &Root, same_line: bool, new_journal: u64) -> Option<JournalPosition> {
        if same_line {
            return root.journal;
        }
        let position = JournalPosition { journal: new_journal, record: 0, epoch: root.epoch + 1 };
        self.journal.map(|_| position)
    }
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
