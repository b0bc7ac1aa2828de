use super::super::{Access, ObjectDevice, Options, Present};
use super::*;
use crate::simulated::SimulatedBucket;
use espalier_storage::{AlignedBuf, Device, SimulatedEnvironment};

fn open(options: &Options) -> ObjectDevice {
    let bucket = Arc::new(SimulatedBucket::new(1));
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(1));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, options, Present::Refuse).unwrap();
    ObjectDevice::open(bucket, &environment, Access::Write, options.clone()).unwrap()
}

fn write(device: &ObjectDevice, block: u64) -> Result<()> {
    device.write_at(block * BLOCK as u64, &[&AlignedBuf::zeroed(BLOCK)])
}

#[test]
fn numbers_of_objects_run_out_before_one_comes_again() {
    let device = open(&Options { segment_blocks: 1, ..Options::default() });
    device.inner.state.write().next = LAST_NUMBER - 2;
    write(&device, 0).unwrap();
    device.sync().unwrap();
    write(&device, 1).unwrap();
    assert!(write(&device, 2).is_err());
    let error = device.sync().unwrap_err();
    assert!(error.to_string().contains("as many objects as one mount may"), "{error}");
    assert!(device.failure().is_some() && !device.is_fenced());
    // None of the numbers was used twice, whatever goes on for a while.
    device.inner.state.write().next = u32::MAX;
    assert_eq!(device.inner.state.write().new_id(&device.inner).0 as u32, u32::MAX);
}

#[test]
fn segments_of_no_or_too_many_blocks_are_refused() {
    let bucket = Arc::new(SimulatedBucket::new(1));
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(1));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &Options::default(), Present::Refuse)
        .unwrap();
    for segment_blocks in [0, 65537, u32::MAX] {
        let options = Options { segment_blocks, ..Options::default() };
        let error =
            ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("1 to 65536 blocks"), "{error}");
        let made = ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Replace);
        assert_eq!(made.unwrap_err().kind, ErrorKind::Unsupported);
    }
    ObjectDevice::open(
        bucket,
        &environment,
        Access::Write,
        Options { segment_blocks: 65536, ..Options::default() },
    )
    .unwrap();
}
