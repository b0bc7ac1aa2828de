//! The ring, group by group, on a device that behaves.

use super::super::format::BLOCK_PAYLOAD_BYTES;
use super::*;

fn sync(rig: &Rig, lsn: u64) -> LogProgress {
    rig.log.sync(Lsn(lsn)).unwrap()
}

#[test]
fn nothing_in_nothing_out() {
    let (device, layout, start, rig) = fresh(8, LogConfig::default());
    assert_eq!(sync(&rig, 0), LogProgress::Done);
    assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
    assert_eq!(rig.log.used_bytes(), 0);
    drop(rig);
    assert!(open(&device, layout, start, LogConfig::default(), 2).unwrap().replayed.is_empty());
}

#[test]
fn a_batch_comes_back_as_it_was() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    let written = [
        batch(1, vec![insert("key", &b"value"[..]), delete("other")]),
        batch(2, vec![]),
        batch(3, vec![insert("large", vec![7; 10_000])]),
    ];
    for batch in &written {
        rig.log.append(batch.clone()).unwrap();
    }
    assert_eq!(sync(&rig, 3), LogProgress::Done);
    assert_eq!(rig.log.durable_lsn(), Lsn(3));
    let rig = open(&device, layout, start, LogConfig::default(), 2).unwrap();
    assert_eq!(rig.replayed, written);
    assert_eq!(rig.log.durable_lsn(), Lsn(3));
    // And goes on.
    rig.log.append(batch(4, vec![delete("key")])).unwrap();
    assert_eq!(sync(&rig, 4), LogProgress::Done);
    let rig = open(&device, layout, start, LogConfig::default(), 3).unwrap();
    assert_eq!(rig.replayed.len(), 4);
}

#[test]
fn a_sync_writes_no_more_than_what_came_before_it() {
    let (_, _, _, rig) = fresh(4096, LogConfig::default());
    rig.log.append(batch(1, vec![insert("small", &b"x"[..])])).unwrap();
    for lsn in 2..10 {
        rig.log.append(batch(lsn, vec![insert("big", vec![lsn as u8; 500_000])])).unwrap();
    }
    assert_eq!(sync(&rig, 1), LogProgress::Done);
    assert_eq!(rig.log.used_bytes(), BLOCK as u64);
    assert_eq!(rig.log.durable_lsn(), Lsn(1));
    assert!(rig.log.pending_bytes() > 4_000_000);
}

#[test]
fn large_values_of_a_large_group_are_written_once() {
    let (device, layout, start, rig) = fresh(256, LogConfig::default());
    let values: Vec<Vec<u8>> = (0..20).map(|n| vec![n; 64 << 10]).collect();
    for (lsn, value) in (1..).zip(&values) {
        rig.log.append(batch(lsn, vec![insert(&format!("{lsn}"), value.clone())])).unwrap();
    }
    assert_eq!(sync(&rig, 20), LogProgress::Done);
    let counters = rig.log.counters();
    assert_eq!(counters.bound_bytes, 20 << 16);
    assert!(counters.bytes <= 3 * BLOCK as u64, "{counters:?}");
    assert!(rig.binder.held() > 0);
    let rig = open(&device, layout, start, LogConfig::default(), 2).unwrap();
    for (batch, value) in rig.replayed.iter().zip(&values) {
        let LoggedOp::Point { op: Op::Insert(stored), .. } = &batch.ops[0] else { panic!("{batch:?}") };
        assert!(stored.in_memory().is_none());
        assert_eq!(&rig.binder.read(stored).unwrap(), value);
    }
    // The log alone holds the parts once the messages are gone, and trimming lets them go.
    let Rig { log, binder, replayed } = rig;
    drop(replayed);
    assert!(binder.held() > 0);
    log.trim(log.position_after(Lsn(20)));
    assert_eq!(binder.held(), 0);
}

