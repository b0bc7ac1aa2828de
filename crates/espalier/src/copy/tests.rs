use super::*;
use espalier_engine::{ErrorKind, FormatOptions};
use espalier_storage::{Fault, SimulatedDevice, SimulatedEnvironment};

const BYTES: u64 = 4 << 20;

fn environment() -> Arc<dyn Environment> {
    Arc::new(SimulatedEnvironment::new(1))
}

fn options() -> OpenOptions {
    OpenOptions { memory: MEMORY_BYTES, merge: espalier_fs::merge_functions(), ..Default::default() }
}

fn open(device: Arc<dyn Device>) -> espalier_engine::Result<Arc<Store>> {
    Store::open(device, environment(), options())
}

/// Changes what a store has.
fn make(device: &Arc<SimulatedDevice>, volume: &str) {
    let store = open(device.clone()).unwrap();
    store.open_or_create_volume(volume, 1).unwrap();
    store.close().unwrap();
}

fn source(device: &Arc<SimulatedDevice>) -> Arc<Source> {
    let source = Arc::new(Source::new(device.clone()));
    find_free(&source, Path::new("source")).unwrap();
    source
}

/// True if a device has what the source has in use, but for the superblocks.
fn has_all(source: &Source, device: &dyn Device) -> bool {
    let blocks = BYTES / BLOCK as u64;
    let is_superblock = |block: &u64| SUPERBLOCKS.contains(block) || *block == blocks - 1;
    let read = |device: &dyn Device, block: u64| {
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        device.read_at(block * BLOCK as u64, &mut bytes).unwrap();
        bytes.to_vec()
    };
    let mut used = source.used(blocks).into_iter().flatten().filter(|block| !is_superblock(block));
    used.all(|block| read(source, block) == read(device, block))
}

/// An older copy is brought up to date, and the power fails at each change of the target: what is
/// found is the older copy untouched, or no store, or the new copy.
#[test]
fn an_older_copy_is_never_left_as_a_mixture() {
    let original = Arc::new(SimulatedDevice::new(BYTES, 1));
    Store::format(original.clone(), environment(), &FormatOptions::default()).unwrap();
    make(&original, "first");
    let older = SimulatedDevice::new(BYTES, 2);
    copy(&source(&original), &older, false).unwrap();
    let older = older.image();
    for number in 0..8 {
        make(&original, &format!("later {number}"));
    }
    let source = source(&original);
    let (mut was_none, mut nth) = (0, 0);
    loop {
        let target = SimulatedDevice::from_image(older.clone(), 3 + nth);
        target.inject(Fault::PowerOff { nth });
        let outcome = copy(&source, &target, true);
        let found = Arc::new(target.crash());
        let is_older = found.image().blocks().eq(older.blocks());
        let is_new = has_all(&source, &*found);
        match open(found) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotAStore, "change {nth}: {error}");
                was_none += 1;
            }
            Ok(_) => assert!(is_older || is_new || nth < 4, "change {nth}: a mixture"),
        }
        if outcome.is_ok() {
            assert!(is_new, "change {nth}");
            break;
        }
        nth += 1;
    }
    assert!(was_none > 5, "of {nth} changes {was_none} left no store");
}

/// A copy that is up to date stays a store at any moment of a copy that has nothing to do.
#[test]
fn a_copy_of_this_state_stays_a_store() {
    let original = Arc::new(SimulatedDevice::new(BYTES, 1));
    Store::format(original.clone(), environment(), &FormatOptions::default()).unwrap();
    make(&original, "first");
    let source = source(&original);
    let there = SimulatedDevice::new(BYTES, 2);
    copy(&source, &there, false).unwrap();
    for nth in 0..8 {
        let target = SimulatedDevice::from_image(there.image(), 3 + nth);
        target.inject(Fault::PowerOff { nth });
        let _ = copy(&source, &target, true);
        assert!(open(Arc::new(target.crash())).is_ok(), "change {nth}");
    }
}

#[test]
fn what_lies_between_ranges_is_all_that_they_lack() {
    let between = |ranges: &[Range<u64>]| -> Vec<(u64, u64)> {
        between(ranges, 9).into_iter().map(|range| (range.start, range.end)).collect()
    };
    assert_eq!(between(&[]), [(0, 9)]);
    assert_eq!(between(&[0..3, 5..9]), [(3, 5)]);
    assert_eq!(between(&[2..3, 3..4]), [(0, 2), (4, 9)]);
}
