//! The disk cache: what is read is right whatever happens to its files, and hits need no server.
//!
//! `ESPALIER_SEED=7 cargo test -p espalier-object --test disk_cache NAME` replays.

mod support;

use espalier_object::{Access, DiskCache, ObjectDevice, Options, Present, SimulatedBucket};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, ErrorKind, Random, SimulatedEnvironment};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::{options, read, seeds, write};

/// A child of another test has the lock for the moment between its fork and its exec.
const WAIT: Duration = Duration::from_secs(10);

/// Bytes of 16 slots, the fewest that there may be.
const FEW: u64 = 16 * ((68 << 10) + 32);

fn with_cache(directory: &Path, bytes: u64) -> Options {
    let cache = DiskCache::open(directory, bytes, WAIT).unwrap();
    Options { cache_bytes: 0, ahead_bytes: 0, disk_cache: Some(Arc::new(cache)), probe: false, ..options() }
}

struct Store {
    bucket: Arc<SimulatedBucket>,
    environment: Arc<dyn Environment>,
}

impl Store {
    fn new(seed: u64) -> Self {
        let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(seed));
        let bucket = Arc::new(SimulatedBucket::new(seed));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        Self { bucket, environment }
    }

    fn open(&self, options: Options) -> ObjectDevice {
        ObjectDevice::open(self.bucket.clone(), &self.environment, Access::TakeOver, options).unwrap()
    }
}

#[test]
fn hits_need_no_server_and_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("a/cache");
    let store = Store::new(1);
    let device = store.open(Options { probe: false, ..options() });
    let tags: Vec<u64> = (1..=200).collect();
    write(&device, 0, &tags);
    device.close().unwrap();
    // What is read is kept.
    let device = store.open(with_cache(&cache, 8 << 20));
    assert_eq!(read(&device, 0, 100), tags[..100]);
    store.bucket.set_away(true);
    assert_eq!(read(&device, 3, 60), tags[3..63]);
    assert!(read_fails(&device, 150));
    store.bucket.set_away(false);
    // So is what is written.
    write(&device, 200, &tags);
    device.close().unwrap();
    drop(device);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&cache), mode(&cache.join("frames"))), (0o700, 0o600));
    let options = with_cache(&cache, 8 << 20);
    let held = options.disk_cache.clone().unwrap();
    assert!(held.usage().frames >= 18, "{:?}", held.usage());
    let device = store.open(options);
    // The map is not in the cache.
    assert_eq!(read(&device, 150, 1), tags[150..151]);
    store.bucket.set_away(true);
    assert_eq!(read(&device, 0, 96), tags[..96]);
    assert_eq!(read(&device, 200, 200), tags);
    assert!(held.usage().hits >= 6 && held.usage().damaged == 0, "{:?}", held.usage());
}

fn read_fails(device: &ObjectDevice, block: u64) -> bool {
    device.read_at(block * BLOCK as u64, &mut AlignedBuf::zeroed(BLOCK)).is_err()
}

#[test]
fn one_process_has_a_directory_and_it_keeps_its_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let error = DiskCache::open(path, FEW - 1, WAIT).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.to_string().contains("2 MiB"), "{error}");
    let store = Store::new(2);
    let device = store.open(with_cache(path, 4 * FEW));
    let error = DiskCache::open(path, FEW, Duration::ZERO).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.to_string().contains("of its own"), "{error}");
    for round in 0..20 {
        write(&device, round * 64, &[round + 1; 64]);
        device.sync().unwrap();
    }
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    let total = || bytes(&path.join("frames")) + bytes(&path.join("index"));
    assert!(total() <= 4 * FEW && total() > 3 * FEW, "{}", total());
    drop(device);
    // A smaller one gives back what is too much.
    let device = store.open(with_cache(path, FEW));
    assert!(total() <= FEW, "{}", total());
    for round in 0..20 {
        assert_eq!(read(&device, round * 64, 64), [round + 1; 64]);
    }
    assert!(total() <= FEW, "{}", total());
    // Deleted while it is open: another process may have the name from now on.
    fs::remove_dir_all(path).unwrap();
    let other = store.open(with_cache(path, FEW));
    for device in [&device, &other] {
        assert_eq!(read(device, 0, 64), [1; 64]);
    }
}

