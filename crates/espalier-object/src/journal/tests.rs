use super::record::{Head, Header};
use super::*;
use espalier_storage::SimulatedDevice;

const UUID: [u8; 16] = [3; 16];
const ID: u64 = 77;

fn open(device: &Arc<SimulatedDevice>) -> Journal {
    Journal::open(device.clone() as Arc<dyn Device>).unwrap()
}

fn begun() -> (Arc<SimulatedDevice>, Journal) {
    let device = Arc::new(SimulatedDevice::new(MIN_BLOCKS * BLOCK as u64, 1));
    let journal = open(&device);
    journal.begin(UUID, ID).unwrap();
    journal.go_on(1, 0);
    (device, journal)
}

fn append(journal: &Journal, start: u64, blocks: usize) -> Appended {
    let mut data = AlignedBuf::zeroed(blocks * BLOCK);
    data.fill(start as u8);
    let data: &[u8] = &data;
    journal.append(&mut journal.writer(), Some((start, &[data])))
}

fn at(record: u64, epoch: u32) -> JournalPosition {
    JournalPosition { journal: ID, record, epoch }
}

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(Record::number).collect()
}

#[test]
fn heads_and_headers_are_read_back_and_no_damaged_ones_are() {
    let change = |start, discard| Change { start, blocks: 3, discard };
    let head = Head {
        journal: ID,
        number: 5,
        epoch: 2,
        covered: 1,
        synced: 4,
        blocks: 6,
        data_sum: 9,
        changes: vec![change(4, false), change(100, true), change(7, false)],
    };
    let bytes = head.encode();
    assert_eq!(Head::decode(&bytes), Some(head.clone()));
    let header = Header { uuid: UUID, id: ID };
    let header_bytes = header.encode();
    assert_eq!(Header::decode(&header_bytes), Ok(Some(header)));
    assert_eq!(Header::decode(&AlignedBuf::zeroed(BLOCK)), Ok(None));
    for at in 0..BLOCK {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(Head::decode(&damaged), None, "byte {at}");
        assert_eq!(Head::decode(&bytes[..at]), None, "cut at {at}");
        let mut damaged = header_bytes.to_vec();
        damaged[at] ^= 1 << (at % 8);
        assert!(at >= 44 || Header::decode(&damaged).is_err(), "byte {at}");
    }
    // Changes that do not fit what follows them, and those behind any device.
    let wrong = Head { blocks: 7, ..head.clone() };
    assert_eq!(Head::decode(&wrong.encode()), None);
    let behind = Change { start: u64::MAX, blocks: 6, discard: false };
    let wrong = Head { changes: vec![behind], ..head };
    assert_eq!(Head::decode(&wrong.encode()), None);
}

/// A head that no writer made, with the right checksum.
fn forged(number: u64, blocks: u32) -> Head {
    let changes = vec![Change { start: 0, blocks, discard: false }];
    let data_sum = data_sum(ID, number, &[]);
    Head { journal: ID, number, epoch: 1, covered: 0, synced: 0, blocks, data_sum, changes }
}

#[test]
fn a_head_with_more_blocks_than_a_record_may_have_is_not_taken() {
    let most = MAX_RECORD_BLOCKS as u32;
    let largest = forged(1, most);
    assert_eq!(Head::decode(&largest.encode()), Some(largest));
    for blocks in [most + 1, u32::MAX] {
        assert_eq!(Head::decode(&forged(1, blocks).encode()), None, "{blocks} blocks");
    }
    // The largest record of a writer is taken.
    let (device, journal) = begun();
    assert_eq!(append(&journal, 1, MAX_RECORD_BLOCKS as usize), Appended::Done(1));
    assert!(journal.sync());
    assert_eq!(numbers(&open(&device).behind(&at(0, 1)).unwrap()), [1]);
}

#[test]
fn a_head_with_a_number_that_no_writer_reaches_is_not_taken() {
    let last = Head { covered: MAX_COUNTER, synced: MAX_COUNTER, ..forged(MAX_COUNTER, 1) };
    assert_eq!(Head::decode(&last.encode()), Some(last.clone()));
    for number in [MAX_COUNTER + 1, u64::MAX] {
        let wrong = [
            Head { number, ..last.clone() },
            Head { covered: number, ..last.clone() },
            Head { synced: number, ..last.clone() },
        ];
        for head in wrong {
            assert_eq!(Head::decode(&head.encode()), None, "{head:?}");
        }
    }
    // Two of them at the front of a half, as whole records.
    let (device, journal) = begun();
    for block in [1u64, 2] {
        device.write_at(block * BLOCK as u64, &[&forged(u64::MAX, 0).encode()]).unwrap();
    }
    assert!(journal.behind(&at(0, 1)).unwrap().is_empty());
    assert_eq!(journal.unknown().unwrap(), 0);
}

