//! A real power cut: a whole machine, kernel and all, is killed while it works on a mount.
//!
//! The machine is a user-mode Linux guest (Debian's package `user-mode-linux`) whose root is the
//! host's, read-only, and whose disk is the image. In it this test's own program runs again, as
//! what the machine does: threads that change files and sync them, in an order that a seed names,
//! and say on the console what is durable. What the guest held back in its memory is lost with it:
//! its page cache, the server's, requests on their way to the disk.
//!
//! Then the image must be sound, and hold for each thread the state after some prefix of its calls,
//! at or after the last sync that it told of. `ESPALIER_CUTS` says how often the power is cut,
//! `ESPALIER_SEED` what is done until then; when exactly the cut comes is up to the machine.

mod common;

use common::{Place, Random};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Seeds of the run for this one.
const CUTS: u64 = 4;
/// Threads whose calls are checked; one more makes a load.
const WORKERS: u64 = 3;
/// Calls that a thread may have made without telling: what it said last may be lost with the guest.
const UNTOLD: usize = 2000;
/// A guest that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// For the guest: seed, round and mount point.
const TASK: &str = "ESPALIER_GUEST_TASK";

/// What one call does in the directory of a worker.
#[derive(Debug, Clone)]
enum Call {
    Create(String),
    /// One request of the kernel: begins at a whole page, or stays within one.
    Write(String, u64, Vec<u8>),
    Rename(String, String),
    Remove(String),
    Sync(String),
    SyncDirectory,
}

type State = BTreeMap<String, Vec<u8>>;

/// The endless row of calls that a seed names, and what they come to.
struct Script {
    random: Random,
    state: State,
    planned: VecDeque<Call>,
}

impl Script {
    fn new(seed: u64, round: u64, worker: u64) -> Self {
        Self {
            random: random((seed << 20) | (round << 8) | worker),
            state: State::new(),
            planned: VecDeque::new(),
        }
    }

    /// The next call; the state is what it leaves.
    fn next(&mut self) -> Call {
        while self.planned.is_empty() {
            self.plan();
        }
        let call = self.planned.pop_front().expect("something is planned");
        match &call {
            Call::Create(name) => drop(self.state.insert(name.clone(), Vec::new())),
            Call::Write(name, offset, bytes) => {
                let content = self.state.get_mut(name).expect("it is there");
                let end = *offset as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(bytes);
            }
            Call::Rename(from, to) => {
                let content = self.state.remove(from).expect("it is there");
                self.state.insert(to.clone(), content);
            }
            Call::Remove(name) => drop(self.state.remove(name)),
            Call::Sync(_) | Call::SyncDirectory => {}
        }
        call
    }

    fn plan(&mut self) {
        let name = format!("file-{}", self.random.below(40));
        let length = [10, 512, 4096, 30_000, 200_000, 1 << 20][self.random.below(6) as usize];
        let size = self.state.get(&name).map(Vec::len);
        let calls = match (self.random.below(6), size) {
            // The way of careful programs.
            (0 | 1, _) => vec![
                Call::Create("new".into()),
                Call::Write("new".into(), 0, self.random.bytes(length)),
                Call::Sync("new".into()),
                Call::Rename("new".into(), name),
                Call::SyncDirectory,
            ],
            (2, Some(_)) => vec![Call::Remove(name), Call::SyncDirectory],
            (3, Some(size)) => {
                let offset = self.random.below(size as u64 + 1) & !4095;
                vec![Call::Write(name.clone(), offset, self.random.bytes(length)), Call::Sync(name)]
            }
            (_, Some(size)) => {
                // Several without a sync in between, so that a cut may find some of them.
                let whole = (size as u64).next_multiple_of(512);
                let append = |n: u64| (whole + n * 512, self.random.bytes(512));
                let parts: Vec<_> = (0..4).map(append).collect();
                let write = |(offset, bytes)| Call::Write(name.clone(), offset, bytes);
                parts.into_iter().map(write).chain([Call::Sync(name.clone())]).collect()
            }
            (_, None) => vec![Call::Create(name.clone()), Call::Sync(name)],
        };
        self.planned.extend(calls);
    }
}

/// Neighbouring seeds of the generator begin alike, so its first numbers are not used.
fn random(seed: u64) -> Random {
    let mut random = Random(seed * 2 + 1);
    for _ in 0..20 {
        random.next();
    }
    random
}

