//! What a repair keeps and what it tells.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Store};
use espalier_storage::{AlignedBuf, Device, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, ..OpenOptions::default() }
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; 40 << 10];
    Random::new(n).fill(&mut bytes);
    bytes
}

/// An open store with these values.
fn with_values(values: impl Fn(u64) -> Vec<u8>) -> (Arc<dyn Device>, Arc<Store>, IndexId) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 * MIB));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = Store::open(device.clone(), environment(), options()).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    let mut batch = Batch::new();
    (0..60).for_each(|n| batch.insert(index, &key(n), values(n)));
    store.commit(batch).unwrap();
    store.sync_all().unwrap();
    (device, store, index)
}

/// What is on the device now, on another, with one bit flipped so many bytes behind the start of
/// `wanted`.
fn with_damage(device: &Arc<dyn Device>, wanted: &[u8], behind: usize) -> Arc<dyn Device> {
    let mut image = AlignedBuf::zeroed(32 * MIB as usize);
    device.read_at(0, &mut image).unwrap();
    let at = image.windows(wanted.len()).position(|window| window == wanted).unwrap();
    image[at + behind] ^= 4;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 * MIB));
    device.write_at(0, &[&image]).unwrap();
    device
}

/// A store whose values are in the log only, as a power cut leaves it; of value `damaged` one bit
/// is another. `then` is done behind the values.
fn cut_off_with_damage(damaged: u64, then: impl FnOnce(IndexId, &mut Batch)) -> (Arc<dyn Device>, IndexId) {
    let (device, store, index) = with_values(value);
    // What is synced behind it says that it was durable.
    let mut batch = Batch::new();
    then(index, &mut batch);
    batch.insert(index, b"last", b"of all".to_vec());
    store.commit(batch).unwrap();
    store.sync_all().unwrap();
    (with_damage(&device, &value(damaged)[10_000..10_064], 0), index)
}

/// A check that writes nothing leaves in the log what is there: that is checked as well.
#[test]
fn damage_to_values_that_only_the_log_names_is_found() {
    let (device, index) = cut_off_with_damage(3, |_, _| ());
    let options = OpenOptions { read_only: true, ..options() };
    let store = Store::open(device, environment(), options).unwrap();
    let report = store.verify(&mut |_| ()).unwrap();
    let named: Vec<_> = report.problems.iter().filter(|problem| problem.range.is_some()).collect();
    assert_eq!(named.len(), 1, "{:?}", report.problems);
    assert_eq!(named[0].index, Some(index));
    for n in 0..60 {
        assert_eq!(named[0].range.as_ref().unwrap().contains(&key(n)), n == 3, "key {n}");
        assert_eq!(store.get(index, &key(n)).is_err(), n == 3, "key {n}");
    }
}

/// What changes a value that is lost is no value, nor is a copy of it.
#[test]
fn patches_make_nothing_of_values_that_are_lost() {
    let (device, index) = cut_off_with_damage(3, |index, batch| {
        batch.patch(index, &key(3), 8, b"patch".to_vec());
        batch.patch(index, &key(4), 8, b"patch".to_vec());
        batch.clone_range(index, b"00000", b"c");
        batch.patch(index, b"c3", 9, b"copy".to_vec());
        batch.patch(index, b"c5", 9, b"copy".to_vec());
        // Whole values are values again.
        batch.clone_range(index, b"c", b"d");
        batch.insert(index, b"d3", b"new".to_vec());
        batch.patch(index, b"d3", 1, b"N".to_vec());
    });
    let rescue = Store::open_damaged(device.clone(), environment(), options(), &mut |_| ()).unwrap();
    let told = |key: &[u8]| {
        rescue.losses.iter().any(|loss| loss.range.as_ref().is_some_and(|range| range.contains(key)))
    };
    assert!(told(&key(3)) && told(b"c3") && !told(&key(4)) && !told(b"c5"), "{:?}", rescue.losses);
    let patched = |n: u64, at: usize, with: &[u8]| {
        let mut bytes = value(n);
        bytes[at..at + with.len()].copy_from_slice(with);
        Some(bytes)
    };
    let check = |store: &Store| {
        let get = |key: &[u8]| store.get(index, key).unwrap().map(Vec::from);
        assert_eq!(get(&key(3)), None);
        assert_eq!(get(b"c3"), None);
        assert!(get(&key(4)) == patched(4, 8, b"patch") && get(b"c5") == patched(5, 9, b"copy"));
        assert_eq!(get(b"d3").unwrap(), b"nNw");
    };
    check(&rescue.store);
    rescue.store.close().unwrap();
    drop(rescue);
    check(&Store::open(device, environment(), options()).unwrap());
}