#[test]
fn a_position_with_a_number_that_no_writer_reaches_is_an_error() {
    let (_, journal) = begun();
    for record in [MAX_COUNTER + 1, u64::MAX] {
        let error = journal.behind(&at(record, 1)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io);
        assert!(error.to_string().contains(&format!("record {record}")), "{error}");
    }
}

#[test]
fn nothing_is_appended_behind_the_last_number() {
    let (device, journal) = begun();
    journal.go_on(1, MAX_COUNTER - 1);
    assert_eq!(append(&journal, 1, 1), Appended::Done(MAX_COUNTER));
    assert!(journal.sync());
    assert_eq!(append(&journal, 2, 1), Appended::Failed(MAX_COUNTER));
    assert!(!journal.sync() && !journal.usage().works);
    assert_eq!(numbers(&open(&device).behind(&at(MAX_COUNTER - 1, 1)).unwrap()), [MAX_COUNTER]);
    assert!(open(&device).behind(&at(MAX_COUNTER, 1)).unwrap().is_empty());
}

#[test]
fn what_is_no_journal_is_left_as_it_is() {
    let device = Arc::new(SimulatedDevice::new(MIN_BLOCKS * BLOCK as u64, 1));
    let mut block = AlignedBuf::zeroed(BLOCK);
    block[..5].copy_from_slice(b"hello");
    device.write_at(0, &[&block]).unwrap();
    let error = Journal::open(device as Arc<dyn Device>).unwrap_err();
    assert!(
        error.to_string().contains("no journal") && error.to_string().contains("left as it is"),
        "{error}"
    );
    let small = Arc::new(SimulatedDevice::new((MIN_BLOCKS - 1) * BLOCK as u64, 1));
    assert!(Journal::open(small as Arc<dyn Device>).unwrap_err().to_string().contains("4 MiB"));
}

#[test]
fn halves_take_turns_and_wait_for_the_store() {
    let (device, journal) = begun();
    let mut number = 0;
    // Until both halves are full.
    while let Appended::Done(appended) = append(&journal, number, 100) {
        number += 1;
        assert_eq!(appended, number);
    }
    assert_eq!(number, 10);
    assert_eq!(append(&journal, 1, 100), Appended::Full);
    journal.cover(4);
    assert_eq!(append(&journal, 1, 100), Appended::Full);
    journal.cover(5);
    assert_eq!(append(&journal, 11, 100), Appended::Done(11));
    assert!(journal.sync());
    let again = open(&device);
    assert!(again.is_of(&UUID, Some(&at(5, 1))));
    assert!(!again.is_of(&UUID, None) && !again.is_of(&[4; 16], Some(&at(5, 1))));
    let records = again.behind(&at(5, 1)).unwrap();
    assert_eq!(numbers(&records), [6, 7, 8, 9, 10, 11]);
    assert!(again.blocks(&records[5]).unwrap().iter().all(|byte| *byte == 11));
    assert_eq!(again.unknown().unwrap(), 6);
    journal.cover(11);
    journal.end();
    assert_eq!(again.unknown().unwrap(), 0);
}

