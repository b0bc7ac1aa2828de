//! Damage is told from a torn tail, and nothing that lies on the device makes recovery panic.

use super::super::codec::{GroupEncoder, PartTable, put_varint};
use super::super::format::{GroupBuilder, GroupHeader, GroupPlace, StoreTag};
use super::model::Workload;
use super::*;
use espalier_storage::{Fault, MemoryDevice, Operation, SimulatedDevice};

/// A log with groups of several blocks, most of them known synced.
struct Written {
    device: Arc<dyn Device>,
    layout: Layout,
    start: LogPosition,
    /// First blocks of the groups, and the end.
    groups: Vec<u64>,
    /// Blocks below are known synced to later ones.
    synced: u64,
}

fn written(seed: u64) -> Written {
    let config = LogConfig { early_binding: 30_000, ..LogConfig::default() };
    let (device, layout, start, rig) = fresh(200, config);
    let mut work = Workload::new(seed);
    let (mut groups, mut synced, mut durable) = (vec![0], 0, 0);
    for lsn in 1.. {
        if groups.last().is_some_and(|end| *end > 100) {
            break;
        }
        rig.log.append(work.batch(lsn)).unwrap();
        // The group that is written now knows of the syncs before it.
        synced = durable;
        let sync = work.random.one_in(3);
        let progress = if sync { rig.log.sync(Lsn(lsn)) } else { rig.log.push(0) };
        assert_eq!(progress.unwrap(), LogProgress::Done);
        groups.push(rig.log.used_bytes() / BLOCK as u64);
        durable = if sync { *groups.last().unwrap() } else { durable };
    }
    // The binder's parts stay where they are: only the log is looked at from here on.
    std::mem::forget(rig);
    Written { device, layout, start, groups, synced }
}

impl Written {
    fn flip(&self, block: u64, byte: usize, mask: u8) {
        let offset = self.layout.log.byte_offset() + block * BLOCK as u64;
        let mut buffer = AlignedBuf::zeroed(BLOCK);
        self.device.read_at(offset, &mut buffer).unwrap();
        buffer[byte] ^= mask;
        self.device.write_at(offset, &[&buffer]).unwrap();
    }

    fn open(&self) -> Result<usize> {
        open(&self.device, self.layout, self.start, LogConfig::default(), 7).map(|rig| rig.replayed.len())
    }
}

#[test]
fn flipped_bits() {
    let (mut damaged, mut torn) = (0, 0);
    for seed in 0..40 {
        let written = written(seed);
        let whole = written.open().unwrap();
        let end = *written.groups.last().unwrap();
        for _ in 0..20 {
            let mut random = Random::new(seed ^ (damaged + torn) << 8);
            let (block, byte) = (random.below(end), random.index(BLOCK));
            let mask = 1 << random.below(8);
            written.flip(block, byte, mask);
            let outcome = written.open();
            if block < written.synced {
                let error = outcome.expect_err("damage where the log was synced");
                assert_eq!(error.kind(), ErrorKind::Damaged);
                let text = error.to_string();
                assert!(text.contains("batches") && text.contains("lost"), "{text}");
                damaged += 1;
            } else {
                let batches = outcome.unwrap_or_else(|e| panic!("seed {seed}: block {block}: {e}"));
                assert!(batches < whole, "seed {seed}: block {block}");
                torn += 1;
            }
            written.flip(block, byte, mask);
        }
        assert_eq!(written.open().unwrap(), whole);
    }
    assert!(damaged > 100 && torn > 5, "{damaged} damaged, {torn} torn");
}

#[test]
fn the_error_names_what_is_lost() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    for lsn in 1..=5 {
        rig.log.append(batch(lsn, vec![delete("k")])).unwrap();
        assert_eq!(rig.log.sync(Lsn(lsn)).unwrap(), LogProgress::Done);
    }
    let written = Written { device, layout, start, groups: vec![], synced: 4 };
    written.flip(2, 3000, 1);
    let error = written.open().unwrap_err().to_string();
    assert!(error.contains("batches 3 to 3 are lost"), "{error}");
    assert!(error.contains(&format!("byte {}", layout.log.byte_offset() + 2 * BLOCK as u64)), "{error}");
    // The last group: no block says that it was synced.
    written.flip(2, 3000, 1);
    written.flip(4, 3000, 1);
    assert_eq!(written.open().unwrap(), 4);
    // Unless the superblock says so.
    let told = Written { start: LogPosition { synced: 5, ..start }, ..written };
    assert_eq!(told.open().unwrap_err().kind(), ErrorKind::Damaged);
}