/// Carries out a call; true if it was a sync.
fn carry_out(call: &Call, directory: &Path) -> std::io::Result<bool> {
    let at = |name: &String| directory.join(name);
    let writable = |name: &String| fs::OpenOptions::new().write(true).open(at(name));
    match call {
        Call::Create(name) => fs::OpenOptions::new().write(true).create_new(true).open(at(name)).map(drop)?,
        Call::Write(name, offset, bytes) => {
            let written = writable(name)?.write_at(bytes, *offset)?;
            assert_eq!(written, bytes.len(), "a short write");
        }
        Call::Rename(from, to) => fs::rename(at(from), at(to))?,
        Call::Remove(name) => fs::remove_file(at(name))?,
        Call::Sync(name) => writable(name)?.sync_all()?,
        Call::SyncDirectory => fs::File::open(directory)?.sync_all()?,
    }
    Ok(matches!(call, Call::Sync(_) | Call::SyncDirectory))
}

/// What is in the directory of a worker.
fn state_of(directory: &Path) -> State {
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().expect("names are text");
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

/// What the machine does, in the guest. There is nothing to do for it in an ordinary run of the
/// tests.
#[test]
fn works_in_the_guest_when_asked() {
    let Ok(words) = std::env::var(TASK) else { return };
    let mut words = words.splitn(3, ' ');
    let mut word = || words.next().expect("a seed, a round and a directory");
    let (seed, round): (u64, u64) = (word().parse().unwrap(), word().parse().unwrap());
    let mount = Path::new(word());
    let home = mount.join(format!("round-{round}"));
    fs::create_dir(&home).unwrap();
    for worker in 0..WORKERS {
        fs::create_dir(home.join(worker.to_string())).unwrap();
    }
    fs::File::open(mount).unwrap().sync_all().unwrap();
    say("guest: ready");
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let directory = home.join(worker.to_string());
            scope.spawn(move || {
                let mut script = Script::new(seed, round, worker);
                for done in 1.. {
                    let call = script.next();
                    match carry_out(&call, &directory) {
                        Ok(true) => say(&format!("guest: durable {worker} {done}")),
                        Ok(false) => {}
                        Err(error) => {
                            return say(&format!("guest: failed {worker} {done} {call:?}: {error}"));
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            load(&mount.join("load"), seed + round)
                .unwrap_or_else(|error| say(&format!("guest: failed load: {error}")));
        });
    });
}

fn say(line: &str) {
    // One call, so that the lines of threads do not mix. A line begins where another may have been
    // cut off.
    let _ = std::io::stdout().write_all(format!("\n{line}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

/// Writes, overwrites and removes without a sync.
fn load(directory: &Path, seed: u64) -> std::io::Result<()> {
    let mut random = Random(seed * 2 + 1);
    fs::create_dir_all(directory)?;
    let data = random.bytes(1 << 20);
    loop {
        let path = directory.join(random.below(50).to_string());
        match random.below(4) {
            0 if path.exists() => fs::remove_file(&path)?,
            1 => fs::write(&path, &data)?,
            _ => {
                let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
                let length = 1 + random.below(50_000) as usize;
                file.write_at(&data[..length], random.below(4 << 20))?;
            }
        }
    }
}

/// A machine that runs.
struct Guest {
    process: Child,
    lines: Receiver<String>,
}

/// True if a processor has more state than user-mode Linux 6.1 knows how to give back to its
/// processes: it asks for what fits into 2.7 KiB and then cannot set it, as the host takes all of
/// it or nothing, and no guest comes up.
fn has_wide_registers() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_tile"))
}

impl Guest {
    /// Switches one on that mounts the image and works as `round` says.
    fn boot(place: &Place, seed: u64, round: u64) -> Self {
        let init = place.path("init");
        let program = std::env::current_exe().unwrap();
        let script = format!(
            r#"#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sysfs /sys || exec echo guest: failed to prepare
test -e /sys/module/fuse || insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/fuse/fuse.ko" || exec echo guest: failed to load fuse
echo guest: mounting
'{espalier}' mount --cache 64M /dev/ubda '{dir}' || exec echo guest: failed to mount
{TASK}='{seed} {round} {dir}' exec '{program}' --exact works_in_the_guest_when_asked --nocapture
"#,
            espalier = env!("CARGO_BIN_EXE_espalier"),
            dir = place.dir.display(),
            program = program.display(),
        );
        fs::write(&init, script).unwrap();
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("linux.uml");
        command
            .args(["mem=512M", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "panic=1"])
            .args(["con=null", "con0=null,fd:1", "ssl=null"])
            .arg(format!("ubd0={}", place.image.display()))
            .arg(format!("init={}", init.display()))
            // It keeps its memory in a file there, and its sockets at home.
            .env("HOME", place.base.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut process = command
            .spawn()
            .unwrap_or_else(|error| panic!("linux.uml (package user-mode-linux) does not start: {error}"));
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).trim().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { process, lines }
    }

    /// The next thing that it says, without the `guest: ` before; nothing once it is gone.
    fn next(&self) -> Option<String> {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    let Some(said) = line.strip_prefix("guest: ") else {
                        println!("    {line}");
                        continue;
                    };
                    assert!(!said.starts_with("failed"), "{said}");
                    return Some(said.to_owned());
                }
                Err(RecvTimeoutError::Timeout) => panic!("the guest hangs"),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn wait_for(&self, what: &str) {
        while self.next().unwrap_or_else(|| panic!("the guest ended before it was {what}")) != what {}
    }

    /// The power fails: no process of it does anything any more when this returns.
    fn cut(&mut self) {
        let group = self.process.id();
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&self.process),
            rustix::process::Signal::KILL,
        );
        self.process.wait().unwrap();
        while processes(group) > 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Processes of a group that are not dead.
fn processes(group: u32) -> usize {
    let stats = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = text.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let state = words.next()?.to_owned();
        Some((state, words.nth(1)?.parse::<u32>().ok()?))
    });
    stats.filter(|(state, of)| *of == group && !matches!(&**state, "Z" | "X")).count()
}

/// The state that a worker's directory holds must be one that its script comes through at or after
/// `durable` calls.
fn check(seed: u64, round: u64, worker: u64, durable: usize, found: &State) -> usize {
    let mut script = Script::new(seed, round, worker);
    (0..durable).for_each(|_| drop(script.next()));
    let expected = script.state.clone();
    for more in 0..UNTOLD {
        if script.state == *found {
            return durable + more;
        }
        script.next();
    }
    let names = || expected.keys().chain(found.keys());
    let differs: Vec<_> = names()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| {
            let length = |state: &State| state.get(name).map(Vec::len);
            format!("{name}: {:?} bytes durable, {:?} found", length(&expected), length(found))
        })
        .collect();
    panic!(
        "round {round}, worker {worker}: no state after {durable} calls or more; then differed {differs:?}"
    );
}

#[test]
fn what_was_durable_survives_power_cuts() {
    if has_wide_registers() {
        eprintln!(
            "NOT RUN: user-mode Linux kills its first process on processors with AMX; run it on another one"
        );
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seed, cuts) = (number("ESPALIER_SEED").unwrap_or(1), number("ESPALIER_CUTS").unwrap_or(CUTS));
    let mut random = random(seed);
    let place = Place::with_image("2G");
    let mut kept: Vec<(u64, Vec<State>)> = Vec::new();
    let mut cut = 0;
    for round in 0.. {
        if cut >= cuts {
            break;
        }
        println!("ESPALIER_SEED={seed}, round {round}");
        let mut guest = Guest::boot(&place, seed, round);
        guest.wait_for("mounting");
        if round > 0 && cut + 1 < cuts && random.below(3) == 0 {
            // Another one before what the last one left is recovered, or while it is.
            guest.cut();
            cut += 1;
            guest = Guest::boot(&place, seed, round);
        }
        guest.wait_for("ready");
        let mut durable = [0; WORKERS as usize];
        let mut note = |said: &str| {
            let words: Vec<&str> = said.split(' ').collect();
            let ["durable", worker, calls] = words[..] else { return };
            durable[worker.parse::<usize>().unwrap()] = calls.parse().unwrap();
        };
        for _ in 0..10 + random.below(400) {
            note(&guest.next().expect("the guest works until it is killed"));
        }
        guest.cut();
        cut += 1;
        while let Some(said) = guest.next() {
            note(&said);
        }
        place.fsck().ok();
        place.mount(&[]).ok();
        let home = place.dir.join(format!("round-{round}"));
        let states: Vec<State> = (0..WORKERS)
            .map(|worker| {
                let found = state_of(&home.join(worker.to_string()));
                let told = durable[worker as usize];
                let calls = check(seed, round, worker, told, &found);
                println!("  worker {worker}: durable after {told} calls, found after {calls}");
                found
            })
            .collect();
        kept.push((round, states));
        for (round, states) in &kept {
            for (worker, state) in states.iter().enumerate() {
                let found = state_of(&place.dir.join(format!("round-{round}/{worker}")));
                assert!(found == *state, "round {round}, worker {worker}: changed since");
            }
        }
        // The oldest go, so that the image does not fill up.
        if kept.len() > 4 {
            let (round, _) = kept.remove(0);
            fs::remove_dir_all(place.dir.join(format!("round-{round}"))).unwrap();
        }
        place.umount().ok();
        place.fsck().ok();
    }
    println!("{cut} power cuts");
}
