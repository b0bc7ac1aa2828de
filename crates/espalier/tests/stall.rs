//! A device that does not answer: the image lies on another mount, whose server is stopped.

mod common;

use common::{Loop, Place, espalier, run};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A mount whose device is a file on the mount `below`.
struct Stack {
    // Taken down in this order.
    place: Place,
    below: Below,
}

/// Goes on when the test is over, however it ends: nothing may stay behind, and what is above waits
/// for it.
impl Drop for Stack {
    fn drop(&mut self) {
        self.below.signal(Signal::CONT);
    }
}

struct Below {
    place: Place,
    server: i32,
}

impl Below {
    /// Returns when the signal has had its effect: a process that is told to stop goes on until one
    /// of its threads has been told, and the others by that one.
    fn signal(&self, what: Signal) {
        signal(self.server, what);
        while what == Signal::STOP && !self.has_stopped() {
            std::thread::yield_now();
        }
    }

    fn has_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.server)).unwrap();
        threads.flatten().all(|thread| {
            // A thread that has ended meanwhile does nothing either.
            fs::read_to_string(thread.path().join("stat")).map_or(true, |stat| stat.contains(") T "))
        })
    }
}

/// Without a process of its own: one that has been forked, and has not begun yet, has the files of
/// all tests open.
fn signal(process: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(process).unwrap(), signal);
}

fn stack(size: &str) -> Stack {
    let below = Place::mounted("1G");
    let mut place = Place::new();
    place.image = below.dir.join("b.img");
    place.mkfs(&["--size", size]).ok();
    place.mount(&["-o", "commit=0"]).ok();
    fs::write(place.dir.join("synced"), "synced").unwrap();
    fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    let server = below.server();
    Stack { place, below: Below { place: below, server } }
}

/// A process that waits for the device, once it does.
fn caller(dir: &Path) -> Child {
    let script = "echo waiting > file; echo; exec sync file";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    until_it_waits(&child, "sync", "fd/3", dir);
    child
}

/// Returns when a process is this program, has a file in `dir` open as `descriptor`, and waits for
/// something.
fn until_it_waits(child: &Child, program: &str, descriptor: &str, dir: &Path) {
    let proc = |what: &str| format!("/proc/{}/{what}", child.id());
    while !fs::read_to_string(proc("cmdline")).is_ok_and(|line| line.starts_with(program))
        || !fs::read_link(proc(descriptor)).is_ok_and(|file| file.starts_with(dir))
        || !fs::read_to_string(proc("stat")).is_ok_and(|stat| stat.contains(") D ") || stat.contains(") S "))
    {
        std::thread::yield_now();
    }
}

/// A program that writes more than there is room for, once it waits and gets no further.
fn writer(dir: &Path, name: &str) -> Child {
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", &format!("of={name}"), "bs=64K", "count=16K"]);
    let mut child = command.current_dir(dir).stderr(Stdio::null()).spawn().unwrap();
    let id = child.id();
    let read = |what: &str| fs::read_to_string(format!("/proc/{id}/{what}")).unwrap_or_default();
    let (mut before, mut same) = (String::new(), 0);
    while same < 2000 {
        let (now, stat) = (read("io"), read("stat"));
        let waits = read("cmdline").starts_with("dd") && (stat.contains(") S ") || stat.contains(") D "));
        same = if now == before && waits { same + 1 } else { 0 };
        before = now;
        assert!(child.try_wait().unwrap().is_none(), "there was room for all, or none for more");
        std::thread::yield_now();
    }
    child
}

/// True if a process has ended, or what is left of it only waits for its parent.
fn is_gone(process: i32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

#[test]
fn what_needs_no_device_goes_on_and_the_rest_when_it_answers() {
    let stack = stack("64M");
    stack.below.signal(Signal::STOP);
    let mut waits = caller(&stack.place.dir);
    // Memory and the kernel's cache answer.
    fs::write(stack.place.dir.join("other"), "other").unwrap();
    assert_eq!(fs::read(stack.place.dir.join("other")).unwrap(), b"other");
    assert_eq!(fs::read_dir(&stack.place.dir).unwrap().count(), 3);
    assert!(waits.try_wait().unwrap().is_none(), "the sync did not wait for the device");
    // Another store is mounted and unmounted, and neither command looks at the image
    // that would have it wait.
    Place::mounted("64M").umount().ok();
    stack.below.signal(Signal::CONT);
    assert!(waits.wait().unwrap().success());
    stack.place.remount();
    assert_eq!(fs::read(stack.place.dir.join("file")).unwrap(), b"waiting\n");
    stack.place.umount().ok();
    stack.below.place.umount().ok();
}

#[test]
fn who_is_killed_is_gone_while_the_device_is_silent() {
    for transport in ["transport=auto", "transport=classic"] {
        // So large that memory is full before the store is.
        let stack = stack("768M");
        let content: Vec<u8> = (0..8 << 20).map(|n: u32| (n >> 12) as u8).collect();
        fs::write(stack.place.dir.join("large"), &content).unwrap();
        fs::create_dir(stack.place.dir.join("d")).unwrap();
        // Nothing of it is in memory then.
        stack.place.umount().ok();
        stack.place.mount(&["-o", "commit=0", "-o", transport]).ok();
        stack.below.signal(Signal::STOP);
        // A program that waits for a read, once it does.
        let reader = |skip: &str| {
            let mut command = Command::new("dd");
            command.args(["if=large", "bs=1M", "count=1", "iflag=direct", "of=/dev/null", skip]);
            let child = command.current_dir(&stack.place.dir).stderr(Stdio::null()).spawn().unwrap();
            until_it_waits(&child, "dd", "fd/0", &stack.place.dir);
            child
        };
        let mut waiting = vec![caller(&stack.place.dir), reader("skip=1"), reader("skip=5")];
        for child in &mut waiting {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().code(), None);
        }
        // What needs no device is served.
        fs::write(stack.place.dir.join("other"), "other").unwrap();
        // Until there is no memory left for what is written. A caller that comes then waits for the
        // same, in one call or another.
        let mut writers = [writer(&stack.place.dir, "much"), writer(&stack.place.dir, "more")];
        // The kernel lets only one at a time change a directory, and the others wait for it.
        writers.iter_mut().for_each(|child| child.kill().unwrap());
        writers.iter_mut().for_each(|child| assert_eq!(child.wait().unwrap().code(), None));
        stack.below.signal(Signal::CONT);
        assert_eq!(fs::read(stack.place.dir.join("large")).unwrap(), content);
        assert_eq!(fs::read(stack.place.dir.join("synced")).unwrap(), b"synced");
        stack.place.umount().ok();
        assert_eq!(stack.place.fsck().code, Some(0));
        stack.below.place.umount().ok();
    }
}