/// A checkpoint syncs the device, so its position knows more than the log's own blocks.
#[test]
fn a_checkpoint_vouches_for_what_was_pushed() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    for lsn in 1..=3 {
        rig.log.append(batch(lsn, vec![delete("k")])).unwrap();
        assert_eq!(rig.log.push(0).unwrap(), LogProgress::Done);
    }
    let position = rig.log.position_after(Lsn(1));
    let mut written = Written { device, layout, start, groups: vec![], synced: 0 };
    written.flip(2, 77, 1);
    assert_eq!(written.open().unwrap(), 2);
    written.start = position;
    let error = written.open().unwrap_err().to_string();
    assert!(error.contains("the batches from 3 on"), "{error}");
}

#[test]
fn evidence_is_found_behind_a_large_hole() {
    let (device, layout, start, rig) =
        fresh(3000, LogConfig { early_binding: u64::MAX, ..LogConfig::default() });
    let mut lsn = 0;
    // One group larger than any regular one, all of it lost but its last block.
    for ops in [
        (0..9).map(|n| insert(&format!("{n}"), vec![n; 600_000])).collect(),
        vec![delete("0")],
        vec![delete("1")],
    ] {
        lsn += 1;
        rig.log.append(batch(lsn, ops)).unwrap();
        assert_eq!(rig.log.sync(Lsn(lsn)).unwrap(), LogProgress::Done);
    }
    let blocks = rig.log.used_bytes() / BLOCK as u64;
    assert!(blocks > 1300);
    drop(rig);
    let hole = AlignedBuf::zeroed((blocks as usize - 3) * BLOCK);
    device.write_at(layout.log.byte_offset(), &[&hole]).unwrap();
    let error = open(&device, layout, start, LogConfig::default(), 2).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn a_log_of_another_store_is_not_read() {
    let (device, layout, _, rig) = fresh(64, LogConfig::default());
    rig.log.append(batch(1, vec![delete("k")])).unwrap();
    assert_eq!(rig.log.sync(Lsn(1)).unwrap(), LogProgress::Done);
    let other = b"another store id";
    let start = LogPosition { block: 0, lsn: Lsn(0), chain: StoreTag::new(other).first_chain(), synced: 0 };
    let binder = TestBinder::new(device.clone(), layout.parts, 1);
    let opening = opening(guarded(&device), layout, start, binder, LogConfig::default(), 1);
    let recovered = LogOpening { uuid: other, ..opening }.inspect(&mut |_| {
        panic!("nothing to replay");
    });
    assert_eq!(recovered.unwrap().end, 0);
}

#[test]
fn a_missing_stretch_is_an_error() {
    let (device, layout, start, rig) = fresh(64, LogConfig::default());
    for lsn in 1..=3 {
        rig.log.append(batch(lsn, vec![delete("k")])).unwrap();
        assert_eq!(rig.log.sync(Lsn(lsn)).unwrap(), LogProgress::Done);
    }
    // A superblock that is older than the log knows: its position was trimmed.
    let later = rig.log.position_after(Lsn(2));
    let position = LogPosition { lsn: Lsn(1), ..later };
    let error = open(&device, layout, position, LogConfig::default(), 2).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(open(&device, layout, start, LogConfig::default(), 2).is_ok());
}

/// Groups with right checksums and arbitrary content.
#[test]
fn hostile_groups_give_errors() {
    let layout = Layout::new(64, 16);
    let tag = StoreTag::new(UUID);
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(layout.bytes()));
        let mut payload = vec![0; random.below(9000) as usize];
        random.fill(&mut payload);
        if random.one_in(2) {
            // Small numbers get further.
            payload.iter_mut().for_each(|byte| *byte &= 0x0f);
        }
        let mut builder = GroupBuilder::new(payload.len() as u64);
        builder.put(&payload);
        let small = |random: &mut Random| if random.one_in(9) { random.next_u64() } else { random.below(4) };
        let first = small(&mut random);
        let batches = small(&mut random) as u32;
        let last = if random.one_in(9) {
            random.next_u64()
        } else {
            first.wrapping_add(batches.into()).wrapping_sub(1)
        };
        let header = GroupHeader {
            first_lsn: Lsn(first),
            last_lsn: Lsn(last),
            previous: tag.first_chain(),
            rest: 0,
            batches,
            parts: if random.one_in(2) { 0 } else { small(&mut random) as u32 },
            length: 0,
        };
        let group = builder.finish(&GroupPlace { tag, number: 0, synced: 0, session: 1 }, header);
        device.write_at(layout.log.byte_offset(), &group.buffers(0, group.blocks)).unwrap();
        let start = LogPosition { block: 0, lsn: Lsn(0), chain: tag.first_chain(), synced: 0 };
        if let Err(error) = open(&device, layout, start, LogConfig::default(), 1) {
            assert_eq!(error.kind(), ErrorKind::Damaged, "seed {seed}: {error}");
        }
    }
}

