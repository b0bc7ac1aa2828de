//! The device on stores of every kind that needs no server: memory, a directory, a simulation.

mod support;

use espalier_object::{
    Access, Bucket, Location, ObjectDevice, Options, Present, RemoteBucket, SimulatedBucket, check_objects,
};
use espalier_storage::{BLOCK, Device, Environment, ErrorKind, SimulatedEnvironment, SystemEnvironment};
use std::sync::Arc;
use support::{block, options, read, write};

fn everywhere(test: impl Fn(Arc<dyn Bucket>, Arc<dyn Environment>)) {
    test(Arc::new(SimulatedBucket::new(1)), Arc::new(SimulatedEnvironment::new(1)));
    test(Arc::new(RemoteBucket::in_memory().unwrap()), Arc::new(SystemEnvironment::new(2)));
    let directory = tempfile::tempdir().unwrap();
    let location = Location::Directory(directory.path().join("store"));
    test(Arc::new(RemoteBucket::open(&location, true).unwrap()), Arc::new(SystemEnvironment::new(2)));
}

#[test]
fn what_was_synced_is_found_again_and_the_rest_is_zeros() {
    everywhere(|bucket, environment| {
        let bytes = 3 << 30;
        ObjectDevice::create(bucket.clone(), &environment, bytes, &options(), Present::Refuse).unwrap();
        let refused = ObjectDevice::create(bucket.clone(), &environment, bytes, &options(), Present::Refuse);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::AlreadyExists);
        let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options()).unwrap();
        assert_eq!(device.len(), bytes);
        write(&device, 5, &[1, 2, 3]);
        write(&device, 6, &[4]);
        // In two pages of the map, and in several segments.
        write(&device, 16_380, &(0..200).collect::<Vec<u64>>());
        assert_eq!(read(&device, 4, 5), [0, 1, 4, 3, 0]);
        device.sync().unwrap();
        assert_eq!(read(&device, 4, 5), [0, 1, 4, 3, 0]);
        write(&device, 7, &[9]);
        device.discard(5 * BLOCK as u64, BLOCK as u64).unwrap();
        assert_eq!(read(&device, 4, 5), [0, 0, 4, 9, 0]);
        drop(device);

        // What was not synced is gone.
        let device = ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, options()).unwrap();
        assert_eq!(read(&device, 4, 5), [0, 1, 4, 3, 0]);
        assert_eq!(read(&device, 16_380, 200), (0..200).collect::<Vec<u64>>());
        write(&device, 7, &[9]);
        device.discard(5 * BLOCK as u64, BLOCK as u64).unwrap();
        device.close().unwrap();
        let refused = device.write_at(0, &[&block(1)]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::ReadOnly);
        drop(device);

        let reader = ObjectDevice::open(bucket.clone(), &environment, Access::ReadOnly, options()).unwrap();
        assert_eq!(read(&reader, 4, 5), [0, 0, 4, 9, 0]);
        assert_eq!(reader.write_at(0, &[&block(1)]).unwrap_err().kind, ErrorKind::ReadOnly);
        let report = check_objects(bucket.clone(), &environment, &options(), true).unwrap();
        assert!(report.is_sound() && report.strangers.is_empty(), "{report:?}");
        // Closed in order: no lease is in the way.
        drop(ObjectDevice::open(bucket, &environment, Access::Write, options()).unwrap());
    });
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    everywhere(|bucket, environment| {
        for access in [Access::ReadOnly, Access::Write] {
            let error = ObjectDevice::open(bucket.clone(), &environment, access, options()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
        }
    });
}

#[test]
fn a_store_that_is_replaced_leaves_nothing_behind() {
    let bucket = Arc::new(SimulatedBucket::new(3));
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(3));
    let create = |present| ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), present);
    create(Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options()).unwrap();
    write(&device, 0, &(1..500).collect::<Vec<u64>>());
    device.sync().unwrap();
    // It is in use.
    assert_eq!(create(Present::Replace).unwrap_err().kind, ErrorKind::Busy);
    device.close().unwrap();
    create(Present::Replace).unwrap();
    assert_eq!(bucket.objects().len(), 1, "{:?}", bucket.objects());
    let device = ObjectDevice::open(bucket, &environment, Access::Write, options()).unwrap();
    assert_eq!(read(&device, 0, 3), [0, 0, 0]);
}

#[test]
fn damage_is_an_error_and_never_wrong_data() {
    let bucket = Arc::new(SimulatedBucket::new(5));
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(5));
    let small = Options { delta_runs: 2, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &small, Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, small.clone()).unwrap();
    let content: Vec<u64> = (1..60).collect();
    for at in [0, 100, 20_000, 40_000] {
        write(&device, at, &content);
        device.sync().unwrap();
    }
    device.close().unwrap();
    for (name, bytes) in bucket.objects() {
        for at in (0..bytes as usize).step_by(1 + bytes as usize / 300) {
            assert!(bucket.flip(&name, at, 4));
            let opened = ObjectDevice::open(bucket.clone(), &environment, Access::ReadOnly, small.clone());
            if let Ok(device) = opened {
                for start in [0, 100, 20_000, 40_000] {
                    let mut buffer = espalier_storage::AlignedBuf::zeroed(content.len() * BLOCK);
                    if device.read_at(start * BLOCK as u64, &mut buffer).is_ok() {
                        assert_eq!(support::tags(&buffer), content, "{name}, byte {at}");
                    }
                }
            }
            bucket.flip(&name, at, 4);
        }
    }
}

#[test]
fn what_is_missing_is_found_by_a_check() {
    let bucket = Arc::new(SimulatedBucket::new(6));
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(6));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options()).unwrap();
    write(&device, 0, &(1..100).collect::<Vec<u64>>());
    device.close().unwrap();
    let check = || check_objects(bucket.clone(), &environment, &options(), true).unwrap();
    assert!(check().is_sound());
    let name = bucket.objects().into_iter().find(|(name, _)| name.starts_with("data/")).unwrap().0;
    bucket.remove(&name);
    let report = check();
    assert_eq!(report.missing, [name]);
    let reader = ObjectDevice::open(bucket, &environment, Access::ReadOnly, options()).unwrap();
    let mut buffer = espalier_storage::AlignedBuf::zeroed(BLOCK);
    assert_eq!(reader.read_at(0, &mut buffer).unwrap_err().kind, ErrorKind::Io);
}
