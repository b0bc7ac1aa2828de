//! What happened between two moments of a mount.

use super::figures::{BackPressureFigures, CallerFigures, Figures, KindFigures, ObjectFigures, Times};
use espalier_fuse::metrics::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Requests of one kind in a period.
#[derive(Debug, Clone)]
pub(super) struct KindPeriod {
    pub(super) kind: String,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) work: Histogram,
    pub(super) queue: Histogram,
}

/// What the processes of one name asked for in a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallerPeriod {
    pub(super) name: String,
    pub(super) processes: usize,
    /// One of them.
    pub(super) pid: u32,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) work_nanos: u64,
}

/// Requests to the device in a period.
#[derive(Debug, Clone)]
pub(super) struct DevicePeriod {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) reads: Histogram,
    pub(super) writes: Histogram,
    pub(super) syncs: Histogram,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Period {
    pub(super) seconds: f64,
    /// The figures at the end.
    pub(super) after: Figures,
    /// The kinds that came up, those on which the server worked longest first.
    pub(super) kinds: Vec<KindPeriod>,
    /// Those that asked most come first.
    pub(super) callers: Vec<CallerPeriod>,
    pub(super) device: DevicePeriod,
    pub(super) checkpoints: u64,
    pub(super) log_bytes: u64,
    pub(super) log_syncs: u64,
    /// Seconds of all writers: what they wrote to the log themselves, how long they were slowed
    /// down, and how long they were stopped.
    pub(super) stalls: [f64; 3],
    /// Look-ups in the caches of pieces and names: those that found something, and all.
    pub(super) pieces: [u64; 2],
    pub(super) names: [u64; 2],
    /// Requests to the object store in the period, and what it stores at the end.
    pub(super) objects: Option<ObjectFigures>,
}

impl Period {
    /// What happened from `before` to `after`; without it, since the server began. A server that
    /// has replaced the one of `before` counts from 0 on, so its beginning is that of the period.
    pub(super) fn between(before: Option<&Figures>, after: &Figures) -> Self {
        let empty = Figures::nothing(after);
        let is_of_one_server =
            |then: &&Figures| then.mount.pid == after.mount.pid && then.up_seconds <= after.up_seconds;
        let before = before.filter(is_of_one_server).unwrap_or(&empty);
        let since = |of: fn(&Figures) -> u64| of(after).saturating_sub(of(before));
        let times = |of: fn(&Figures) -> &Times| of(after).histogram().since(&of(before).histogram());
        let (now, then) = (&after.back_pressure, &before.back_pressure);
        let stall = |of: fn(&BackPressureFigures) -> f64| (of(now) - of(then)).max(0.0);
        let pieces = since(|of| of.memory.cache_hits);
        let names = since(|of| of.memory.names_hits);
        Self {
            seconds: (after.up_seconds - before.up_seconds).max(1e-9),
            kinds: kinds(before, after),
            callers: callers(&before.callers, &after.callers),
            device: DevicePeriod {
                read_bytes: since(|of| of.device.read_bytes),
                written_bytes: since(|of| of.device.written_bytes),
                reads: times(|of| &of.device.reads),
                writes: times(|of| &of.device.writes),
                syncs: times(|of| &of.device.syncs),
            },
            checkpoints: since(|of| of.checkpoints.count),
            log_bytes: since(|of| of.log.written_bytes),
            log_syncs: since(|of| of.log.syncs),
            stalls: [
                stall(|of| of.wrote_log_seconds),
                stall(|of| of.slowed_seconds),
                stall(|of| of.waited_seconds),
            ],
            pieces: [pieces, pieces + since(|of| of.memory.cache_misses)],
            names: [names, names + since(|of| of.memory.names_misses)],
            objects: after.objects.as_ref().map(|now| objects(before.objects.as_ref(), now)),
            after: after.clone(),
        }
    }

    /// So much of something in each second.
    pub(super) fn rate(&self, amount: u64) -> f64 {
        amount as f64 / self.seconds
    }

    /// All requests: how many, with an error, and their bytes in and out.
    pub(super) fn totals(&self) -> [u64; 4] {
        self.kinds.iter().fold([0; 4], |[requests, errors, bytes_in, bytes_out], kind| {
            [
                requests + kind.requests,
                errors + kind.errors,
                bytes_in + kind.bytes_in,
                bytes_out + kind.bytes_out,
            ]
        })
    }

    /// Bytes of files that were read, and that were written.
    pub(super) fn data(&self) -> [u64; 2] {
        let of = |kind: &str| self.kinds.iter().find(|of| of.kind == kind);
        [of("read").map_or(0, |read| read.bytes_out), of("write").map_or(0, |write| write.bytes_in)]
    }

    /// How long the server worked at each request, whatever its kind.
    pub(super) fn work(&self) -> Histogram {
        self.kinds.iter().fold(Histogram::default(), |mut sum, kind| {
            sum.add(&kind.work);
            sum
        })
    }

    /// How many requests to the device were under way on average.
    pub(super) fn device_queue(&self) -> f64 {
        let DevicePeriod { reads, writes, syncs, .. } = &self.device;
        let nanos: u64 = [reads, writes, syncs].iter().map(|times| times.sum_nanos()).sum();
        nanos as f64 / 1e9 / self.seconds
    }

