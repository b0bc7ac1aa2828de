use super::*;
use crate::objects::{ObjectEntry, ObjectTable};
use crate::pages::PageNumber;
use crate::runs::{Place, Run, RunMap};
use espalier_storage::Random;

fn root() -> Root {
    let id = ObjectId::new(3, 7);
    Root {
        uuid: [7; 16],
        blocks: 1 << 20,
        epoch: 3,
        generation: 9,
        nonce: 1,
        previous: 2,
        session: 3,
        holder: Holder { host: "somewhere".into(), process: 12, lease_ms: 60_000 },
        map: Some(MapReference { object: id, nonce: 5, directory: (64, 100), objects: (164, 30) }),
        objects: vec![NewObject {
            id,
            nonce: 4,
            kind: ObjectKind::Data,
            blocks: 9,
            header_bytes: 70,
            bytes: 40_000,
        }],
        delta: vec![
            Run { start: 5, blocks: 3, place: Some(Place { object: id, index: 6 }) },
            Run { start: 100, blocks: 1 << 19, place: None },
        ],
        journal: None,
    }
}

#[test]
fn names_are_unique_and_read_back() {
    let id = ObjectId::new(0xabc, 12);
    let name = id.name(ObjectKind::Data, 0xfeed);
    assert_eq!(name, "data/00000abc-0000000c-000000000000feed");
    assert_eq!(ObjectId::of_name(&name), Some((id, ObjectKind::Data, 0xfeed)));
    for wrong in [
        "data/1-2-3",
        "root",
        "data/00000abc-0000000c-000000000000feed-1",
        "other/00000abc-0000000c-000000000000feed",
    ] {
        assert_eq!(ObjectId::of_name(wrong), None, "{wrong}");
    }
}

#[test]
fn a_root_is_read_back_and_no_damaged_one_is() {
    let journaled = Root { journal: Some(JournalPosition { journal: 8, record: 99, epoch: 2 }), ..root() };
    assert_eq!(Root::decode(&journaled.encode()), Ok(journaled));
    let bytes = root().encode();
    assert_eq!(Root::decode(&bytes), Ok(root()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Root::decode(&damaged).is_err(), "byte {at}");
        assert!(Root::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_root_whose_counters_could_overflow_is_none() {
    for forged in [Root { epoch: u32::MAX, ..root() }, Root { generation: u64::MAX, ..root() }] {
        assert!(Root::decode(&forged.encode()).is_err(), "{forged:?}");
    }
}

#[test]
fn frames_and_sections_are_known_by_their_places() {
    let (id, nonce) = (ObjectId::new(1, 2), 77);
    let blocks = vec![9u8; 2 * espalier_storage::BLOCK];
    let mut frame = blocks.clone();
    frame.extend_from_slice(&trailer(frame_sum(id, nonce, 4, &blocks)));
    assert_eq!(open_frame(id, nonce, 4, &frame), Ok(&blocks[..]));
    assert!(open_frame(id, nonce, 5, &frame).is_err());
    assert!(open_frame(id, nonce + 1, 4, &frame).is_err());
    assert!(open_frame(ObjectId::new(1, 3), nonce, 4, &frame).is_err());
    assert!(open_frame(id, nonce, 4, &frame[..frame.len() - 1]).is_err());
    let mut out = vec![0; 10];
    let (offset, length) = section(id, nonce, &mut out, b"hello");
    let bytes = &out[offset as usize..(offset + length) as usize];
    assert_eq!(open_section(id, nonce, offset, bytes), Ok(&b"hello"[..]));
    assert!(open_section(id, nonce, offset + 1, bytes).is_err());
}

#[test]
fn tables_are_read_back() {
    let page = PageNumber(3);
    let mut runs = RunMap::default();
    let object = ObjectId::new(2, 1);
    for start in [page.first_block(), page.first_block() + 40] {
        runs.replace(Run { start, blocks: 7, place: Some(Place { object, index: 11 }) });
    }
    assert_eq!(decode_page(page, &encode_page(page, &runs)), Ok(runs));
    let mut objects = ObjectTable::default();
    let entry = ObjectEntry { live: 5, died: Some(99), ..ObjectEntry::new(root().objects[0]) };
    objects.insert(entry);
    let read = decode_objects(&encode_objects(&objects)).unwrap();
    assert_eq!(read.iter().collect::<Vec<_>>(), [&entry]);
    let pages = [(page, PageReference { object, offset: 64, length: 20 })].into();
    assert_eq!(decode_directory(&encode_directory(&pages), 1 << 20), Ok(pages));
}

/// Whatever the bytes are, decoding ends, and without a panic.
#[test]
fn arbitrary_bytes_are_errors() {
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let mut bytes = vec![0; random.index(80)];
        random.fill(&mut bytes);
        let _ =
            (decode_page(PageNumber(1), &bytes), decode_directory(&bytes, 1 << 30), decode_objects(&bytes));
        let _ = Header::decode(ObjectId(1), 1, &bytes);
    }
}
