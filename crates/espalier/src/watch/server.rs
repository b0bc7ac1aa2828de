//! The server's side: makes the figures, and answers the commands that ask for them and for traces.
//!
//! An answer is the value of an extended attribute and so has at most 64 KiB. Kinds of requests
//! come in pages, and a trace in parts.

use super::device::MeteredDevice;
use super::figures::{Figures, KindFigures, KindPage, MountFigures, ObjectFigures};
use crate::backing::{Backing, LeasedDevice};
use espalier_engine::Store;
use espalier_fs::FileSystem;
use espalier_fuse::Mount;
use espalier_fuse::metrics::{Metrics, TRACE_ABANDONED_AFTER, TraceEvent, TraceFilter};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The longest answer of a server, in bytes: what an extended attribute can hold.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Asks for figures.
pub(super) const STAT: &str = "stat";
/// The same, with the callers.
pub(super) const STAT_CALLERS: &str = "stat.callers";
/// Asks for kinds of requests from a number on.
pub(super) const STAT_KINDS: &str = "stat.kinds.";
/// Begins a trace: nanoseconds below which a request is none of it, and a process or 0.
pub(super) const TRACE_BEGIN: &str = "trace.begin.";
/// Asks for the next part of a trace.
pub(super) const TRACE_READ: &str = "trace.read.";
/// Ends a trace.
pub(super) const TRACE_END: &str = "trace.end.";

/// Processes that are told.
const MAX_CALLERS: usize = 64;
/// JSON of the kinds of an answer, in bytes, beside what else it holds.
const MAX_KINDS_BYTES: usize = MAX_ANSWER_BYTES / 2;
/// JSON of the events of an answer, in bytes. The longest event has a path of two times 4 KiB, all
/// of it escaped.
const MAX_EVENTS_BYTES: usize = MAX_ANSWER_BYTES - 2048;

/// Makes the figures of a mount. It holds nothing alive.
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    store: Weak<Store>,
    fs: Weak<FileSystem>,
    device: Weak<MeteredDevice>,
    /// The object store below, if there is one.
    objects: Option<Weak<LeasedDevice>>,
    /// Set when the mount is there.
    mount: OnceLock<Weak<Mount>>,
    directory: String,
    source: String,
}

