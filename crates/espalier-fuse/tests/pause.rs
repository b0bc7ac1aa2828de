//! A mount that is paused, as before it is handed over, and goes on.

mod common;

use common::kinds;
use common::store::Image;
use espalier_fs::FileSystem;
use espalier_fuse::transport::{Kind, make_requests};
use espalier_fuse::{COMMAND_XATTR, Commands, Mount, MountOptions};
use espalier_sync::Mutex;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const FILLER: &str = "ESPALIER_TEST_FILLER";

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

/// This program again, which only makes requests.
fn request_maker() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "makes_requests_when_asked", "--nocapture", "--test-threads=1"]);
    command.env(FILLER, "1");
    command
}

#[test]
fn makes_requests_when_asked() {
    if std::env::var_os(FILLER).is_some() {
        make_requests().unwrap();
    }
}

/// Commands of the server: each counts, and `block` waits until it is told to go on.
fn commands(count: &Arc<AtomicU64>, entered: std::sync::mpsc::Sender<()>, go_on: Receiver<()>) -> Commands {
    let (count, channels) = (Arc::clone(count), Mutex::new((entered, go_on)));
    Commands(Arc::new(move |command| {
        count.fetch_add(1, Ordering::SeqCst);
        if command == "block" {
            let channels = channels.lock();
            channels.0.send(()).unwrap();
            channels.1.recv().unwrap();
        }
        Some("done".into())
    }))
}

fn command(dir: &Path, name: &str) {
    let mut answer = [0; 64];
    let length = rustix::fs::getxattr(dir, format!("{COMMAND_XATTR}{name}"), &mut answer).unwrap();
    assert_eq!(&answer[..length], b"done");
}

fn paused_and_going_on(kind: Kind, fs: &Arc<FileSystem>) {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let _watchdog = common::Watchdog::watch(dir);
    let (count, served) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let ((entered, is_entered), (go_on, goes_on)) = (channel(), channel());
    let options = MountOptions {
        transport: Some(kind),
        request_maker: Some(request_maker),
        commands: Some(commands(&count, entered, goes_on)),
        ..MountOptions::default()
    };
    let mount = Mount::start(Arc::clone(fs), dir, &options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A request that takes long.
        let blocked = scope.spawn(|| command(dir, "block"));
        is_entered.recv().unwrap();
        for _ in 0..2 {
            let refused = mount.pause(Duration::from_millis(200)).map(drop).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut, "{refused}");
            // Everything else is served.
            command(dir, "other");
        }
        assert!(!blocked.is_finished());
        go_on.send(()).unwrap();
        blocked.join().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 3, "each of them is served once");

        let clients: Vec<_> = (0..2 * common::cpus())
            .map(|number| {
                let (stop, served) = (&stop, &served);
                scope.spawn(move || {
                    common::stay_on(number % common::cpus());
                    while !stop.load(Ordering::SeqCst) {
                        command(dir, "count");
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..10 {
            let before = served.load(Ordering::SeqCst);
            while served.load(Ordering::SeqCst) < before + 10 {
                std::thread::yield_now();
            }
            let paused = mount.pause(LONG).unwrap();
            let counted = count.load(Ordering::SeqCst);
            paused.hand_over().unwrap();
            assert_eq!(paused.ring_descriptors().unwrap().is_some(), kind == Kind::Uring);
            assert_eq!(count.load(Ordering::SeqCst), counted, "a request was served in a pause");
            drop(paused);
        }
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(count.load(Ordering::SeqCst), 3 + served.load(Ordering::SeqCst));
    mount.unmount(true).unwrap();
    mount.wait();
}

#[test]
fn a_mount_is_paused_unless_requests_take_long_and_goes_on() {
    if std::env::var_os(FILLER).is_some() {
        return;
    }
    for kind in kinds() {
        Image::new(64 << 20).embedded(|fs| paused_and_going_on(kind, fs));
    }
}

/// Set in the process that is shown a list of CPUs that is too short.
const SHORT_LIST: &str = "ESPALIER_TEST_SHORT_LIST";

/// As in a container that is shown one CPU and may run on all. No client fills an entry here, so it
/// shows too that each request of the filler reaches the server.
#[test]
fn no_entry_stays_empty_where_the_list_of_cpus_is_too_short() {
    if std::env::var_os(FILLER).is_some() || !kinds().contains(&Kind::Uring) {
        return;
    }
    if std::env::var_os(SHORT_LIST).is_none() {
        let list = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(list.path(), "0\n").unwrap();
        let script = "mount --bind \"$1\" /sys/devices/system/cpu/online
            exec \"$2\" --exact no_entry_stays_empty_where_the_list_of_cpus_is_too_short --nocapture";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]).arg(list.path());
        command.arg(std::env::current_exe().unwrap()).env(SHORT_LIST, "1");
        assert!(command.status().unwrap().success());
        return;
    }
    Image::new(64 << 20).embedded(|fs| {
        let directory = tempfile::tempdir().unwrap();
        let _watchdog = common::Watchdog::watch(directory.path());
        let options = MountOptions {
            transport: Some(Kind::Uring),
            request_maker: Some(request_maker),
            ..MountOptions::default()
        };
        let mount = Mount::start(Arc::clone(fs), directory.path(), &options).unwrap();
        let paused = mount.pause(LONG).unwrap();
        let rings = paused.hand_over().unwrap().mount.rings.unwrap();
        let may_run = rustix::thread::sched_getaffinity(None).unwrap();
        let mut entries = rings.entries.iter().filter(|entry| may_run.is_set(entry.cpu));
        assert!(entries.all(|entry| entry.commit_id.is_some()), "{rings:?}");
        drop(paused);
        mount.unmount(true).unwrap();
        mount.wait();
    });
}