/// Clones of the whole double what is lost each time: the repair ends, and tells of all copies.
#[test]
fn what_clones_of_clones_have_lost_is_told() {
    let (device, store, index) = with_values(value);
    store.checkpoint().unwrap();
    let copies: Vec<u8> = (b'a'..b'a' + 24).collect();
    for copy in &copies {
        let mut batch = Batch::new();
        batch.clone_range(index, b"", &[*copy]);
        // What rests on nothing in the copy of a lost value makes nothing.
        batch.patch(index, &[&[*copy], &*key(3)].concat(), 8, b"patch".to_vec());
        batch.patch(index, &[&[*copy], &*key(4)].concat(), 8, b"patch".to_vec());
        store.commit(batch).unwrap();
    }
    let mut batch = Batch::new();
    // What is put in its place, or deleted and made anew, is not lost.
    batch.clone_range(index, &key(4), &key(3));
    batch.delete_range(index, KeyRange::prefix(b"f"));
    store.commit(batch).unwrap();
    let mut batch = Batch::new();
    batch.patch(index, &key(3), 0, b"here".to_vec());
    batch.patch(index, &[b"f", &*key(3)].concat(), 0, b"anew".to_vec());
    store.commit(batch).unwrap();
    store.sync_all().unwrap();

    let damaged = with_damage(&device, &value(3)[1000..1100], 50);
    let rescue = Store::open_damaged(damaged, environment(), options(), &mut |_| ()).unwrap();
    let told = |key: &[u8]| {
        rescue.losses.iter().any(|loss| loss.range.as_ref().is_some_and(|range| range.contains(key)))
    };
    let get = |key: &[u8]| rescue.store.get(index, key).unwrap().map(Vec::from);
    for copy in copies.iter().filter(|copy| **copy != b'f') {
        let [lost, kept] = [3, 4].map(|n| [&[*copy], &*key(n)].concat());
        assert!(told(&lost) && get(&lost).is_none(), "{}", *copy as char);
        assert!(get(&kept).is_some_and(|value| value.get(8..13) == Some(b"patch")));
    }
    let [lost, kept] = [3, 4].map(|n| [b"xvuba", &*key(n)].concat());
    assert!(told(&lost) && get(&lost).is_none() && get(&kept).is_some());
    let found = get(&key(3)).unwrap();
    assert!(found[..4] == *b"here" && found[4..] == value(4)[4..], "{:?} of {}", &found[..12], found.len());
    assert_eq!(get(&[b"f", &*key(3)].concat()).as_deref(), Some(&b"anew"[..]));
}

/// Large values that the log has put together into one part: when one of them is damaged, the
/// others are kept, and what is left is sound, though the part as a whole is not.
#[test]
fn values_beside_a_damaged_one_in_the_log_are_written_again() {
    let (device, index) = cut_off_with_damage(3, |_, _| ());
    let rescue = Store::open_damaged(device.clone(), environment(), options(), &mut |_| ()).unwrap();
    assert_eq!(rescue.losses.len(), 1, "{:?}", rescue.losses);
    assert!(rescue.losses[0].range.as_ref().is_some_and(|range| range.contains(&key(3))));
    let check = |store: &Store| {
        for n in 0..60 {
            let right = (n != 3).then(|| value(n));
            assert_eq!(store.get(index, &key(n)).unwrap().map(Vec::from), right, "key {n}");
        }
        assert_eq!(store.get(index, b"last").unwrap().as_deref(), Some(&b"of all"[..]));
    };
    check(&rescue.store);
    rescue.store.close().unwrap();
    drop(rescue);
    let store = Store::open(device.clone(), environment(), options()).unwrap();
    check(&store);
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    // Nor is anything left of the part that is right only value by value.
    assert_eq!(scrubbed(&store), [""; 0]);
    store.close().unwrap();
    drop(store);
    let rescue = Store::open_damaged(device, environment(), options(), &mut |_| ()).unwrap();
    assert!(rescue.losses.is_empty(), "{:?}", rescue.losses);
    check(&rescue.store);
}

/// What a scrub of all of a store finds.
fn scrubbed(store: &Store) -> Vec<String> {
    let (mut from, mut damaged) = (Some(0), Vec::new());
    while let Some(at) = from {
        let step = store.scrub(at, MIB).unwrap();
        from = step.next;
        damaged.extend(step.damaged.iter().map(|it| format!("{it:?}")));
    }
    damaged
}

/// A power cut may leave of the newest value part everything but the zeros behind a value. That is
/// no damage, however full the store, and whether it is opened for use or for repair first.
#[test]
fn a_part_whose_zeros_a_power_cut_left_out_is_sound() {
    let odd = |n: u64| value(n)[..(40 << 10) - 1003].to_vec();
    for n in [59, 30] {
        let (device, store, index) = with_values(odd);
        let end = &odd(n)[odd(n).len() - 1000..];
        let device = with_damage(&device, end, 1000);
        drop(store);
        let check = |store: &Store| {
            for n in 0..60 {
                assert_eq!(store.get(index, &key(n)).unwrap().map(Vec::from), Some(odd(n)), "key {n}");
            }
            let report = store.verify(&mut |_| ()).unwrap();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert_eq!(scrubbed(store), [""; 0]);
        };
        let read_only = OpenOptions { read_only: true, ..options() };
        check(&Store::open(device.clone(), environment(), read_only).unwrap());
        let more = with_damage(&device, end, 1002);
        let rescue = Store::open_damaged(more, environment(), options(), &mut |_| ()).unwrap();
        assert!(rescue.losses.is_empty(), "{:?}", rescue.losses);
        check(&rescue.store);
        let store = Store::open(device.clone(), environment(), options()).unwrap();
        check(&store);
        drop(store);
        // Once more after another power cut: what was found sound stays so, though it is known to
        // be synced now.
        let store = Store::open(device, environment(), options()).unwrap();
        check(&store);
        store.close().unwrap();
    }
}