impl Watch {
    /// Watches a mount of `source` at `directory` that is about to be made.
    pub(crate) fn new(
        (source, directory): (&Path, &Path),
        metrics: &Arc<Metrics>,
        store: &Arc<Store>,
        fs: &Arc<FileSystem>,
        (device, backing): (&Arc<MeteredDevice>, &Backing),
    ) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::clone(metrics),
            store: Arc::downgrade(store),
            fs: Arc::downgrade(fs),
            device: Arc::downgrade(device),
            objects: match backing {
                Backing::Object(objects) => Some(Arc::downgrade(objects)),
                Backing::File(_) => None,
            },
            mount: OnceLock::new(),
            directory: directory.to_string_lossy().into_owned(),
            source: source.to_string_lossy().into_owned(),
        })
    }

    /// The mount is there.
    pub(crate) fn attach(&self, mount: &Arc<Mount>) {
        // There is one mount, so it is set once.
        let _ = self.mount.set(Arc::downgrade(mount));
    }

    /// The figures now, without callers; `None` when the mount has ended.
    pub(super) fn figures(&self) -> Option<Figures> {
        let mut figures = self.without_kinds()?;
        figures.kinds = self.metrics.snapshot().iter().map(KindFigures::from).collect();
        Some(figures)
    }

    fn without_kinds(&self) -> Option<Figures> {
        let (store, fs) = (self.store.upgrade()?, self.fs.upgrade()?);
        let mount = self.mount.get().and_then(Weak::upgrade);
        let identity = MountFigures {
            directory: self.directory.clone(),
            source: self.source.clone(),
            transport: mount.as_ref().map(|mount| mount.transport().to_string()).unwrap_or_default(),
            pid: std::process::id(),
        };
        let waiting = mount.and_then(|mount| mount.kernel_requests());
        let device = self.device.upgrade()?.figures();
        let objects = self.objects.as_ref().and_then(Weak::upgrade);
        Some(Figures {
            objects: objects.map(|objects| ObjectFigures::from(objects.object())),
            ..Figures::of(identity, &self.metrics, &store, &fs.statistics(), device, waiting)
        })
    }

    /// What the server answers to `command`; `None` if it is none of these.
    pub(crate) fn answer(&self, command: &str) -> Option<String> {
        match command {
            STAT => Some(self.stat(false)?.to_string()),
            STAT_CALLERS => Some(self.stat(true)?.to_string()),
            _ => {
                if let Some(from) = command.strip_prefix(STAT_KINDS) {
                    return serde_json::to_string(&self.kinds(from.parse().ok()?)).ok();
                }
                self.trace(command).map(|answer| answer.to_string())
            }
        }
    }

    fn stat(&self, callers: bool) -> Option<Value> {
        let mut figures = self.without_kinds()?;
        // The question itself is a request.
        figures.kernel_requests = figures.kernel_requests.map(|count| count.saturating_sub(1));
        if callers {
            figures.callers = self.metrics.callers(MAX_CALLERS).into_iter().map(Into::into).collect();
        }
        let KindPage { kinds, next_kind } = self.kinds(0);
        (figures.kinds, figures.next_kind) = (kinds, next_kind);
        serde_json::to_value(figures).ok()
    }

    /// As many kinds as an answer holds, from number `from` on. Their order stays, but for kinds
    /// that come up for the first time.
    fn kinds(&self, from: usize) -> KindPage {
        let all = self.metrics.snapshot();
        let (mut kinds, mut bytes) = (Vec::new(), 0);
        for (at, kind) in all.iter().enumerate().skip(from) {
            let kind = KindFigures::from(kind);
            bytes += serde_json::to_string(&kind).map_or(0, |text| text.len());
            if bytes > MAX_KINDS_BYTES && !kinds.is_empty() {
                return KindPage { kinds, next_kind: Some(at) };
            }
            kinds.push(kind);
        }
        KindPage { kinds, next_kind: None }
    }

    fn trace(&self, command: &str) -> Option<Value> {
        let tracer = self.metrics.tracer();
        if let Some(filter) = command.strip_prefix(TRACE_BEGIN) {
            let (slow, pid) = filter.split_once('.')?;
            let pid: u32 = pid.parse().ok()?;
            let filter = TraceFilter {
                slow: Duration::from_nanos(slow.parse().ok()?),
                pid: (pid != 0).then_some(pid),
            };
            return Some(match tracer.begin(filter) {
                Some(number) => json!({ "trace": number }),
                None => {
                    let seconds = TRACE_ABANDONED_AFTER.as_secs();
                    let told = format!("too many traces are on; end one, or wait {seconds} seconds");
                    json!({ "error": told })
                }
            });
        }
        if let Some(number) = command.strip_prefix(TRACE_END) {
            tracer.end(number.parse().ok()?);
            return Some(json!({}));
        }
        let number = command.strip_prefix(TRACE_READ)?.parse().ok()?;
        let mut bytes = 0;
        let part = tracer.read(number, |event| {
            bytes += event_json(event).to_string().len() + 1;
            bytes <= MAX_EVENTS_BYTES
        });
        Some(match part {
            None => json!({ "ended": true }),
            Some(part) => json!({
                "events": part.events.iter().map(event_json).collect::<Vec<_>>(),
                "lost": part.lost,
                "more": part.more,
            }),
        })
    }
}

/// One request of a trace, as `espalier trace --json` prints it.
fn event_json(event: &TraceEvent) -> Value {
    json!({
        "unix_seconds": event.begun.as_secs_f64(),
        "kind": event.kind,
        "thread": event.thread,
        "path": event.path,
        "queue_seconds": event.queue.map(|queue| queue.as_secs_f64()),
        "work_seconds": event.work.as_secs_f64(),
        "bytes": event.bytes,
        "errno": event.errno,
    })
}
