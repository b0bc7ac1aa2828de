//! Figures, printed, not checked: `cargo test --release -p espalier-engine measure -- --ignored --nocapture`.
//! `ESPALIER_MEASURE_DEVICE` names a file on the device to be measured.

use super::*;
use espalier_storage::FileDevice;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn report(what: &str, since: Instant, count: usize, unit: &str) {
    let each = since.elapsed().as_nanos() as f64 / count as f64;
    println!("{what:40} {each:10.1} ns per {unit}");
}

#[test]
#[ignore = "measures"]
fn measure_parts() {
    let mut builder = PartBuilder::new();
    for i in 0..300 {
        let key = format!("src/\u{1}kernel\u{1}sched\u{1}\0file{i:05}.c");
        builder.push(key.as_bytes(), Msn(i + 1000), &Op::Insert(vec![i as u8; 40].into()));
    }
    let part = Arc::new(builder.finish());
    let rounds = 2000;
    let mut cursor = part.cursor();
    let start = Instant::now();
    for _ in 0..rounds {
        cursor.first();
        while cursor.valid() {
            black_box(cursor.key());
            cursor.next();
        }
    }
    report("next", start, rounds * part.len(), "entry");
    let start = Instant::now();
    for _ in 0..rounds / 10 {
        cursor.last();
        while cursor.valid() {
            black_box(cursor.key());
            cursor.prev();
        }
    }
    report("prev", start, rounds / 10 * part.len(), "entry");
    let keys: Vec<Vec<u8>> = (0..300)
        .map(|i| format!("src/\u{1}kernel\u{1}sched\u{1}\0file{:05}.c", i * 7 % 300).into())
        .collect();
    let start = Instant::now();
    for _ in 0..rounds {
        for key in &keys {
            cursor.seek(key);
            black_box(cursor.msn());
        }
    }
    report("seek", start, rounds * keys.len(), "seek");
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let id = PieceId(5);
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(part.encode(id, compression).unwrap());
        }
        let encoded = part.encode(id, compression).unwrap();
        report(&format!("encode {compression:?}, {} blocks", encoded.blocks()), start, rounds, "part");
        let len = encoded.location(Extent { start: 0, blocks: 9 }).len as usize;
        let stored = Bytes::copy_from_slice(&encoded.bytes()[..len]);
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(Part::decode(id, &stored, &PieceHandle::counted).unwrap());
        }
        report(&format!("decode {compression:?}"), start, rounds, "part");
    }
    let start = Instant::now();
    for _ in 0..rounds {
        let mut builder = PartBuilder::new();
        cursor.first();
        while cursor.valid() {
            builder.push(cursor.key(), cursor.msn(), &cursor.op());
            cursor.next();
        }
        black_box(builder.finish());
    }
    report("copy through cursor and builder", start, rounds * part.len(), "entry");
    let start = Instant::now();
    for _ in 0..rounds {
        for key in &keys {
            black_box(part.filter().may_contain(key));
        }
    }
    report("filter", start, rounds * keys.len(), "key");
}

#[test]
#[ignore = "measures"]
fn measure_values() {
    let Some(path) = std::env::var_os("ESPALIER_MEASURE_DEVICE") else { return };
    let blocks = 1 << 18;
    let length = blocks * BLOCK as u64;
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, length).unwrap());
    let mut random = Random::new(1);
    // 80,000 small files of 8 KiB on average, in batches as leaves write them.
    let locator = Arc::new(Bump { inner: TestLocator::new(1), next: Mutex::new(1) });
    let fresh = || Pieces::new(GuardedDevice::new(device.clone(), false), locator.clone(), 256 << 20);
    let pieces = fresh();
    let (mut files, mut handles, mut total) = (Vec::new(), Vec::new(), 0);
    let start = Instant::now();
    for _ in 0..160 {
        let batch: Vec<Arc<LargeValue>> = (0..500)
            .map(|_| {
                let mut bytes = vec![0; 4096 + random.index(8192)];
                random.fill(&mut bytes);
                total += bytes.len();
                Arc::new(LargeValue::in_memory(bytes.into()))
            })
            .collect();
        handles.extend(pieces.write_values(&batch, None).unwrap());
        for value in &batch {
            value.forget_bytes();
        }
        files.extend(batch);
    }
    device.sync().unwrap();
    let speed = |bytes: usize, since: Instant| bytes as f64 / 1e6 / since.elapsed().as_secs_f64();
    println!("write {} files, {} MB: {:.0} MB/s", files.len(), total / 1_000_000, speed(total, start));
    for threads in [0, 1] {
        let pieces = fresh();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if threads > 0 {
                let pair = Arc::new((Mutex::new(0u32), parking_lot::Condvar::new()));
                let wake = pair.clone();
                pieces.set_read_ahead_wake(move || {
                    *wake.0.lock() += 1;
                    wake.1.notify_one();
                });
                let (pieces, done) = (&pieces, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        while pieces.read_ahead_step() {}
                        let mut wakes = pair.0.lock();
                        if *wakes == 0 {
                            pair.1.wait_for(&mut wakes, std::time::Duration::from_millis(5));
                        }
                        *wakes = 0;
                    }
                });
            }
            let start = Instant::now();
            for file in &files {
                black_box(bytes_of(&pieces, file).unwrap());
            }
            println!("scan with {threads} helpers: {:.0} MB/s", speed(total, start));
            done.store(true, Ordering::Relaxed);
        });
    }
    let mut buffer = AlignedBuf::zeroed(1 << 20);
    let start = Instant::now();
    let span = total / (1 << 20);
    for i in 0..span {
        device.read_at((1 << 12) + ((i as u64) << 20), &mut buffer).unwrap();
    }
    println!("device, 1 MiB reads: {:.0} MB/s", speed(span << 20, start));
    let pieces = fresh();
    let mut page = AlignedBuf::zeroed(4096);
    let start = Instant::now();
    for _ in 0..5000 {
        let place = files[random.index(files.len())].place().unwrap();
        pieces.read_value(&place, 0, &mut page[..4096]).unwrap();
    }
    report("random page", start, 5000, "read");
    let start = Instant::now();
    for _ in 0..5000 {
        device.read_at(random.below(blocks / 2) * BLOCK as u64, &mut page).unwrap();
    }
    report("device, random block", start, 5000, "read");
}

/// Allocates upwards, fast.
struct Bump {
    inner: Arc<TestLocator>,
    next: Mutex<u64>,
}

impl Locator for Bump {
    fn new_id(&self) -> PieceId {
        self.inner.new_id()
    }
    fn locate(&self, id: PieceId) -> Result<Location> {
        self.inner.locate(id)
    }
    fn allocate(&self, blocks: u32, _: Option<u64>) -> Result<Extent> {
        let mut next = self.next.lock();
        let start = *next;
        *next += u64::from(blocks);
        Ok(Extent { start, blocks })
    }
    fn give_back(&self, _: Extent) {}
    fn register(
        &self,
        id: PieceId,
        location: Location,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Arc<PieceHandle>> {
        self.inner.register(id, location, holds)
    }
    fn handle(&self, id: PieceId) -> Arc<PieceHandle> {
        self.inner.handle(id)
    }
}
