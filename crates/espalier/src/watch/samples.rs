//! Figures of a mount, for tests of what shows them.

use super::figures::{
    BackPressureFigures, CallerFigures, CheckpointFigures, DeviceFigures, Figures, KindFigures, LogFigures,
    MemoryFigures, MountFigures, ObjectFigures, SpaceFigures, Times,
};
use espalier_fuse::metrics::SharedHistogram;
use std::time::Duration;

/// `count` times of so many microseconds each, and one ten times as long.
fn times(count: usize, micros: u64) -> Times {
    let histogram = SharedHistogram::default();
    (0..count).for_each(|_| histogram.count(Duration::from_micros(micros)));
    histogram.count(Duration::from_micros(10 * micros));
    (&histogram.snapshot()).into()
}

fn kind(kind: &str, count: usize, micros: u64, bytes: [u64; 2]) -> KindFigures {
    let [bytes_in, bytes_out] = bytes;
    let (work, queue) = (times(count, micros), times(1, 3));
    let requests = count as u64 + 1;
    KindFigures { kind: kind.into(), requests, errors: 0, bytes_in, bytes_out, work, queue }
}

fn caller(pid: u32, name: &str, requests: u64) -> CallerFigures {
    CallerFigures { pid, name: name.into(), requests, bytes: requests << 10, work_nanos: requests * 9000 }
}

/// Figures of a mount that was made two seconds ago.
pub(super) fn figures() -> Figures {
    let errors = KindFigures { errors: 45, ..kind("unlink", 50, 20, [400, 0]) };
    Figures {
        unix_seconds: 1_790_000_000.0,
        up_seconds: 2.0,
        mount: MountFigures {
            directory: "/mnt".into(),
            source: "/srv/disk.img".into(),
            transport: "io_uring".into(),
            pid: 4321,
        },
        kinds: vec![
            kind("lookup", 9000, 8, [90_000, 1_296_000]),
            kind("read", 300, 90, [0, 30 << 20]),
            kind("write", 500, 40, [10 << 20, 4000]),
            errors,
        ],
        next_kind: None,
        callers: vec![
            caller(7, "cc1", 4000),
            caller(8, "cc1", 3000),
            caller(9, "make", 200),
            caller(0, "kernel", 20),
        ],
        kernel_requests: Some(3),
        memory: MemoryFigures {
            budget_bytes: 2 << 30,
            cache_bytes: 900 << 20,
            cache_hits: 970,
            cache_misses: 30,
            memtable_bytes: 20 << 20,
            dirty_bytes: 33 << 20,
            names_bytes: 12 << 20,
            names_hits: 80,
            names_misses: 20,
            files_prefetched: 5,
        },
        log: LogFigures {
            capacity_bytes: 512 << 20,
            used_bytes: 64 << 20,
            written_bytes: 30 << 20,
            groups: 40,
            batches: 9000,
            syncs: 13,
        },
        checkpoints: CheckpointFigures { count: 17, batches_behind: 400 },
        back_pressure: BackPressureFigures { slowed_seconds: 0.4, ..BackPressureFigures::default() },
        device: DeviceFigures {
            read_bytes: 5 << 20,
            written_bytes: 50 << 20,
            reads: times(100, 200),
            writes: times(50, 900),
            syncs: times(10, 4000),
            in_flight: 2,
        },
        objects: None,
        space: SpaceFigures {
            total_bytes: 20 << 30,
            free_bytes: 3 << 30,
            fixed_bytes: 513 << 20,
            reserved_bytes: 10 << 20,
            kept_bytes: 6 << 20,
            deferred_bytes: 100 << 20,
            dead_value_bytes: 7 << 20,
            longest_free_bytes: 1 << 30,
        },
    }
}

/// The same on an object store.
pub(super) fn object_figures() -> Figures {
    let objects = ObjectFigures {
        puts: 24,
        gets: 9,
        deletes: 4,
        lists: 2,
        repeats: 3,
        put_bytes: 48 << 20,
        got_bytes: 5 << 20,
        live_bytes: 8 << 30,
        stored_bytes: 9 << 30,
        dead_bytes: 1 << 30,
        journal_records: 321,
    };
    Figures { objects: Some(objects), ..figures() }
}
