//! Composed values against plain buffers.

use super::*;
use crate::PieceId;
use crate::message::resolve::{KeyMessages, Unfinished};
use crate::model::piece::PieceHandle;
use crate::model::value_reader::{Retention, load};
use crate::{Msn, Op};
use espalier_sync::Mutex;
use proptest::prelude::*;
use std::collections::HashMap;

/// Value parts in memory; counts what is read.
#[derive(Default)]
struct Parts {
    bytes: HashMap<PieceId, Vec<u8>>,
    read: Mutex<usize>,
}

impl ValueReader for Parts {
    fn read_value(&self, at: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(offset + out.len() <= at.len as usize, "behind the end of {at:?}");
        assert_eq!(at.sums.len(), (at.len as usize).div_ceil(VALUE_PAGE));
        for (page, sum) in at.sums.iter().enumerate() {
            let from = at.offset as usize + page * VALUE_PAGE;
            assert_eq!(*sum, self.bytes[&at.part.id()][from] as u32, "the sum of another page");
        }
        let from = at.offset as usize + offset;
        out.copy_from_slice(&self.bytes[&at.part.id()][from..from + out.len()]);
        *self.read.lock() += out.len();
        Ok(())
    }
}

impl Parts {
    /// A value with these bytes, which lies at `offset` of the part `id` if it is to be stored.
    fn value(&mut self, bytes: &[u8], stored: Option<(u64, usize)>) -> Value {
        let value = Value::from(bytes);
        let (Some(large), Some((id, offset))) = (value.large(), stored) else { return value };
        let part = self.bytes.entry(PieceId(id)).or_default();
        part.resize(part.len().max(offset + bytes.len()), 0);
        part[offset..offset + bytes.len()].copy_from_slice(bytes);
        // The first byte of a page stands for its sum.
        let sums = bytes.chunks(VALUE_PAGE).map(|page| u32::from(page[0])).collect();
        let part = PieceHandle::counted(PieceId(id));
        large.set_place(ValueRef { part, offset: offset as u32, len: bytes.len() as u32, sums });
        large.forget_bytes();
        value
    }
}

/// Lengths and offsets around page boundaries.
fn position() -> impl Strategy<Value = usize> {
    (0usize..6, prop_oneof![Just(0usize), Just(1), Just(4095), 0usize..4096])
        .prop_map(|(page, rest)| page * VALUE_PAGE + rest)
}

#[derive(Debug, Clone)]
struct Piece {
    at: usize,
    len: usize,
    stored: bool,
}

fn piece() -> impl Strategy<Value = Piece> {
    (position(), position(), any::<bool>()).prop_map(|(at, len, stored)| Piece { at, len, stored })
}

proptest! {
    #[test]
    fn patched_values_are_what_plain_buffers_are(
        base in proptest::option::of(piece()),
        patches in proptest::collection::vec(piece(), 0..6),
        windows in proptest::collection::vec((position(), position()), 1..4),
        apart in any::<bool>(),
    ) {
        let mut parts = Parts::default();
        let mut model: Option<Vec<u8>> = None;
        let mut next = 1u8;
        let mut fill = |len: usize| -> Vec<u8> {
            next += 1;
            (0..len).map(|i| next.wrapping_mul(31).wrapping_add((i / VALUE_PAGE) as u8)).collect()
        };
        let mut end = 0;
        let mut place = |stored: bool, n: u64, len: usize| {
            let at = if apart { (n, 0) } else { (1, end) };
            end += len.next_multiple_of(8);
            stored.then_some(at)
        };
        let value = base.map(|piece| {
            let bytes = fill(piece.len);
            model = Some(bytes.clone());
            let at = place(piece.stored, 1, bytes.len());
            parts.value(&bytes, at)
        });
        let mut made = Vec::new();
        for (n, piece) in patches.iter().enumerate() {
            let bytes = fill(piece.len);
            model = Some(patched_buffer(model.take().unwrap_or_default(), piece.at as u32, &bytes));
            let at = place(piece.stored, n as u64 + 2, bytes.len());
            made.push((piece.at as u32, parts.value(&bytes, at)));
        }
        let found = || {
            let mut found = KeyMessages::default();
            let newest = made.iter().rev().enumerate();
            found.add_level(newest.map(|(n, (offset, bytes))| {
                (Msn(100 - n as u64), Op::Patch { offset: *offset, bytes: bytes.clone() })
            }), &[]);
            found.add_point(value.clone().map_or(Op::Delete, Op::Insert));
            found
        };
        let outcome = found().value(&Default::default(), &parts).unwrap();
        prop_assert_eq!(outcome.as_ref().map(Value::len), model.as_ref().map(Vec::len));
        if let (Some(outcome), Some(model)) = (&outcome, &model) {
            let loaded = load(outcome, &parts).unwrap();
            prop_assert_eq!(&loaded[..], &model[..]);
            if let Some((_, whole)) = outcome.segments().split_last() {
                prop_assert!(whole.iter().all(|s| s.len().is_multiple_of(VALUE_PAGE)));
            }
        }
        if let Some(unread) = patched_unread(value.as_ref(), &made) {
            *parts.read.lock() = 0;
            let loaded = load(&unread, &parts).unwrap();
            prop_assert_eq!(&loaded[..], &model.clone().unwrap_or_default()[..]);
        }
        for (from, len) in windows {
            let mut out = vec![0xee; len];
            let found = slice(found(), &parts, from, &mut out);
            prop_assert_eq!(found, model.as_ref().map(Vec::len));
            if let Some(model) = &model {
                let mut expected = model.get(from.min(model.len())..).unwrap_or_default().to_vec();
                expected.resize(len, 0);
                prop_assert_eq!(&out, &expected);
            }
        }
    }
}