/// What the first batch makes recovery write must not land on what the last one names.
#[test]
fn all_that_the_log_names_is_reserved_before_anything_is_replayed() {
    let (device, layout, start, rig) = fresh(4096, LogConfig::default());
    let mut parts = 0;
    for lsn in 1..=3 {
        let ops = (0..20).map(|n| insert(&format!("{lsn}/{n}"), vec![n; 64 << 10])).collect();
        rig.log.append(batch(lsn, ops)).unwrap();
        assert_eq!(sync(&rig, lsn), LogProgress::Done);
        assert!(rig.binder.held() > parts, "each group names parts of its own");
        parts = rig.binder.held();
    }
    drop(rig);
    let binder = TestBinder::new(device.clone(), layout.parts, 2);
    let mut held = Vec::new();
    let config = LogConfig::default();
    let opening = opening(guarded(&device), layout, start, binder.clone(), config, 2);
    let log = opening.open(&mut |_| {
        held.push(binder.held());
        Ok(())
    });
    assert_eq!(held, [parts; 3]);
    drop(log);
}

#[test]
fn data_deleted_before_it_is_written_is_not_written() {
    let (device, layout, start, rig) = fresh(4096, LogConfig::default());
    for lsn in 1..=40 {
        rig.log.append(batch(lsn, vec![insert(&format!("f/{lsn}"), vec![1; 64 << 10])])).unwrap();
    }
    let range = KeyRange::prefix(b"f/");
    rig.log.append(batch(41, vec![LoggedOp::Range { index: INDEX, range, op: RangeOp::Delete }])).unwrap();
    assert_eq!(sync(&rig, 41), LogProgress::Done);
    assert_eq!((rig.log.used_bytes(), rig.log.counters().bound_bytes), (BLOCK as u64, 0));
    let rig = open(&device, layout, start, LogConfig::default(), 2).unwrap();
    assert_eq!(rig.replayed.len(), 41);
    assert_eq!(rig.replayed[7], batch(8, vec![LoggedOp::Superseded]));
}

#[test]
fn no_room_for_value_parts_is_no_error() {
    let layout = Layout::new(2048, 2);
    let device: Arc<dyn Device> = Arc::new(espalier_storage::MemoryDevice::new(layout.bytes()));
    let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
    let rig = open(&device, layout, start, LogConfig::default(), 1).unwrap();
    let ops = vec![insert("a", vec![1; 1 << 20]), insert("b", vec![2; 1 << 20])];
    rig.log.append(batch(1, ops.clone())).unwrap();
    assert_eq!(sync(&rig, 1), LogProgress::Done);
    let rig = open(&device, layout, start, LogConfig::default(), 2).unwrap();
    assert_eq!(rig.replayed, [batch(1, ops)]);
}

#[test]
fn a_full_ring_waits_for_a_checkpoint() {
    let (device, layout, _, rig) = fresh(8, LogConfig::default());
    let mut lsn = 0;
    let mut next = |log: &Log| {
        lsn += 1;
        log.append(batch(lsn, vec![insert("k", vec![lsn as u8; 3000])])).unwrap();
        lsn
    };
    for _ in 0..8 {
        let lsn = next(&rig.log);
        assert_eq!(sync(&rig, lsn), LogProgress::Done);
    }
    assert_eq!(rig.log.used_bytes(), rig.log.capacity());
    let full = next(&rig.log);
    assert_eq!(sync(&rig, full), LogProgress::Full);
    assert_eq!(rig.log.push(0).unwrap(), LogProgress::Full);
    assert_eq!(rig.log.durable_lsn(), Lsn(8));
    // A checkpoint at 3 frees three blocks.
    rig.log.trim(rig.log.position_after(Lsn(3)));
    assert_eq!(sync(&rig, full), LogProgress::Done);
    assert_eq!(rig.log.used_bytes(), 6 * BLOCK as u64);
    // A checkpoint of batches that were never written makes them durable.
    let pending = [next(&rig.log), next(&rig.log)];
    let position = rig.log.position_after(Lsn(pending[0]));
    rig.log.trim(position);
    assert_eq!((rig.log.durable_lsn(), rig.log.used_bytes()), (Lsn(pending[0]), 0));
    assert_eq!(sync(&rig, pending[1]), LogProgress::Done);
    assert_eq!(rig.log.pending_bytes(), 0);
    let rig = open(&device, layout, position, LogConfig::default(), 2).unwrap();
    assert_eq!(rig.replayed.iter().map(|batch| batch.lsn.0).collect::<Vec<_>>(), [pending[1]]);
}

