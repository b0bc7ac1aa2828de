//! The figures of a mount as OpenMetrics text, for Prometheus and what understands its language.
//!
//! Names follow the conventions of OpenMetrics: base units in the name, `_total` for counters.
//! `docs/monitoring.md` lists them all, and a test compares.

use super::figures::{Figures, KindFigures, Times};
use super::server::Watch;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// Bounds of the buckets of a histogram: powers of 4 times 1.024 us, up to 17 s. They are bounds of
/// the finer buckets that are counted, so nothing is rounded.
const BOUND_POWERS: std::ops::RangeInclusive<u32> = 10..=34;
const BOUND_STEP: usize = 2;

/// What each name begins with.
const PREFIX: &str = "espalier";

/// The text that says everything of a mount.
///
/// # Errors
/// The mount has ended.
pub(super) fn text(watch: &Arc<Watch>) -> Result<String, fmt::Error> {
    let figures = watch.figures().ok_or(fmt::Error)?;
    encode(figures)
}

fn encode(figures: Figures) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(MountCollector(figures)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct MountCollector(Figures);

/// Writes metrics one after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

type Label<'a> = [(&'static str, &'a str); 1];

impl Writer<'_> {
    fn metric(
        &mut self,
        (name, unit, help): (&str, Option<Unit>, &str),
        kind: MetricType,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        write(&mut self.0.encode_descriptor(name, help, unit.as_ref(), kind)?)
    }

    fn gauge(&mut self, of: (&str, Option<Unit>, &str), value: f64) -> fmt::Result {
        self.metric(of, MetricType::Gauge, |encoder| encoder.encode_gauge(&value))
    }

    fn counter(&mut self, of: (&str, Option<Unit>, &str), value: f64) -> fmt::Result {
        self.metric(of, MetricType::Counter, |encoder| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    /// A metric of this type for each value of a label.
    fn gauges<'a>(
        &mut self,
        of: (&str, Option<Unit>, &str),
        values: impl IntoIterator<Item = (Label<'a>, f64)>,
    ) -> fmt::Result {
        self.metric(of, MetricType::Gauge, |encoder| {
            values
                .into_iter()
                .try_for_each(|(label, value)| encoder.encode_family(&label)?.encode_gauge(&value))
        })
    }

    fn counters<'a>(
        &mut self,
        of: (&str, Option<Unit>, &str),
        values: impl IntoIterator<Item = (Label<'a>, f64)>,
    ) -> fmt::Result {
        self.metric(of, MetricType::Counter, |encoder| {
            values.into_iter().try_for_each(|(label, value)| {
                encoder.encode_family(&label)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
            })
        })
    }

    fn times<'a>(
        &mut self,
        (name, help): (&str, &str),
        values: impl IntoIterator<Item = (Label<'a>, &'a Times)>,
    ) -> fmt::Result {
        self.metric((name, Some(Unit::Seconds), help), MetricType::Histogram, |encoder| {
            values.into_iter().try_for_each(|(label, times)| {
                let (sum, count, buckets) = buckets(times);
                encoder.encode_family(&label)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            })
        })
    }
}

/// Sum in seconds, count, and the counts between the bounds.
fn buckets(times: &Times) -> (f64, u64, Vec<(f64, u64)>) {
    let histogram = times.histogram();
    let (mut buckets, mut before) = (Vec::new(), 0);
    for power in BOUND_POWERS.step_by(BOUND_STEP) {
        let below = histogram.count_below(1 << power);
        buckets.push(((1u64 << power) as f64 / 1e9, below - before));
        before = below;
    }
    buckets.push((f64::INFINITY, histogram.count() - before));
    (histogram.sum_nanos() as f64 / 1e9, histogram.count(), buckets)
}

impl Collector for MountCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        mount(&mut writer, &self.0)?;
        requests(&mut writer, &self.0)?;
        memory(&mut writer, &self.0)?;
        log(&mut writer, &self.0)?;
        device(&mut writer, &self.0)?;
        objects(&mut writer, &self.0)?;
        space(&mut writer, &self.0)
    }
}

