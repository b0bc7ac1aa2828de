//! Value parts: layout, exact reads, damage.

use super::*;

/// Values of these lengths with bytes that tell them apart.
fn values(lengths: &[usize]) -> (Vec<Vec<u8>>, Vec<Arc<LargeValue>>) {
    let bytes: Vec<Vec<u8>> = lengths
        .iter()
        .enumerate()
        .map(|(i, &len)| {
            let mut bytes = vec![0; len];
            Random::new(i as u64).fill(&mut bytes);
            bytes
        })
        .collect();
    let values = bytes.iter().map(|b| Arc::new(LargeValue::in_memory(b.clone().into()))).collect();
    (bytes, values)
}

fn place(value: &LargeValue) -> ValueRef {
    value.place().unwrap()
}

#[test]
fn whole_pages_are_aligned_and_the_rest_is_packed() {
    let world = World::new(4096);
    let (_, values) = values(&[5000, 8192, 4097, 4096, 9001]);
    let (handles, writes) = world.writes(|| world.pieces.writer.write_values(&values, None).unwrap());
    assert_eq!((handles.len(), writes), (1, 1));
    let offsets: Vec<u32> = values.iter().map(|v| place(v).offset).collect();
    assert_eq!(offsets, [12288, 0, 17288, 8192, 21392]);
    let location = world.locator.locate(handles[0].id()).unwrap();
    assert_eq!((location.len, location.extent.blocks), (30393, 8));
    assert_eq!(location.kind, PieceKind::Values);
    world.pieces.check(handles[0].id()).unwrap();
    // What is stored is not stored again.
    assert!(world.pieces.writer.write_values(&values, None).unwrap().is_empty());
}

#[test]
fn every_slice_of_every_value_can_be_read() {
    let world = World::new(4096);
    let mut random = Random::new(3);
    let lengths: Vec<usize> = (0..40)
        .map(|i| if i % 3 == 0 { (1 + random.index(5)) * 4096 } else { 4096 + random.index(20_000) })
        .collect();
    let (bytes, values) = values(&lengths);
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    values.iter().for_each(|v| v.forget_bytes());
    assert!(values.iter().all(|v| v.bytes().is_none()));
    for round in 0..3000 {
        let i = random.index(values.len());
        let offset = random.index(lengths[i] + 1);
        let len = random.index(lengths[i] - offset + 1).min(1 << random.index(15));
        let mut out = vec![0; len];
        world.pieces.read_value(&place(&values[i]), offset, &mut out).unwrap();
        assert_eq!(
            out,
            &bytes[i][offset..offset + len],
            "round {round}: {len} bytes at {offset} of value {i}"
        );
    }
    for (value, bytes) in values.iter().zip(&bytes) {
        assert_eq!(bytes_of(&world.pieces, value).unwrap(), *bytes);
        let beyond = world.pieces.read_value(&place(value), bytes.len(), &mut [0]);
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(world.pieces.read_value(&place(value), usize::MAX, &mut [0]).is_err());
        world.pieces.read_value(&place(value), bytes.len(), &mut []).unwrap();
    }
}

#[test]
fn a_page_of_an_aligned_value_is_one_read_of_one_page() {
    let world = World::new(4096);
    let (bytes, values) = values(&[1 << 20, 1 << 20]);
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    let mut aligned = AlignedBuf::zeroed(4096);
    let mut any = vec![0; 4096];
    for page in [7, 200, 13, 77, 255, 0] {
        for out in [&mut aligned[..], &mut any[..]] {
            let read = || world.pieces.read_value(&place(&values[1]), page * 4096, out);
            let (result, reads, read_bytes) = world.reads(read);
            result.unwrap();
            assert_eq!((reads, read_bytes), (1, 4096));
            assert_eq!(out, &bytes[1][page * 4096..][..4096]);
        }
    }
    let (_, reads, read_bytes) =
        world.reads(|| world.pieces.read_value(&place(&values[0]), 4095, &mut [0; 2]).unwrap());
    assert_eq!((reads, read_bytes), (1, 8192));
}