#[test]
fn a_batch_too_large_is_refused_and_the_largest_taken() {
    let (_, _, _, rig) = fresh(8, LogConfig { early_binding: u64::MAX, ..LogConfig::default() });
    let of = |len: usize| {
        let (key, value) = ("k".repeat(len / 2), vec![0; len - len / 2]);
        vec![insert(&key, value)]
    };
    let mut largest = 0;
    for bit in (0..20).rev() {
        if rig.log.check(&of(largest + (1 << bit))).is_ok() {
            largest += 1 << bit;
        }
    }
    assert!(largest > 3 * BLOCK_PAYLOAD_BYTES, "{largest}");
    let error = rig.log.append(batch(1, of(largest + 1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // Two of the largest fit beside each other, and a third after a checkpoint.
    for lsn in 1..=2 {
        rig.log.append(batch(lsn, of(largest))).unwrap();
        assert_eq!(sync(&rig, lsn), LogProgress::Done);
    }
    rig.log.append(batch(3, of(largest))).unwrap();
    assert_eq!(sync(&rig, 3), LogProgress::Full);
    rig.log.trim(rig.log.position_after(Lsn(1)));
    assert_eq!(sync(&rig, 3), LogProgress::Done);
}

/// What is on devices out there must stay readable: a change here is a new format version.
#[test]
fn the_format_stays() {
    let (device, layout, _, rig) = fresh(64, LogConfig { early_binding: 1, ..LogConfig::default() });
    let update = || crate::Update { function: 7, argument: bytes::Bytes::from_static(b"argument") };
    let point =
        |key: &[u8], op| LoggedOp::Point { index: IndexId { volume: 300, index: 1 }, key: key.into(), op };
    let range = |start: &[u8], end: Option<&[u8]>, op| {
        let range = KeyRange { start: start.into(), end: end.map(Into::into) };
        LoggedOp::Range { index: INDEX, range, op }
    };
    let ops = vec![
        point(b"dir/a", Op::Insert(vec![1; 100].into())),
        point(b"dir/ab", Op::Delete),
        point(b"dir/b", Op::Patch { offset: 70_000, bytes: Value::from(&b"patch"[..]) }),
        point(b"dir/b", Op::Update(update())),
        point(b"dir/c", Op::Insert(vec![2; 5000].into())),
        range(b"x", Some(b"y"), RangeOp::Delete),
        range(b"x", Some(b"xyz"), RangeOp::Update(update())),
        range(b"", None, RangeOp::Update(update())),
        insert("x", &b"old"[..]),
        insert("x", &b"new"[..]),
    ];
    rig.log.append(batch(1, ops)).unwrap();
    rig.log.append(batch(2, vec![insert("x", &b"newer"[..])])).unwrap();
    assert_eq!(sync(&rig, 2), LogProgress::Done);
    rig.log.append(batch(3, vec![point(b"dir", Op::Insert(vec![3; 4000].into())), delete("k")])).unwrap();
    assert_eq!(sync(&rig, 3), LogProgress::Done);
    let mut bytes = AlignedBuf::zeroed(rig.log.used_bytes() as usize);
    assert_eq!(bytes.len(), 3 * BLOCK);
    device.read_at(layout.log.byte_offset(), &mut bytes).unwrap();
    assert_eq!(xxh3_64_with_seed(&bytes, 0), 8_385_286_677_132_451_597);
}

#[test]
fn reading_alone_writes_nothing() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    rig.log.append(batch(1, vec![delete("k")])).unwrap();
    assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
    drop(rig);
    let binder = TestBinder::new(device.clone(), layout.parts, 1);
    let (mut count, device) = (0, GuardedDevice::new(device, true));
    let log = opening(device, layout, start, binder, LogConfig::default(), 1).open(&mut |_| {
        count += 1;
        Ok(())
    });
    assert_eq!((log.unwrap().durable_lsn(), count), (Lsn(1), 1));
}

#[test]
fn misuse_is_refused() {
    let (device, layout, ..) = fresh(8, LogConfig::default());
    let (_, _, _, rig) = fresh(8, LogConfig::default());
    assert_eq!(rig.log.append(batch(2, vec![])).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(rig.log.sync(Lsn(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let tiny = Extent { blocks: 7, ..layout.log };
    assert_eq!(Log::format(&guarded(&device), tiny, UUID).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