/// A slice of a value, as it comes behind another in a buffer.
fn slice(found: KeyMessages, parts: &Parts, offset: usize, out: &mut [u8]) -> Option<usize> {
    let mut buffer = [vec![0xaa; 5], out.to_vec(), vec![0xbb]].concat();
    let mut left = Unfinished::default();
    let at = 5..5 + out.len();
    let length = found.slice(&Default::default(), parts, offset, at.clone(), &mut buffer, &mut left).unwrap();
    left.finish(parts, Retention::Pass, &mut buffer).unwrap();
    assert_eq!((&buffer[..5], buffer[at.end]), (&[0xaa; 5][..], 0xbb));
    out.copy_from_slice(&buffer[at]);
    length
}

#[test]
fn whole_pages_are_referred_to_and_not_read() {
    let mut parts = Parts::default();
    let base = parts.value(&[1; 64 << 10], Some((1, 0)));
    let patches = [(8192, parts.value(&[2; 8192], Some((2, 4096)))), (0, parts.value(&[3; 4096], None))];
    let value = patched(Some(&base), &patches, &parts).unwrap();
    assert_eq!(*parts.read.lock(), 0);
    let lengths: Vec<usize> = value.segments().iter().map(|s| s.len()).collect();
    assert_eq!(lengths, [4096, 4096, 8192, 48 << 10]);
    // A page read at random costs that page.
    let found = || {
        let mut found = KeyMessages::default();
        patches.iter().rev().for_each(|(offset, bytes)| {
            found.add_point(Op::Patch { offset: *offset, bytes: bytes.clone() });
        });
        found.add_point(Op::Insert(base.clone()));
        found
    };
    for page in 0..16 {
        *parts.read.lock() = 0;
        slice(found(), &parts, page * VALUE_PAGE, &mut [0; VALUE_PAGE]);
        assert!(*parts.read.lock() <= VALUE_PAGE);
    }
}

#[test]
fn a_value_with_small_patches_is_read_in_one_piece_but_for_pages_that_they_cover() {
    let mut parts = Parts::default();
    let base = parts.value(&[1; 64 << 10], Some((1, 0)));
    let found = |patches: &[(u32, Vec<u8>)]| {
        let mut found = KeyMessages::default();
        patches.iter().rev().for_each(|(offset, bytes)| {
            found.add_point(Op::Patch { offset: *offset, bytes: Value::from(&bytes[..]) });
        });
        found.add_point(Op::Insert(base.clone()));
        found
    };
    let read = |patches: &[(u32, Vec<u8>)], from: usize, out: &mut [u8]| {
        let mut left = Unfinished::default();
        let whole = 0..out.len();
        found(patches).slice(&Default::default(), &parts, from, whole, out, &mut left).unwrap();
        left.finish(&parts, Retention::Pass, out).unwrap();
        left.wanted.iter().map(|wanted| (wanted.offset, wanted.out.len())).collect::<Vec<_>>()
    };
    let mut out = vec![0; 64 << 10];
    let scattered = [(100, vec![2; 16]), (9000, vec![3; 4000]), (110, vec![4; 3]), (60_000, vec![5; 16])];
    assert_eq!(read(&scattered, 0, &mut out), [(0, 64 << 10)]);
    let mut expected = vec![1; 64 << 10];
    for (offset, bytes) in &scattered {
        expected[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
    }
    assert!(out == expected);
    let halves = [(8192, vec![7; 2048]), (4000, vec![8; 100]), (10_240, vec![9; 2100])];
    assert_eq!(read(&halves, 0, &mut out), [(0, 8192), (12_288, 53_248)]);
    assert_eq!((out[4095], out[8192], out[12_339], out[12_340]), (8, 7, 9, 1));
    // Where the wish begins and ends a page need not be whole to be covered.
    let mut out = [0; 3000];
    assert_eq!(read(&halves, 9000, &mut out), []);
    assert_eq!((out[0], out[1239], out[1240], out[2999]), (7, 7, 9, 9));
}

#[test]
fn pages_written_one_by_one_in_order_are_one_segment() {
    let mut parts = Parts::default();
    let patches: Vec<Patch> =
        (0..16).map(|n| (n * 4096, parts.value(&[n as u8; 4096], Some((7, n as usize * 4096))))).collect();
    let value = patched(None, &patches, &parts).unwrap();
    assert_eq!(value.segments().len(), 1);
    assert!(load(&value, &parts).unwrap().chunks(4096).enumerate().all(|(n, page)| page == [n as u8; 4096]));
}

#[test]
fn a_small_patch_reads_and_renews_one_page() {
    let mut parts = Parts::default();
    let base = parts.value(&[1; 64 << 10], Some((1, 0)));
    let value = patched(Some(&base), &[(5000, Value::from(&[9; 4][..]))], &parts).unwrap();
    assert_eq!(*parts.read.lock(), VALUE_PAGE);
    let unstored: usize = value.segments().iter().filter(|s| !s.is_stored()).map(|s| s.len()).sum();
    assert_eq!(unstored, VALUE_PAGE);
}

#[test]
fn too_long_a_value_is_refused() {
    let error = patched(None, &[(MAX_VALUE as u32, Value::from(&[1][..]))], &Parts::default()).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Damaged);
}