fn mount(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let labels = [
        ("directory", figures.mount.directory.as_str()),
        ("source", figures.mount.source.as_str()),
        ("transport", figures.mount.transport.as_str()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    writer.metric(("mount", None, "What is mounted where"), MetricType::Info, |encoder| {
        encoder.encode_info(&labels)
    })?;
    let begun = figures.unix_seconds - figures.up_seconds;
    writer.gauge(("mount_start_time", Some(Unit::Seconds), "When it was mounted, since the epoch"), begun)
}

fn requests(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let kinds = &figures.kinds;
    // Counters of each kind.
    let count = |of: fn(&KindFigures) -> u64| {
        kinds.iter().map(move |kind| ([("kind", kind.kind.as_str())], of(kind) as f64))
    };
    writer.counters(("requests", None, "Requests of the kernel"), count(|kind| kind.requests))?;
    writer.counters(
        ("request_errors", None, "Requests that were answered with an error"),
        count(|kind| kind.errors),
    )?;
    writer.counters(
        ("request_received", Some(Unit::Bytes), "Data in requests, names and attributes included"),
        count(|kind| kind.bytes_in),
    )?;
    writer.counters(
        ("request_sent", Some(Unit::Bytes), "Data in answers, attributes included"),
        count(|kind| kind.bytes_out),
    )?;
    let work = kinds.iter().map(|kind| ([("kind", kind.kind.as_str())], &kind.work));
    let help = "How long the server worked at a request, waits included; each of a sample counts for 16";
    writer.times(("request_work", help), work)?;
    let help = "How long the thread with a request waited for a CPU, of one request in 4096";
    let queue = kinds.iter().map(|kind| ([("kind", kind.kind.as_str())], &kind.queue));
    writer.times(("request_queue", help), queue)?;
    if let Some(held) = figures.kernel_requests {
        let help = "Requests that the kernel holds: they wait for a thread, or are served";
        writer.gauge(("kernel_requests", None, help), held as f64)?;
    }
    let back = &figures.back_pressure;
    writer.counters(
        ("back_pressure", Some(Unit::Seconds), "What writers were kept from, all of them together"),
        [
            ([("how", "wrote_log")], back.wrote_log_seconds),
            ([("how", "slowed")], back.slowed_seconds),
            ([("how", "waited")], back.waited_seconds),
        ],
    )
}

fn memory(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let memory = &figures.memory;
    let bytes = Some(Unit::Bytes);
    writer.gauge(
        ("memory_budget", bytes.clone(), "Memory that the store may take"),
        memory.budget_bytes as f64,
    )?;
    writer.gauges(
        ("memory", bytes, "Memory by what it holds"),
        [
            ([("holds", "cache")], memory.cache_bytes as f64),
            ([("holds", "memtables")], memory.memtable_bytes as f64),
            ([("holds", "dirty")], memory.dirty_bytes as f64),
            ([("holds", "names")], memory.names_bytes as f64),
        ],
    )?;
    writer.counters(
        ("cache_hits", None, "Look-ups in a cache that found something"),
        [([("cache", "pieces")], memory.cache_hits as f64), ([("cache", "names")], memory.names_hits as f64)],
    )?;
    writer.counters(
        ("cache_misses", None, "Look-ups in a cache that did not"),
        [
            ([("cache", "pieces")], memory.cache_misses as f64),
            ([("cache", "names")], memory.names_misses as f64),
        ],
    )?;
    let help = "Files that were stored in the kernel's pages before they were asked for";
    writer.counter(("files_prefetched", None, help), memory.files_prefetched as f64)
}

fn log(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let log = &figures.log;
    let bytes = Some(Unit::Bytes);
    writer.gauge(("log_capacity", bytes.clone(), "Size of the log"), log.capacity_bytes as f64)?;
    writer.gauge(
        ("log_used", bytes.clone(), "Part of the log that no checkpoint covers"),
        log.used_bytes as f64,
    )?;
    writer.counter(("log_written", bytes, "Written to the log"), log.written_bytes as f64)?;
    writer.counter(("log_groups", None, "Groups of batches written to the log"), log.groups as f64)?;
    writer.counter(("log_batches", None, "Batches in them"), log.batches as f64)?;
    writer.counter(("log_syncs", None, "Syncs of the log"), log.syncs as f64)?;
    writer.counter(("checkpoints", None, "Checkpoints"), figures.checkpoints.count as f64)?;
    writer.gauge(
        ("checkpoint_lag_batches", None, "Batches that the newest checkpoint does not cover"),
        figures.checkpoints.batches_behind as f64,
    )
}

fn device(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let device = &figures.device;
    writer.counter(("device_read", Some(Unit::Bytes), "Read from the device"), device.read_bytes as f64)?;
    writer.counter(
        ("device_written", Some(Unit::Bytes), "Written to the device"),
        device.written_bytes as f64,
    )?;
    writer.times(
        ("device_request", "How long the device took for a request"),
        [
            ([("operation", "read")], &device.reads),
            ([("operation", "write")], &device.writes),
            ([("operation", "sync")], &device.syncs),
        ],
    )?;
    writer.gauge(("device_in_flight", None, "Requests to the device under way"), device.in_flight as f64)
}

fn objects(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let Some(objects) = &figures.objects else { return Ok(()) };
    let bytes = Some(Unit::Bytes);
    writer.counters(
        ("object_requests", None, "Requests to the object store, those that were repeated included"),
        [
            ([("verb", "put")], objects.puts as f64),
            ([("verb", "get")], objects.gets as f64),
            ([("verb", "delete")], objects.deletes as f64),
            ([("verb", "list")], objects.lists as f64),
        ],
    )?;
    let help = "Requests to the object store that were made because one before had failed";
    writer.counter(("object_repeats", None, help), objects.repeats as f64)?;
    writer.counter(("object_put", bytes.clone(), "Put into the object store"), objects.put_bytes as f64)?;
    writer.counter(("object_got", bytes.clone(), "Got from the object store"), objects.got_bytes as f64)?;
    writer.gauges(
        ("object_store", bytes, "What the object store has"),
        [
            ([("of", "live")], objects.live_bytes as f64),
            ([("of", "stored")], objects.stored_bytes as f64),
            ([("of", "dead")], objects.dead_bytes as f64),
        ],
    )?;
    let help = "Records of the journal that the object store does not have yet";
    writer.gauge(("object_journal_records", None, help), objects.journal_records as f64)
}

fn space(writer: &mut Writer<'_>, figures: &Figures) -> fmt::Result {
    let space = &figures.space;
    let each = [
        ("size", "The whole device", space.total_bytes),
        ("free", "Not used by anything", space.free_bytes),
        ("fixed", "Superblocks and log", space.fixed_bytes),
        ("reserved", "Of what is free: for changes that are not written yet", space.reserved_bytes),
        ("kept", "Of what is free: for files that were promised room", space.kept_bytes),
        ("deferred", "Removed, but a checkpoint or a reader still needs it", space.deferred_bytes),
        ("dead_values", "Removed, in the middle of what is in use", space.dead_value_bytes),
        ("longest_free", "The longest run of free space", space.longest_free_bytes),
    ];
    each.into_iter().try_for_each(|(name, help, value)| {
        writer.gauge((&format!("space_{name}"), Some(Unit::Bytes), help), value as f64)
    })
}

#[cfg(test)]
mod tests;