    /// The figures of this period for programs.
    pub(super) fn json(&self) -> Value {
        let [requests, errors, ..] = self.totals();
        let [read, written] = self.data();
        let after = &self.after;
        let times = |of: &Histogram| {
            let seconds = |share| of.quantile(share).map(|time| time.as_secs_f64());
            json!({ "count": of.count(), "sum_seconds": of.sum_nanos() as f64 / 1e9,
                "p50_seconds": seconds(0.5), "p99_seconds": seconds(0.99) })
        };
        let kinds = self.kinds.iter().map(|kind| {
            json!({ "kind": kind.kind, "requests": kind.requests, "errors": kind.errors,
                "bytes_in": kind.bytes_in, "bytes_out": kind.bytes_out,
                "work": times(&kind.work), "queue": times(&kind.queue) })
        });
        json!({
            "unix_seconds": after.unix_seconds,
            "period_seconds": self.seconds,
            "mount": after.mount,
            "requests": requests, "errors": errors,
            "read_bytes": read, "written_bytes": written,
            "kinds": kinds.collect::<Vec<_>>(),
            "kernel_requests": after.kernel_requests,
            "caches": { "pieces_found": self.pieces[0], "pieces_wanted": self.pieces[1],
                "names_found": self.names[0], "names_wanted": self.names[1] },
            "memory": after.memory,
            "log": after.log,
            "log_written_bytes": self.log_bytes,
            "checkpoints": self.checkpoints,
            "batches_behind": after.checkpoints.batches_behind,
            "back_pressure": { "wrote_log_seconds": self.stalls[0], "slowed_seconds": self.stalls[1],
                "waited_seconds": self.stalls[2] },
            "device": { "read_bytes": self.device.read_bytes, "written_bytes": self.device.written_bytes,
                "reads": times(&self.device.reads), "writes": times(&self.device.writes),
                "syncs": times(&self.device.syncs), "in_flight": after.device.in_flight,
                "average_in_flight": self.device_queue() },
            "objects": self.objects,
            "space": after.space,
        })
    }
}

impl Figures {
    /// The figures of the moment in which the server of `of` began.
    fn nothing(of: &Self) -> Self {
        Self {
            unix_seconds: of.unix_seconds - of.up_seconds,
            up_seconds: 0.0,
            mount: of.mount.clone(),
            kinds: Vec::new(),
            next_kind: None,
            callers: Vec::new(),
            kernel_requests: None,
            memory: Default::default(),
            log: Default::default(),
            checkpoints: Default::default(),
            back_pressure: Default::default(),
            device: Default::default(),
            objects: None,
            space: Default::default(),
        }
    }
}

fn kinds(before: &Figures, after: &Figures) -> Vec<KindPeriod> {
    let mut kinds: Vec<KindPeriod> = after
        .kinds
        .iter()
        .map(|now| kind(before.kinds.iter().find(|then| then.kind == now.kind), now))
        .filter(|kind| kind.requests > 0)
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.work.sum_nanos()));
    kinds
}

fn kind(before: Option<&KindFigures>, now: &KindFigures) -> KindPeriod {
    let count = |of: fn(&KindFigures) -> u64| of(now).saturating_sub(before.map_or(0, of));
    let times = |of: fn(&KindFigures) -> &Times| {
        let before = before.map(|before| of(before).histogram()).unwrap_or_default();
        of(now).histogram().since(&before)
    };
    KindPeriod {
        kind: now.kind.clone(),
        requests: count(|of| of.requests),
        errors: count(|of| of.errors),
        bytes_in: count(|of| of.bytes_in),
        bytes_out: count(|of| of.bytes_out),
        work: times(|of| &of.work),
        queue: times(|of| &of.queue),
    }
}

/// Requests since `before`, and what is stored now.
fn objects(before: Option<&ObjectFigures>, now: &ObjectFigures) -> ObjectFigures {
    let since = |of: fn(&ObjectFigures) -> u64| of(now).saturating_sub(before.map_or(0, of));
    ObjectFigures {
        puts: since(|of| of.puts),
        gets: since(|of| of.gets),
        deletes: since(|of| of.deletes),
        lists: since(|of| of.lists),
        repeats: since(|of| of.repeats),
        put_bytes: since(|of| of.put_bytes),
        got_bytes: since(|of| of.got_bytes),
        ..now.clone()
    }
}

/// Processes that were dropped from the table and are there again count from 0 on.
fn callers(before: &[CallerFigures], after: &[CallerFigures]) -> Vec<CallerPeriod> {
    let mut names: BTreeMap<&str, CallerPeriod> = BTreeMap::new();
    for now in after {
        let then = before.iter().find(|then| then.pid == now.pid && then.requests <= now.requests);
        let since = |of: fn(&CallerFigures) -> u64| of(now).saturating_sub(then.map_or(0, of));
        let requests = since(|of| of.requests);
        if requests == 0 {
            continue;
        }
        let none = CallerPeriod {
            name: now.name.clone(),
            processes: 0,
            pid: now.pid,
            requests: 0,
            bytes: 0,
            work_nanos: 0,
        };
        let sum = names.entry(&now.name).or_insert(none);
        sum.processes += 1;
        sum.requests += requests;
        sum.bytes += since(|of| of.bytes);
        sum.work_nanos += since(|of| of.work_nanos);
    }
    let mut callers: Vec<_> = names.into_values().collect();
    callers.sort_by_key(|caller| std::cmp::Reverse(caller.requests));
    callers
}

#[cfg(test)]
mod tests;