/// What a user, another program or a power cut may do to the files.
fn damage(path: &Path, random: &mut Random) {
    let name = path.join(*random.choose(&["frames", "index"]));
    let length = fs::metadata(&name).map_or(0, |metadata| metadata.len());
    let open = || File::options().read(true).write(true).open(&name);
    match random.below(7) {
        0 => drop(fs::remove_file(&name)),
        1 => drop(open().map(|file| file.set_len(random.below(length + 1)))),
        2 => drop(fs::write(&name, vec![0x5a; random.below(100_000) as usize])),
        // A page of zeros, as a file system that was cut off from power leaves it.
        3 => drop(open().map(|file| file.write_all_at(&[0; 4096], random.below(length + 1) & !4095))),
        4 if length > 64 => {
            // Entries, or parts of frames, in the place of others.
            let file = open().unwrap();
            let mut bytes = vec![0; 32.min(length as usize)];
            let places = (length - 32) / 32;
            file.read_exact_at(&mut bytes, random.below(places + 1) * 32).unwrap();
            file.write_all_at(&bytes, random.below(places + 1) * 32).unwrap();
        }
        5 => drop(fs::remove_dir_all(path)),
        _ => {
            if let (Ok(file), true) = (open(), length > 0) {
                for _ in 0..20 {
                    let (at, mut byte) = (random.below(length), [0]);
                    file.read_exact_at(&mut byte, at).unwrap();
                    file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
                }
            }
        }
    }
}

#[test]
fn whatever_happens_to_its_files_what_is_read_is_right() {
    let (mut hits, mut damaged) = (0, 0);
    for seed in seeds(&[], 12) {
        println!("ESPALIER_SEED={seed}");
        let mut random = Random::new(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        let store = Store::new(seed);
        let mut model = vec![0u64; 1024];
        let mut options = with_cache(&path, FEW * (1 + random.below(3)));
        let mut device = store.open(options.clone());
        for tag in 1..400u64 {
            let start = random.below(1000);
            let blocks = 1 + random.below((1024 - start).min(40));
            let range = start as usize..(start + blocks) as usize;
            match random.below(12) {
                0..4 => {
                    write(&device, start, &vec![tag; blocks as usize]);
                    model[range].fill(tag);
                }
                4 => device.sync().unwrap(),
                5 => damage(&path, &mut random),
                6 => {
                    device.close().unwrap();
                    let usage = options.disk_cache.as_ref().unwrap().usage();
                    (hits, damaged) = (hits + usage.hits, damaged + usage.damaged);
                    drop((device, options));
                    if random.one_in(2) {
                        damage(&path, &mut random);
                    }
                    options = with_cache(&path, FEW * (1 + random.below(3)));
                    device = store.open(options.clone());
                }
                _ => assert_eq!(read(&device, start, blocks as usize), model[range], "seed {seed}"),
            }
        }
        assert_eq!(read(&device, 0, 1024), model);
    }
    assert!(hits > 100 && damaged > 10, "{hits} hits, {damaged} damaged");
}

/// A file system that is full, and unmounted in the end.
struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Self {
        let small = Self(tempfile::tempdir().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "small"]).arg(small.0.path());
        assert!(mount.status().unwrap().success());
        small
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_ends_the_growth_of_the_cache_only() {
    let small = Small::new(2 << 20);
    let store = Store::new(5);
    let options = with_cache(small.0.path(), 64 << 20);
    let cache = options.disk_cache.clone().unwrap();
    let device = store.open(options);
    for round in 0..20 {
        write(&device, round * 64, &[round + 1; 64]);
        device.sync().unwrap();
    }
    for round in 0..20 {
        assert_eq!(read(&device, round * 64, 64), [round + 1; 64]);
    }
    let usage = cache.usage();
    assert!(usage.failed_writes > 0 && usage.limit_bytes < 2 << 20 && usage.frames > 8, "{usage:?}");
    // It takes new frames in the place of old ones.
    store.bucket.set_away(true);
    assert_eq!(read(&device, 19 * 64, 64), [20; 64]);
}
