//! Descriptors that clients pass and that do not close. By itself: a program that is started holds
//! such a descriptor as well, and does not get to run.

mod common;
#[path = "common/raw.rs"]
mod raw;
#[path = "common/unanswered.rs"]
mod unanswered;

use common::Mounted;
use espalier_client::wire::{Call, Hello};
use espalier_client::{Client, Links};
use raw::{AREA, Raw, address, hello, memory, request};
use rustix::fs::SealFlags;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::channel;
use std::time::Duration;
use unanswered::Unanswered;

#[test]
fn serves_when_asked() {
    common::serve_if_asked();
}

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

/// Does `work`, which connects, in a thread that runs as user 1000.
fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        // SAFETY: the call takes numbers; as a system call it changes this thread alone.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) }, 0);
        work()
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// Packets that have descriptors where none belongs, or others than those that belong there. Each
/// connection ends, before its descriptors are closed.
fn pass_everywhere(root: &File, stuck: &Unanswered) {
    let (token, name) = address(root);
    let words = request(1, Hello::NUMBER, &hello(token).encode());
    let stat = Call::Stat { follow: true, paths: vec![b"."] };
    let call = request(2, stat.number(), &stat.encode());
    let memory = memory(2 * u64::from(AREA), SealFlags::SHRINK | SealFlags::GROW);
    let files: Vec<File> = (0..5).map(|_| stuck.open()).collect();
    let pass = |raw: Raw, packet: &[u8], descriptors: &[BorrowedFd<'_>]| {
        assert!(raw.send(packet, descriptors));
        while raw.receive().is_some_and(|(head, _)| head.errno != 0) {}
    };
    let new = || Raw::connect(&name);
    let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    pass(new(), b"nonsense", &all[..1]);
    pass(new(), b"", &all[..1]);
    pass(new(), &words, &all);
    pass(new(), &words, &[root.as_fd(), all[0]]);
    pass(new(), &words, &[all[0], memory.as_fd()]);
    pass(Raw::begin(root), &call, &all[..1]);
    // What nothing may read any more.
    let raw = new();
    let _ = raw.send(b"", &[]) && raw.send(b"nonsense", &[all[0]]);
    drop(raw);
    // They do not close here either.
    std::mem::forget(files);
}

#[test]
fn what_does_not_close_holds_up_no_other_client_and_not_the_end() {
    let mounted = Mounted::new("");
    let other = mounted.client();
    let root = File::open(mounted.path()).unwrap();
    let name = address(&root).1;
    let stuck = Unanswered::new();
    let (done, is_done) = channel::<()>();
    let remove = stuck.removal();
    let guard = std::thread::spawn(move || {
        let is_in_time = is_done.recv_timeout(LONG) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if !is_in_time {
            remove();
        }
        is_in_time
    });
    pass_everywhere(&root, &stuck);
    stuck.wait_for_flush();
    assert!(other.stat(".", Links::Follow).unwrap().is_directory());
    // A user with more than enough of them is refused, whatever it does; others are not.
    let begun = as_user(|| Raw::connect(&name));
    let files: Vec<File> = (0..20).map(|_| stuck.open()).collect();
    as_user(|| {
        for file in &files {
            // The server may have refused it before.
            let raw = Raw::connect(&name);
            let _ = raw.send(b"nonsense", &[file.as_fd()]);
            while raw.receive().is_some() {}
        }
        assert_eq!(Raw::connect(&name).receive().unwrap().0.errno, libc::EMFILE.cast_unsigned());
    });
    // They do not close here either.
    std::mem::forget(files);
    // Its time may have passed before.
    let _ = begun.send(b"anything", &[]);
    assert!(begun.receive().is_none());
    assert!(other.stat(".", Links::Follow).unwrap().is_directory());
    assert!(Client::connect(mounted.path()).unwrap().stat(".", Links::Follow).unwrap().is_directory());
    drop((other, root));
    mounted.end_and(|| {
        drop(done);
        assert!(guard.join().unwrap(), "the server was held up");
        stuck.removal()();
    });
}