#[test]
fn neighbours_are_read_together_and_others_alone() {
    let world = World::new(4096);
    let mut lengths = vec![4096; 200];
    lengths.extend([5000, 4097, 7001]);
    let (bytes, values) = values(&lengths);
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    let pieces = world.reopened();
    let places = |wanted: &[usize]| wanted.iter().map(|&n| place(&values[n])).collect::<Vec<_>>();
    let read = |wanted: &[usize], reads: u64, blocks: u64| {
        let (read, requests, read_bytes) = world.reads(|| pieces.read_neighbours(&places(wanted)).unwrap());
        assert_eq!((requests, read_bytes), (reads, blocks * 4096), "{wanted:?}");
        assert!(read.iter().zip(wanted).all(|(read, n)| *read == bytes[*n]), "{wanted:?}");
    };
    read(&[], 0, 0);
    read(&[7], 1, 1);
    // In any order, with gaps of up to eight blocks, and not one more.
    read(&[12, 3, 4], 1, 10);
    read(&[13, 2, 3], 2, 3);
    read(&[200, 201, 202], 1, 4);
    read(&(0..200).collect::<Vec<_>>(), 1, 200);
    world.corrupt(world.extent(place(&values[5]).part.id()).byte_offset() + 5 * 4096);
    assert_eq!(pieces.read_neighbours(&places(&[4, 5, 6])).unwrap_err().kind(), ErrorKind::Damaged);
    read(&[4, 6], 1, 3);
}

/// `values` from their beginnings to their ends, one behind the other from byte `at` of a buffer.
fn row(values: &[Arc<LargeValue>], mut at: usize) -> Vec<Wanted> {
    let wanted = values.iter().map(|value| {
        let out = at..at + value.len();
        at = out.end;
        Wanted { place: place(value), offset: 0, out }
    });
    wanted.collect()
}