/// Blocks that are right each by itself and belong to different groups.
#[test]
fn a_group_of_mixed_blocks_does_not_count() {
    let layout = Layout::new(64, 16);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(layout.bytes()));
    let tag = StoreTag::new(UUID);
    let start = LogPosition { block: 0, lsn: Lsn(0), chain: tag.first_chain(), synced: 0 };
    let header = GroupHeader {
        first_lsn: Lsn(1),
        last_lsn: Lsn(1),
        previous: tag.first_chain(),
        rest: 0,
        batches: 1,
        parts: 0,
        length: 0,
    };
    let write = |fill: u8, from: usize| {
        let mut builder = GroupBuilder::new(0);
        let mut payload = Vec::new();
        put_varint(&mut payload, 1);
        put_varint(&mut payload, 2);
        let bytes = Value::from(vec![fill; 4000]);
        let more = Value::from(vec![fill; 1000]);
        for bytes in [bytes, more] {
            let op =
                LoggedOp::Point { index: INDEX, key: b"k"[..].into(), op: Op::Patch { offset: 0, bytes } };
            GroupEncoder::default().op(&op, &[], &PartTable::default(), &mut payload).unwrap();
        }
        builder.put(&payload);
        let group = builder.finish(&GroupPlace { tag, number: 0, synced: 0, session: 1 }, header);
        assert_eq!(group.blocks, 2);
        let offset = layout.log.byte_offset() + (from * BLOCK) as u64;
        device.write_at(offset, &group.buffers(from, 2)).unwrap();
    };
    write(1, 0);
    let count = || open(&device, layout, start, LogConfig::default(), 1).unwrap().replayed.len();
    assert_eq!(count(), 1);
    write(2, 1);
    assert_eq!(count(), 0);
}

#[test]
fn any_position_is_survived() {
    let written = written(3);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut word = || match random.below(3) {
            0 => random.below(200),
            1 => u64::MAX - random.below(3),
            _ => random.next_u64(),
        };
        let position = LogPosition { block: word(), lsn: Lsn(word()), chain: word(), synced: word() };
        let _ = open(&written.device, written.layout, position, LogConfig::default(), 7).map(|_| ());
    }
}

#[test]
fn the_first_failure_is_final() {
    for operation in [Operation::Write, Operation::Sync] {
        let layout = Layout::new(64, 64);
        let simulated = Arc::new(SimulatedDevice::new(layout.bytes(), 1));
        let device: Arc<dyn Device> = simulated.clone();
        let start = Log::format(&guarded(&device), layout.log, UUID).unwrap();
        let rig = open(&device, layout, start, LogConfig::default(), 1).unwrap();
        rig.log.append(batch(1, vec![delete("k")])).unwrap();
        simulated.inject(Fault::Fail { operation, nth: 0 });
        assert_eq!(rig.log.sync(Lsn(1)).unwrap_err().kind(), ErrorKind::Io, "{operation}");
        simulated.clear_faults();
        assert_eq!(rig.log.sync(Lsn(1)).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(rig.log.append(batch(2, vec![])).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(rig.log.push(0).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(rig.log.durable_lsn(), Lsn(0));
    }
}

/// A superblock of a hostile image may have the log go on anywhere.
#[test]
fn a_place_where_no_log_can_be_is_damage_and_repair_goes_on_elsewhere() {
    let written = written(5);
    for block in [u64::MAX, u64::MAX - 2, u64::MAX / 2] {
        let from = LogPosition { block, synced: block, ..written.start };
        let error = open(&written.device, written.layout, from, LogConfig::default(), 7).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        let device = written.device.clone();
        let binder = TestBinder::new(device.clone(), written.layout.parts, 7);
        let opening =
            opening(guarded(&device), written.layout, from, binder, LogConfig::default(), block ^ 0x77);
        let (log, broken) = opening.open_damaged(&mut |_| Ok(())).unwrap();
        assert_eq!(broken.map(|error| error.kind()), Some(ErrorKind::Damaged));
        let batch = Workload::new(9).batch(1);
        log.append(batch).unwrap();
        assert_eq!(log.sync(Lsn(1)).unwrap(), LogProgress::Done);
        // The superblock that repair writes is found to make sense.
        let after = log.position_after(Lsn(0));
        assert!(after.block < 1 << 62, "{after:?}");
    }
}
