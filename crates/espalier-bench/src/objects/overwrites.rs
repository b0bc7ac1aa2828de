//! What is stored beside what is live, over a simulated day of random overwrites.
//!
//! A device of 256 MiB, full, in a simulated store, of which a tenth is overwritten 40 times as
//! often as the rest: every half minute 16 writes of one to 16 blocks and a sync, with the
//! maintenance that the same day would bring.

use super::figures::Figures;
use crate::options::Options;
use crate::random::Random;
use anyhow::Result;
use espalier_object::{Access, ObjectDevice, Options as DeviceOptions, Present, SimulatedBucket};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, SimulatedEnvironment};
use std::sync::Arc;
use std::time::Duration;

const DEVICE_BYTES: u64 = 256 << 20;
const STEP: Duration = Duration::from_secs(30);
const STEPS_A_DAY: u64 = 24 * 60 * 2;
const STEPS_AN_HOUR: u64 = 60 * 2;
const WRITES_PER_STEP: u64 = 16;
const MAX_BLOCKS: u64 = 16;
/// In the simulation.
const DEVICE: &str = "simulated day";

/// Tells the most that was stored at the end of an hour.
pub(super) fn overwrites(options: &Options, figures: &mut Figures) -> Result<()> {
    let bucket = Arc::new(SimulatedBucket::new(1));
    let simulated = Arc::new(SimulatedEnvironment::new(1));
    let environment: Arc<dyn Environment> = simulated.clone();
    let device_options = DeviceOptions::default();
    ObjectDevice::create(bucket.clone(), &environment, DEVICE_BYTES, &device_options, Present::Refuse)?;
    let device = ObjectDevice::open(bucket.clone(), &environment, Access::Write, device_options)?;
    let blocks = DEVICE_BYTES / BLOCK as u64;
    let mut random = Random(9);
    let mut buffer = AlignedBuf::zeroed(MAX_BLOCKS as usize * BLOCK);
    for start in (0..blocks).step_by(MAX_BLOCKS as usize) {
        device.write_at(start * BLOCK as u64, &[&buffer])?;
    }
    device.sync()?;
    let (mut written, mut most, mut sum) = (0, 0.0f64, 0.0);
    let (mut most_with_dead, begun) = (0.0f64, device.request_counts());
    let steps = STEPS_A_DAY / options.scale.max(1) as u64;
    for step in 1..=steps {
        for _ in 0..WRITES_PER_STEP {
            let count = 1 + random.next() % MAX_BLOCKS;
            let hot = !random.next().is_multiple_of(5);
            let range = if hot { blocks / 10 } else { blocks };
            let start = random.next() % (range - count);
            let bytes = count as usize * BLOCK;
            random.fill(&mut buffer[..64]);
            device.write_at(start * BLOCK as u64, &[&buffer[..bytes]])?;
            written += bytes as u64;
        }
        device.sync()?;
        bucket.advance(STEP.as_millis() as u64);
        simulated.advance(STEP);
        while device.step()? {}
        if step % STEPS_AN_HOUR == 0 || step == steps {
            let usage = device.usage();
            let by_live = |bytes: u64| bytes as f64 / usage.live_bytes.max(1) as f64;
            let stored = by_live(usage.segment_bytes + usage.map_bytes);
            (most, sum) = (most.max(stored), sum + stored);
            most_with_dead =
                most_with_dead.max(by_live(bucket.objects().iter().map(|(_, bytes)| bytes).sum()));
        }
    }
    let requests = device.request_counts();
    let put = requests.bytes_put - begun.bytes_put;
    figures.tell(DEVICE, 0, "stored_by_live_most", most);
    figures.tell(DEVICE, 0, "stored_by_live_mean", sum / steps.div_ceil(STEPS_AN_HOUR) as f64);
    figures.tell(DEVICE, 0, "with_dead_by_live_most", most_with_dead);
    figures.tell(DEVICE, 0, "overwritten_gib", written as f64 / (1 << 30) as f64);
    figures.tell(DEVICE, 0, "put_by_written", put as f64 / written as f64);
    figures.tell(DEVICE, 0, "day_puts", (requests.puts - begun.puts) as f64);
    figures.tell(DEVICE, 0, "day_gets", (requests.gets - begun.gets) as f64);
    figures.tell(DEVICE, 0, "day_deletes", (requests.deletes - begun.deletes) as f64);
    Ok(())
}