#[test]
fn what_lies_together_is_read_in_one_piece() {
    let world = World::new(4096);
    let (bytes, values) = values(&[65536; 16]);
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    let pieces = world.reopened();
    let mut out = AlignedBuf::zeroed(1 << 20);
    let (result, reads, read_bytes) = world.reads(|| pieces.read_values(&row(&values, 0), &mut out));
    result.unwrap();
    assert_eq!((reads, read_bytes), (1, 1 << 20));
    assert_eq!(out[..], bytes.concat());
    // Elsewhere in the buffer, in other order, with one missing: the same bytes, in more reads.
    let mut wanted = row(&values, 4096 + 512);
    wanted.remove(3);
    wanted.swap(0, 9);
    let mut out = AlignedBuf::zeroed((1 << 20) + 8192);
    pieces.read_values(&wanted, &mut out).unwrap();
    for Wanted { place: at, out: range, .. } in wanted {
        let which = values.iter().position(|value| place(value) == at).unwrap();
        assert_eq!(out[range], bytes[which]);
    }
    // Damage is met here too, and named.
    let location = world.locator.locate(place(&values[5]).part.id()).unwrap();
    world.corrupt(location.extent.byte_offset() + u64::from(place(&values[5]).offset) + 5000);
    let mut out = AlignedBuf::zeroed(1 << 20);
    let error = pieces.read_values(&row(&values, 0), &mut out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn many_values_make_parts_of_a_few_mib() {
    let world = World::new(8192);
    let (bytes, values) = values(&[300_000; 50]);
    let (handles, writes) = world.writes(|| world.pieces.writer.write_values(&values, None).unwrap());
    assert_eq!((handles.len(), writes), (4, 1));
    let pieces = world.reopened();
    for (value, bytes) in values.iter().zip(&bytes) {
        value.forget_bytes();
        assert_eq!(bytes_of(&pieces, value).unwrap(), *bytes);
    }
    drop(values);
    let free = world.locator.free();
    drop(handles);
    assert!(world.locator.free() > free + 50 * 300_000 / BLOCK);
}

#[test]
fn values_fit_between_the_pieces_of_a_full_device() {
    let world = World::new(4096);
    world.locator.state.lock().longest = 20;
    let (bytes, values) = values(&[30_000; 20]);
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    for (value, bytes) in values.iter().zip(&bytes) {
        value.forget_bytes();
        assert_eq!(bytes_of(&world.pieces, value).unwrap(), *bytes);
    }
}

#[test]
fn bytes_in_aligned_memory_are_written_as_they_are() {
    let world = World::new(4096);
    let mut buffer = AlignedBuf::zeroed(64 << 10);
    Random::new(1).fill(&mut buffer);
    let whole = Bytes::from_owner(buffer);
    let aligned = |range| Arc::new(LargeValue::in_memory(whole.slice(range)));
    // Aligned, not aligned, aligned again, odd.
    let values = [aligned(0..8192), aligned(8200..16392), aligned(16384..32768), aligned(32768..40000)];
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    for (value, range) in values.iter().zip([0..8192, 8200..16392, 16384..32768, 32768..40000]) {
        value.forget_bytes();
        let back = bytes_of(&world.pieces, value).unwrap();
        assert_eq!(back, whole.slice(range));
    }
}

#[test]
fn a_damaged_page_spoils_its_bytes_only_and_is_named() {
    let world = World::new(4096);
    let (bytes, values) = values(&[20_480, 10_001]);
    let handles = world.pieces.writer.write_values(&values, None).unwrap();
    let start = world.extent(handles[0].id()).byte_offset();
    world.corrupt(start + 8192 + 17);
    let mut out = vec![0; 20_480];
    let pieces = world.reopened();
    let error = pieces.read_value(&place(&values[0]), 0, &mut out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    let name = format!("bytes 8192..12288 of value part {}", handles[0].id());
    assert!(error.to_string().contains(&name), "{error}");
    assert!(pieces.read_value(&place(&values[0]), 9000, &mut out[..1]).is_err());
    pieces.read_value(&place(&values[0]), 0, &mut out[..8192]).unwrap();
    assert_eq!(out[..8192], bytes[0][..8192]);
    pieces.read_value(&place(&values[0]), 12_288, &mut out[..8192]).unwrap();
    assert_eq!(bytes_of(&pieces, &values[1]).unwrap(), bytes[1]);
    assert_eq!(pieces.check(handles[0].id()).unwrap_err().kind(), ErrorKind::Damaged);
    // A last page that is not full: the padding behind it belongs to no value.
    world.corrupt(start + 8192 + 17);
    world.corrupt(start + 20_480 + 10_000);
    let odd = || bytes_of(&world.reopened(), &values[1]);
    values[1].forget_bytes();
    assert!(odd().is_err());
    world.corrupt(start + 20_480 + 10_000);
    assert!(odd().is_ok());
}

#[test]
fn references_that_lie_are_errors() {
    let world = World::new(4096);
    let (_, values) = values(&[20_480]);
    let handles = world.pieces.writer.write_values(&values, None).unwrap();
    let good = place(&values[0]);
    let try_read = |place: &ValueRef| {
        let mut out = vec![0; place.len as usize];
        world.pieces.read_value(place, 0, &mut out).unwrap_err().kind()
    };
    for (offset, len) in [(4096, 20_480), (u32::MAX - 20_480, 20_480), (8, 20_480), (0, 20_481)] {
        let bad = ValueRef { offset, len, ..good.clone() };
        assert_eq!(try_read(&bad), ErrorKind::Damaged);
    }
    let few = ValueRef { sums: good.sums[..4].into(), ..good.clone() };
    assert_eq!(try_read(&few), ErrorKind::Damaged);
    let unknown = ValueRef { part: PieceHandle::counted(PieceId(999)), ..good.clone() };
    assert_eq!(try_read(&unknown), ErrorKind::Damaged);
    let parts = world.pieces.writer.write_group(parts(&world, 1), None).unwrap();
    let wrong_kind = ValueRef { part: parts[0].clone(), ..good };
    assert_eq!(try_read(&wrong_kind), ErrorKind::Damaged);
    drop(handles);
}
