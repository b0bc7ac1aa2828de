//! Servers of a mount over io_uring that are replaced while more clients wait on each CPU than its
//! ring has entries: each request is carried out once, and answered once.

mod common;

use common::{Place, Ran, espalier, run};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// More than entries of a queue.
const CLIENTS_PER_CPU: usize = 24;
const REPLACEMENTS: u64 = 6;

/// Keeps the calling thread on a CPU, and with it its requests in one queue.
fn stay_on(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// What a client did, and the longest time that one step took.
struct Done {
    steps: u64,
    longest: Duration,
}

/// Makes, links, writes and removes names of its own until it is told to stop. A request that was
/// carried out twice fails the second time, one that was lost never ends, and one that got the
/// answer of another shows in what is there.
fn client(dir: &Path, number: usize, stop: &AtomicBool, all: &AtomicU64) -> Done {
    let dir = dir.join(number.to_string());
    fs::create_dir(&dir).unwrap();
    let mut done = Done { steps: 0, longest: Duration::ZERO };
    let log = OpenOptions::new().read(true).append(true).create_new(true).open(dir.join("log")).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let step = done.steps;
        let record = (number as u64) << 32 | step;
        let path = dir.join(format!("{step:x}"));
        File::create_new(&path).unwrap().write_all_at(&record.to_le_bytes(), 0).unwrap();
        fs::hard_link(&path, dir.join("link")).unwrap();
        fs::remove_file(dir.join("link")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), record.to_le_bytes());
        std::io::Write::write_all(&mut &log, &record.to_le_bytes()).unwrap();
        assert_eq!(log.metadata().unwrap().len(), 8 * (step + 1));
        if step % 2 == 1 {
            fs::remove_file(&path).unwrap();
        }
        done.steps += 1;
        all.fetch_add(1, Ordering::Relaxed);
        done.longest = done.longest.max(begun.elapsed());
    }
    let mut records = vec![0; 8 * done.steps as usize];
    log.read_exact_at(&mut records, 0).unwrap();
    for (step, record) in (0..).zip(records.chunks_exact(8)) {
        assert_eq!(record, ((number as u64) << 32 | step).to_le_bytes());
    }
    done
}

/// Tells clients to stop, also when it is dropped by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_of_many_requests_is_answered_once() {
    let place = Place::with_image("512M");
    place.mount(&["-o", "transport=io_uring"]).ok();
    let dir = place.dir.as_path();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let (stop, all) = (AtomicBool::new(false), AtomicU64::new(0));
    let done: Vec<Done> = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let clients: Vec<_> = (0..cpus * CLIENTS_PER_CPU)
            .map(|number| {
                let (stop, all) = (&stop, &all);
                scope.spawn(move || {
                    stay_on(number % cpus);
                    client(dir, number, stop, all)
                })
            })
            .collect();
        for _ in 0..REPLACEMENTS {
            // So that each server has served.
            let before = all.load(Ordering::Relaxed);
            while all.load(Ordering::Relaxed) < before + 200 {
                assert!(clients.iter().all(|client| !client.is_finished()), "a client has failed");
                std::thread::yield_now();
            }
            let server = place.server();
            espalier(&["mount".as_ref(), "--replace".as_ref(), dir.as_os_str()]).ok();
            assert_ne!(place.server(), server);
        }
        drop(stops);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let steps: u64 = done.iter().map(|done| done.steps).sum();
    let longest = done.iter().map(|done| done.longest).max().unwrap_or_default();
    println!("{} clients, {steps} steps; the longest took {longest:?}", done.len());
    for (number, done) in done.iter().enumerate() {
        let names = fs::read_dir(dir.join(number.to_string())).unwrap().count() as u64;
        assert_eq!(names, 1 + done.steps.div_ceil(2));
    }
    place.umount().ok();
    place.fsck().ok();
}

/// Mounts at `place`, from a shell with this limit (of `prlimit`).
fn mount_with_limit(place: &Place, limit: &str, options: &str) -> Ran {
    let mut command = Command::new("prlimit");
    command.args([limit, env!("CARGO_BIN_EXE_espalier"), "mount", "-o", options]);
    command.args([&place.image, &place.dir]).output().unwrap().into()
}

/// How many files a process may have open: softly, and at most.
fn open_files_limits(process: i32) -> [u64; 2] {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace();
    std::array::from_fn(|_| words.next().unwrap().parse().unwrap())
}

#[test]
fn a_server_may_have_a_ring_for_each_thread_whatever_the_soft_limit() {
    let place = Place::with_image("64M");
    // Fewer than there are rings on two CPUs.
    mount_with_limit(&place, "--nofile=32:4096", "transport=io_uring").ok();
    assert_eq!(open_files_limits(place.server()), [4096, 4096]);
    let mut replace = Command::new("prlimit");
    replace.args(["--nofile=32:4096", env!("CARGO_BIN_EXE_espalier"), "mount", "--replace"]);
    run(replace.arg(&place.dir));
    assert_eq!(open_files_limits(place.server()), [4096, 4096]);
    place.umount().ok();
}

#[test]
fn where_the_memory_of_rings_may_not_be_made_the_classic_device_serves() {
    let place = Place::with_image("32M");
    // As long as the image; the memory of the rings is one longer file.
    mount_with_limit(&place, "--fsize=33554432", "transport=auto").ok();
    fs::write(place.dir.join("f"), "written").unwrap();
    let text = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["mount"]["transport"], "classic");
    place.umount().ok();
    place.fsck().ok();
}
