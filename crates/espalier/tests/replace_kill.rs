//! Handovers of which one side, or the command, is killed at any moment: the mount goes on with one
//! of the servers, or ends as with a crash, and nothing that was acknowledged is lost.

mod common;

use common::{Place, Random, espalier};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TRANSPORTS: [[&str; 2]; 2] = [["-o", "transport=classic"], ["-o", "transport=io_uring"]];
/// How often each side is killed.
const KILLS: u64 = 10;
/// The number of FUSE file systems in `statfs`.
const FUSE: i64 = 0x6573_5546;

/// What is killed while a handover is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Old,
    New,
    Both,
    /// The command that started the new server and waits for it.
    Command,
}

/// Starts a handover.
fn replacing(place: &Place, killed: Killed) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(["mount", "--replace"]).arg(&place.dir).stdin(Stdio::null()).stderr(Stdio::null());
    match killed {
        // The new server has this until it is ready, or ends.
        Killed::Command => command.stdout(Stdio::piped()),
        // The process is the new server.
        _ => command.arg("--foreground").stdout(Stdio::null()),
    };
    command.spawn().unwrap()
}

fn kill(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    // It may have ended.
    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
}

/// Every so many files, one is made durable.
const EACH_DURABLE: u64 = 4;

/// Makes files until it is told to stop or the mount has ended; returns how many.
fn work(place: &Place, round: u64, stop: &AtomicBool) -> u64 {
    for number in 0.. {
        let make = || -> std::io::Result<()> {
            let mut file = File::create(path(place, round, number))?;
            file.write_all(&content(round, number))?;
            if number % EACH_DURABLE == 0 {
                file.sync_all()?;
            }
            Ok(())
        };
        if stop.load(Ordering::Relaxed) || make().is_err() {
            return number;
        }
    }
    unreachable!()
}

fn path(place: &Place, round: u64, number: u64) -> PathBuf {
    place.dir.join(format!("r{round}-{number}"))
}

fn content(round: u64, number: u64) -> Vec<u8> {
    vec![(round * 31 + number) as u8; (number as usize * 997) % 9000 + 1]
}

/// Files of a round that have to be there: each `step`-th of the first `count`.
struct Kept {
    round: u64,
    count: u64,
    step: u64,
}

impl Kept {
    fn check(&self, place: &Place) {
        for number in (0..self.count).step_by(self.step as usize) {
            let found = fs::read(path(place, self.round, number));
            assert_eq!(found.ok(), Some(content(self.round, number)), "{} of {}", number, self.round);
        }
    }
}

fn is_mounted(place: &Place) -> bool {
    // While no server serves, and one of them may yet, this waits.
    rustix::fs::statfs(&place.dir).is_ok_and(|told| told.f_type == FUSE)
}

/// One handover with a kill `after` its begin.
fn round(place: &Place, transport: &[&str; 2], round: u64, killed: Killed, after: Duration) -> Kept {
    let old = place.server();
    let stop = AtomicBool::new(false);
    let (count, goes_on) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(place, round, &stop));
        let begun = Instant::now();
        let mut new = replacing(place, killed);
        while begun.elapsed() < after {
            std::thread::yield_now();
        }
        if matches!(killed, Killed::Old | Killed::Both) {
            kill(old);
        }
        if killed != Killed::Old {
            kill(new.id() as i32);
        }
        if let Some(mut output) = new.stdout.take() {
            output.read_to_end(&mut Vec::new()).unwrap();
        }
        let goes_on = is_mounted(place);
        stop.store(true, Ordering::Relaxed);
        // It may go on as a server, until it is unmounted.
        std::thread::spawn(move || new.wait());
        (worker.join().unwrap(), goes_on)
    });
    println!(
        "{}, round {round}: {killed:?} after {after:?}: {count} files, goes on: {goes_on}",
        transport[1]
    );
    assert!(goes_on || killed != Killed::Command, "an interrupted command takes a mount away");
    if !goes_on {
        place.mount(transport).ok();
    }
    let kept = Kept { round, count, step: if goes_on { 1 } else { EACH_DURABLE } };
    kept.check(place);
    rustix::fs::syncfs(File::open(&place.dir).unwrap()).unwrap();
    kept
}

fn kill_at_any_moment(killed: Killed, seed: u64) {
    TRANSPORTS.iter().for_each(|transport| kill_over(transport, killed, seed));
}

fn kill_over(transport: &[&str; 2], killed: Killed, seed: u64) {
    let place = Place::with_image("256M");
    place.mount(transport).ok();
    let begun = Instant::now();
    espalier(&["mount".as_ref(), "--replace".as_ref(), place.dir.as_os_str()]).ok();
    let took = begun.elapsed().as_micros() as u64;
    let mut random = Random(seed);
    let mut kept = Vec::new();
    for number in 0..KILLS {
        // Once in each part of the time that it takes about.
        let after = Duration::from_micros((number * took + random.below(took)) / KILLS);
        kept.push(round(&place, transport, number, killed, after));
    }
    place.umount().ok();
    place.fsck().ok();
    place.mount(transport).ok();
    kept.iter().for_each(|kept| kept.check(&place));
    place.umount().ok();
}

#[test]
fn the_old_server_is_killed() {
    kill_at_any_moment(Killed::Old, 1);
}

#[test]
fn the_new_server_is_killed() {
    kill_at_any_moment(Killed::New, 2);
}

#[test]
fn both_are_killed() {
    kill_at_any_moment(Killed::Both, 3);
}

#[test]
fn the_command_is_killed() {
    kill_at_any_moment(Killed::Command, 4);
}
