//! The transports against the running kernel. These tests need root and FUSE, and fail without.

mod common;

use common::toy::Toy;
use common::{Watchdog, enable_uring, kinds};
use espalier_fuse::transport::Kind;
use espalier_fuse::{Ended, Mount, MountOptions};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

fn mount(kind: Kind, toy: &Arc<Toy>, point: &Path) -> Mount {
    let options = MountOptions { transport: Some(kind), ..MountOptions::default() };
    let mount = Mount::start_handler(Arc::clone(toy) as _, point, &options);
    let mount = mount.unwrap_or_else(|error| panic!("these tests need root and FUSE: {error}"));
    assert_eq!(mount.transport(), kind);
    mount
}

/// Runs `body` on a mount of each kind.
fn on_each(body: impl Fn(&Toy, &Path)) {
    for kind in kinds() {
        let directory = tempfile::tempdir().unwrap();
        let toy = Arc::new(Toy::new());
        let mount = mount(kind, &toy, directory.path());
        let _watchdog = Watchdog::watch(directory.path());
        body(&toy, directory.path());
        assert_eq!(end(mount), Ended::Unmounted);
    }
}

/// Unmounts. A program that another test is just starting has all open for a moment that was open
/// here.
fn end(mount: Mount) -> Ended {
    while let Err(error) = mount.unmount(false) {
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        std::thread::yield_now();
    }
    mount.wait()
}

#[test]
fn serves_names_data_and_listings() {
    on_each(|_, root| {
        fs::create_dir(root.join("d")).unwrap();
        let content: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7) as u8).collect();
        fs::write(root.join("d/file"), &content).unwrap();
        assert_eq!(fs::read(root.join("d/file")).unwrap(), content);
        let mut file = File::options().read(true).append(true).open(root.join("d/file")).unwrap();
        file.write_all(b"end").unwrap();
        file.seek(SeekFrom::Start(content.len() as u64)).unwrap();
        let mut end = String::new();
        file.read_to_string(&mut end).unwrap();
        assert_eq!(end, "end");
        for n in 0..2000 {
            File::create_new(root.join(format!("d/{n:05}"))).unwrap();
        }
        assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 2001);
        assert!(fs::metadata(root.join("absent")).is_err());
        fs::remove_file(root.join("d/file")).unwrap();
        assert!(fs::metadata(root.join("d/file")).is_err());
    });
}

#[test]
fn a_request_that_waits_holds_up_no_other() {
    on_each(|toy, root| {
        // More than there are threads at first, on any one CPU.
        let waiting = 12;
        std::thread::scope(|scope| {
            for n in 0..waiting {
                scope.spawn(move || fs::metadata(root.join(format!("wait{n}"))));
            }
            // Meanwhile, requests on every CPU are answered, and draw in those that found no thread
            // at once.
            let traffic: Vec<_> = (0..common::cpus())
                .map(|cpu| {
                    scope.spawn(move || {
                        common::stay_on(cpu);
                        for n in (0..).take_while(|n| *n < 100 || toy.waiting() < waiting) {
                            fs::metadata(root.join(format!("absent-{cpu}-{n}"))).unwrap_err();
                        }
                    })
                })
                .collect();
            for thread in traffic {
                thread.join().unwrap();
            }
            toy.open_gate();
        });
    });
}

#[test]
fn a_request_that_waits_after_many_holds_up_no_other() {
    on_each(|toy, root| {
        std::thread::scope(|scope| {
            for round in 0..3 {
                // Of one client after the other, so that one thread serves them where that pays.
                for n in 0..20_000 {
                    fs::metadata(root.join(format!("absent-{round}-{n}"))).unwrap_err();
                }
                scope.spawn(move || fs::metadata(root.join(format!("wait-{round}"))));
                wait_until(|| toy.waiting() > round);
                // When this is answered the one that waits is still served.
                fs::metadata(root.join(format!("other-{round}"))).unwrap_err();
            }
            toy.open_gate();
        });
    });
}

/// A program that looks up `name`, or reads the file without the kernel's cache.
fn program(root: &Path, program: &str, name: &str) -> Child {
    let mut command = Command::new(program);
    match program {
        "dd" => command.arg(format!("if={name}")).args(["iflag=direct", "bs=64K", "of=/dev/null"]),
        _ => command.arg(name),
    };
    command.current_dir(root).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let child = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(child, signal).unwrap();
}

fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_caller_ends_before_there_is_an_answer() {
    on_each(|toy, root| {
        toy.plant("wait", Vec::new());
        let mut child = program(root, "stat", "wait");
        wait_until(|| toy.waiting() == 1);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        File::create_new(root.join("other")).unwrap();
        toy.open_gate();
        // The reference that the reply would have handed out.
        wait_until(|| toy.forgotten() == 1);
        fs::metadata(root.join("wait")).unwrap();
    });
}

#[test]
fn a_caller_that_catches_a_signal_gets_its_answer_and_can_be_killed_later() {
    on_each(|toy, root| {
        toy.plant("wait1", Vec::new());
        let patient = |name: &str| {
            let script = format!("trap : USR1; [ -e {name} ]");
            let mut command = Command::new("sh");
            command.args(["-c", &script]).current_dir(root).spawn().unwrap()
        };
        let (mut stays, mut goes) = (patient("wait1"), patient("wait2"));
        wait_until(|| toy.waiting() == 2);
        signal(&stays, rustix::process::Signal::USR1);
        signal(&goes, rustix::process::Signal::USR1);
        // A check that finds this one has seen the others.
        let mut last = program(root, "stat", "wait3");
        wait_until(|| toy.waiting() == 3);
        last.kill().unwrap();
        last.wait().unwrap();
        signal(&goes, rustix::process::Signal::TERM);
        assert_eq!(goes.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(stays.try_wait().unwrap().is_none());
        toy.open_gate();
        assert!(stays.wait().unwrap().success(), "a signal that was caught ended a call");
    });
}

#[test]
fn all_callers_can_be_killed_when_no_thread_is_left_to_serve() {
    const EACH: usize = 16;
    let cpus = common::cpus();
    for kind in kinds() {
        let (directory, toy) = (tempfile::tempdir().unwrap(), Arc::new(Toy::new()));
        let root = directory.path();
        let options =
            MountOptions { transport: Some(kind), threads_per_cpu: Some(EACH), ..MountOptions::default() };
        let mount = Mount::start_handler(Arc::clone(&toy) as _, root, &options).unwrap();
        let _watchdog = Watchdog::watch(root);
        std::thread::scope(|scope| {
            let each = (0..cpus).map(|cpu| {
                scope.spawn(move || {
                    // Programs start on the CPU of their parent.
                    common::stay_on(cpu);
                    let start = |n| program(root, "stat", &format!("wait-{cpu}-{n}"));
                    (0..EACH + 2).map(start).collect::<Vec<_>>()
                })
            });
            let each: Vec<_> = each.collect();
            let mut all: Vec<_> = each.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            wait_until(|| toy.waiting() == EACH * cpus);
            for child in &mut all {
                child.kill().unwrap();
            }
            for child in &mut all {
                assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            }
        });
        toy.open_gate();
        fs::metadata(root.join("absent")).unwrap_err();
        assert_eq!(end(mount), Ended::Unmounted);
        assert!(toy.waiting() >= EACH * cpus);
        assert_eq!(toy.unanswered(), toy.waiting());
    }
}

#[test]
fn what_is_still_served_for_the_dead_does_not_reach_the_living() {
    on_each(|toy, root| {
        let content = |begin: &str, rest: u8| [begin.as_bytes(), &[rest; 60_000]].concat();
        toy.plant("dead", content("wait", 1));
        toy.plant("alive", content("hold", 2));
        // The next request on a CPU is given to the thread that became free last, which is the
        // one that answered the dead.
        common::stay_on(0);
        let mut dead = program(root, "dd", "dead");
        wait_until(|| toy.waiting() == 1);
        dead.kill().unwrap();
        dead.wait().unwrap();
        std::thread::scope(|scope| {
            let alive = scope.spawn(|| fs::read(root.join("alive")).unwrap());
            wait_until(|| toy.held() == 1);
            toy.open_gate();
            wait_until(|| toy.unanswered() == 1);
            toy.let_go();
            assert!(alive.join().unwrap() == content("hold", 2), "another request's data");
        });
    });
}

#[test]
fn nothing_is_changed_for_killed_callers_and_served_ones_get_their_answer() {
    on_each(|toy, root| {
        // The kernel lets only one at a time change a directory.
        for dir in ["a", "b", "c"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        let mut late = program(root, "mkdir", "a/late");
        wait_until(|| toy.held() == 1);
        let mut early = program(root, "mkdir", "b/early");
        wait_until(|| toy.waiting() == 1);
        late.kill().unwrap();
        early.kill().unwrap();
        assert_eq!(early.wait().unwrap().signal(), Some(libc::SIGKILL));
        // A check that finds this one has seen the other, twice.
        let mut last = program(root, "mkdir", "c/early");
        wait_until(|| toy.waiting() == 2);
        last.kill().unwrap();
        last.wait().unwrap();
        assert!(late.try_wait().unwrap().is_none(), "the kernel was told that nothing was done, and it was");
        toy.open_gate();
        wait_until(|| toy.unanswered() == 2);
        toy.let_go();
        assert_eq!(late.wait().unwrap().signal(), Some(libc::SIGKILL));
        // The kernel does not ask for a name that it knows not to be there.
        assert!(fs::metadata(root.join("a/late")).unwrap().is_dir());
        for dir in ["b", "c"] {
            assert_eq!(fs::read_dir(root.join(dir)).unwrap().count(), 0, "it was made after all");
            fs::create_dir(root.join(dir).join("early")).unwrap();
        }
    });
}

#[test]
fn what_is_written_comes_whole_and_once() {
    on_each(|toy, root| {
        let mut file = File::create(root.join("file")).unwrap();
        (0..3).for_each(|_| file.write_all(&[7; 10_240]).unwrap());
        // Through the kernel's pages, also where the file is open for writing only: a write that
        // begins within a page which the kernel does not have comes in pieces.
        let pieces = toy.written();
        assert!(pieces.len() > 3, "{pieces:?}");
        assert_eq!(pieces.iter().sum::<usize>(), 3 * 10_240);
        let mut file = File::create_new(root.join("other")).unwrap();
        (0..2).for_each(|_| file.write_all(&[8; 10_240]).unwrap());
        assert_eq!(toy.written().iter().sum::<usize>(), 5 * 10_240);
        assert_eq!(fs::read(root.join("file")).unwrap(), [7; 30_720]);
        assert_eq!(fs::read(root.join("other")).unwrap(), [8; 20_480]);
    });
}

#[test]
fn references_are_given_back() {
    on_each(|toy, root| {
        for n in 0..50 {
            File::create_new(root.join(format!("f{n}"))).unwrap();
            fs::remove_file(root.join(format!("f{n}"))).unwrap();
        }
        // FORGETs come when the kernel finds time; an event to wait for there is none.
        let patience = std::time::Instant::now();
        while toy.forgotten() < 50 {
            assert!(patience.elapsed().as_secs() < 20, "only {} of 50 were forgotten", toy.forgotten());
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_panic_gives_errors_and_no_hang() {
    for kind in kinds() {
        let directory = tempfile::tempdir().unwrap();
        let toy = Arc::new(Toy::new());
        let mount = mount(kind, &toy, directory.path());
        let error = fs::metadata(directory.path().join("panic")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let error = File::create_new(directory.path().join("new")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(end(mount), Ended::Poisoned);
    }
}

#[test]
fn an_abort_gives_errors_and_ends_the_mount() {
    for kind in kinds() {
        let directory = tempfile::tempdir().unwrap();
        let toy = Arc::new(Toy::new());
        let mount = mount(kind, &toy, directory.path());
        let file = File::create_new(directory.path().join("f")).unwrap();
        mount.abort().unwrap();
        let error = file.sync_all().unwrap_err();
        assert!(
            matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO)),
            "{error}"
        );
        assert_eq!(mount.wait(), Ended::Unmounted);
        // What is dead stays in the tree until it is taken away.
        drop(file);
        rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn without_a_wish_some_transport_is_found() {
    enable_uring();
    let directory = tempfile::tempdir().unwrap();
    let toy = Arc::new(Toy::new());
    let mount = Mount::start_handler(toy, directory.path(), &MountOptions::default()).unwrap();
    File::create_new(directory.path().join("f")).unwrap();
    assert_eq!(end(mount), Ended::Unmounted);
}

#[test]
fn mount_points_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let start =
        |point: &Path, options: &MountOptions| Mount::start_handler(Arc::new(Toy::new()), point, options);
    let options = MountOptions { transport: Some(Kind::Classic), ..MountOptions::default() };
    let message = |result: Result<Mount, _>| match result {
        Ok(_) => panic!("it was mounted"),
        Err(error) => espalier_fuse::MountError::to_string(&error),
    };
    assert!(message(start(&directory.path().join("absent"), &options)).contains("must be a directory"));
    fs::write(directory.path().join("file"), b"").unwrap();
    assert!(message(start(&directory.path().join("file"), &options)).contains("must be a directory"));
    assert!(message(start(directory.path(), &options)).contains("not empty"));
    let over = MountOptions { nonempty: true, ..options };
    let mount = start(directory.path(), &over).unwrap();
    assert_eq!(end(mount), Ended::Unmounted);
}