#[test]
fn callers_and_server_can_be_ended_while_the_device_is_silent() {
    let stack = stack("64M");
    let server = stack.place.server();
    stack.below.signal(Signal::STOP);
    let mut waits = caller(&stack.place.dir);
    // It leaves the tree at once.
    espalier(&["umount".as_ref(), "--lazy".as_ref(), stack.place.dir.as_os_str()]).ok();
    assert_eq!(fs::read_dir(&stack.place.dir).unwrap().count(), 0);
    // The first signal asks for what the device does not give; one of the next ends the server.
    signal(waits.id() as i32, Signal::KILL);
    while !is_gone(server) {
        signal(server, Signal::TERM);
        std::thread::yield_now();
    }
    // And with it the caller, while the device is still silent.
    waits.wait().unwrap();
    stack.below.signal(Signal::CONT);
    // Once the device answers the image is as after a crash.
    while stack.place.fsck().code != Some(0) {
        std::thread::yield_now();
    }
    stack.place.mount(&[]).ok();
    assert_eq!(fs::read(stack.place.dir.join("synced")).unwrap(), b"synced");
    stack.place.umount().ok();
    stack.below.place.umount().ok();
}

/// Where the kernel shows connections; mounted by the test if it is not.
struct Connections(bool);

impl Connections {
    const DIR: &str = "/sys/fs/fuse/connections";

    fn shown() -> Self {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let missing = !table.contains(Self::DIR);
        if missing {
            run(Command::new("mount").args(["-t", "fusectl", "none", Self::DIR]));
        }
        Self(missing)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if self.0 {
            let _ = Command::new("umount").arg(Self::DIR).status();
        }
    }
}

#[test]
fn a_mount_whose_server_was_killed_and_cannot_end_is_taken_away() {
    let _connections = Connections::shown();
    for (transport, command) in [("transport=auto", "umount"), ("transport=classic", "mount")] {
        let below = Place::mounted("1G");
        let (image, server) = (below.dir.join("b.img"), below.server());
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        // The kernel lets no process go that waits for a block device, not even a killed one.
        let device = Loop::on(&image);
        let mut place = Place::new();
        place.image.clone_from(&device.0);
        place.mkfs(&["--force"]).ok();
        place.mount(&["-o", transport]).ok();
        let mut stack = Stack { place, below: Below { place: below, server } };
        let (server, dir) = (stack.place.server(), stack.place.dir.clone());
        stack.below.signal(Signal::STOP);
        let mut waits = caller(&dir);
        let threads = || fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten();
        let told = |thread: &fs::DirEntry, name: &str| {
            fs::read_to_string(thread.path().join(name)).unwrap_or_default()
        };
        // One thread for good, and not several in turn, or one in a fault or for another device.
        let switches = |thread: &fs::DirEntry| {
            let status = told(thread, "status");
            status.lines().filter(|line| line.contains("ctxt_switches")).collect::<String>()
        };
        let waits_on = |thread: fs::DirEntry| {
            let before = switches(&thread);
            (0..5_000).all(|_| told(&thread, "stat").contains(") D ")) && switches(&thread) == before
        };
        while !threads().any(waits_on) {
            std::thread::yield_now();
        }
        signal(server, Signal::KILL);
        while !is_gone(server) {
            std::thread::yield_now();
        }
        assert!(threads().count() > 1 && waits.try_wait().unwrap().is_none());
        stack.place.image = stack.place.path("other.img");
        let ran = match command {
            "umount" => stack.place.umount(),
            _ => {
                stack.place.mkfs(&["--size", "64M"]).ok();
                stack.place.mount(&[])
            }
        };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("still waits") || ran.stderr.contains("was taken away"), "{ran:?}");
        assert!(!waits.wait().unwrap().success(), "a caller was answered");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert!(threads().count() > 0, "it does not wait any more");
        stack.below.signal(Signal::CONT);
        while threads().count() > 0 {
            std::thread::yield_now();
        }
        if command == "mount" {
            stack.place.umount().ok();
        }
        stack.place.image.clone_from(&device.0);
        assert_eq!(stack.place.fsck().code, Some(0));
        drop(device);
        stack.below.place.umount().ok();
    }
}