#[test]
fn records_behind_a_gap_do_not_count_and_neither_do_those_of_older_epochs() {
    let (device, journal) = begun();
    for number in 1..=10 {
        append(&journal, number, 100);
    }
    // The fifth, the last in its half, was not written by a power cut, and those behind it were.
    let fifth = (1 + 4 * 101) * BLOCK as u64;
    device.write_at(fifth, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    let journal = open(&device);
    assert_eq!(numbers(&journal.behind(&at(0, 1)).unwrap()), [1, 2, 3, 4]);
    // Numbers go on behind it. What lies there of the older epoch follows by number, and is none.
    journal.go_on(2, 4);
    assert_eq!(append(&journal, 50, 1), Appended::Done(5));
    assert!(journal.sync());
    let records = open(&device).behind(&at(4, 1)).unwrap();
    assert_eq!(numbers(&records), [5]);
    assert_eq!(records[0].changes(), [Change { start: 50, blocks: 1, discard: false }]);
    // The store has the new fifth, and the journal lost it: the old sixth is none still.
    device.write_at(BLOCK as u64, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
    assert!(open(&device).behind(&at(5, 2)).unwrap().is_empty());
}

#[test]
fn damage_of_what_was_synced_is_told() {
    let (device, journal) = begun();
    for number in 1..=4 {
        append(&journal, number, 2);
    }
    assert!(journal.sync());
    // In the other half, so that it is found behind the gap.
    while journal.writer().half == 0 {
        append(&journal, 9, 100);
    }
    device.flip((1 + 3 + 2) * BLOCK as u64 + 7, 1);
    let error = open(&device).behind(&at(0, 1)).unwrap_err();
    assert!(error.to_string().contains("record 2 was synced"), "{error}");
}

/// Two threads note discards, one after the other, before either of them appends a record.
#[test]
fn discards_that_are_noted_before_a_record_never_cut_it_short() {
    let (device, journal) = begun();
    let noted = (0..2 * MAX_CHANGES as u64).filter(|start| journal.writer().note_discard(*start, 1)).count();
    // The last place is for the write.
    assert_eq!(noted, MAX_CHANGES - 1);
    assert_eq!(append(&journal, 1000, 2), Appended::Done(1));
    assert!(journal.writer().note_discard(7, 1));
    assert_eq!(append(&journal, 1002, 1), Appended::Done(2));
    assert!(journal.sync());
    let records = open(&device).behind(&at(0, 1)).unwrap();
    assert_eq!(numbers(&records), [1, 2]);
    let write = Change { start: 1000, blocks: 2, discard: false };
    assert_eq!(records[0].changes().len(), MAX_CHANGES);
    assert_eq!(records[0].changes().last(), Some(&write));
    assert!(journal.blocks(&records[0]).unwrap().iter().all(|byte| *byte == 1000u64 as u8));
}

/// A journal with ten synced records of two blocks each, in one half.
fn synced_one_by_one() -> (Arc<SimulatedDevice>, Journal) {
    let (device, journal) = begun();
    for number in 1..=10 {
        assert_eq!(append(&journal, number, 2), Appended::Done(number));
        assert!(journal.sync());
    }
    (device, journal)
}

/// The first byte of a record of [`synced_one_by_one`].
fn place(number: u64) -> u64 {
    (1 + 3 * (number - 1)) * BLOCK as u64
}

#[test]
fn damage_is_told_by_records_behind_it_in_the_same_half() {
    for block in 0..3 {
        for number in 1..=9 {
            let (device, _) = synced_one_by_one();
            device.flip(place(number) + block * BLOCK as u64 + 9, 1);
            let error = open(&device).behind(&at(0, 1)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io);
            assert!(error.to_string().contains(&format!("record {number} was synced")), "{error}");
            // Also if it is the first that the store does not have, and not if the store has it.
            assert!(open(&device).behind(&at(number - 1, 1)).is_err());
            assert!(open(&device).unknown().unwrap() > 0);
        }
    }
    // It looks like a record that a power cut tore.
    let (device, _) = synced_one_by_one();
    device.flip(place(10), 1);
    assert_eq!(open(&device).behind(&at(0, 1)).unwrap().len(), 9);
}

#[test]
fn a_read_that_fails_is_told() {
    use espalier_storage::Fault;
    for block in 0..3 {
        let (device, _) = synced_one_by_one();
        let bad = place(10) + block * BLOCK as u64;
        device.inject(Fault::Unreadable(bad..bad + 1));
        let error = open(&device).behind(&at(0, 1)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
        assert!(open(&device).unknown().is_err());
        // What the store has need not be read; its head says how much there is.
        if block > 0 {
            assert!(open(&device).behind(&at(10, 1)).unwrap().is_empty());
        }
    }
    // Behind the first record that is not whole, what cannot be read is passed over.
    let (device, _) = synced_one_by_one();
    let bad = 300 * BLOCK as u64;
    device.inject(Fault::Unreadable(bad..bad + 1));
    device.inject(Fault::Unreadable(place(5)..place(5) + 1));
    device.flip(place(2), 1);
    let error = open(&device).behind(&at(0, 1)).unwrap_err();
    assert!(error.to_string().contains("record 2 was synced"), "{error}");
    device.clear_faults();
    device.flip(place(2), 1);
    device.inject(Fault::Unreadable(bad..bad + 1));
    assert_eq!(open(&device).behind(&at(0, 1)).unwrap().len(), 10);
}

/// What an earlier round left in a half, and what a dead writer left behind a gap, is no witness.
#[test]
fn old_records_tell_of_no_damage() {
    let (device, journal) = begun();
    let mut number = 0;
    // Three rounds of both halves; the store has all of them.
    for _ in 0..3 * 2 * 5 {
        number += 1;
        assert_eq!(append(&journal, number, 100), Appended::Done(number));
        assert!(journal.sync());
        journal.cover(number);
    }
    let taken = journal.writer().taken;
    assert_eq!(open(&device).behind(&at(number, 1)).unwrap().len(), 0);
    // The next record goes over old ones, and a power cut tears it.
    let next = append(&journal, 1, 100);
    assert_eq!(next, Appended::Done(number + 1));
    assert!(taken == 505 && journal.writer().half == 0);
    device.flip(BLOCK as u64 + 9, 1);
    assert!(open(&device).behind(&at(number, 1)).unwrap().is_empty());
    // Behind a gap lies what was written and not synced; another writer goes on before it.
    for _ in 0..3 {
        append(&journal, 1, 1);
    }
    let next = open(&device);
    assert!(next.behind(&at(number, 1)).unwrap().is_empty());
    next.go_on(2, number);
    assert_eq!(append(&next, 3, 1), Appended::Done(number + 1));
    assert!(next.sync());
    assert_eq!(append(&next, 4, 1), Appended::Done(number + 2));
    assert_eq!(numbers(&open(&device).behind(&at(number, 1)).unwrap()), [number + 1, number + 2]);
}
