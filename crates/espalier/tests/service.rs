//! A server as a service of systemd.

mod common;

use common::{Place, run};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server in the foreground, and what it tells.
struct Service {
    server: Child,
    told: UnixDatagram,
}

impl Service {
    fn start(place: &Place, watchdog: Option<Duration>) -> Self {
        let socket = place.path("notify");
        let told = UnixDatagram::bind(&socket).unwrap();
        // A server that says nothing fails the test.
        told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command.args(["mount", "--foreground", "-o", ""]).arg(&place.image).arg(&place.dir);
        command.env("NOTIFY_SOCKET", &socket).env_remove("WATCHDOG_PID").env_remove("WATCHDOG_USEC");
        if let Some(limit) = watchdog {
            command.env("WATCHDOG_USEC", limit.as_micros().to_string());
        }
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { server, told }
    }

    fn next(&self) -> String {
        let mut message = [0; 1024];
        let length = self.told.recv(&mut message).expect("the server tells something");
        String::from_utf8_lossy(&message[..length]).into_owned()
    }
}

#[test]
fn systemd_hears_of_the_beginning_the_life_and_the_end() {
    let place = Place::with_image("64M");
    let mut service = Service::start(&place, Some(Duration::from_millis(20)));
    let ready = service.next();
    assert!(ready.contains("READY=1"), "{ready}");
    // Ready means that the mount answers.
    std::fs::write(place.dir.join("file"), "text").unwrap();
    for _ in 0..5 {
        assert_eq!(service.next().trim(), "WATCHDOG=1");
    }
    run(Command::new("kill").args(["-TERM", &service.server.id().to_string()]));
    let last = std::iter::repeat_with(|| service.next()).find(|told| told.trim() != "WATCHDOG=1").unwrap();
    assert!(last.contains("STOPPING=1"), "{last}");
    assert!(service.server.wait().unwrap().success());
    place.fsck().ok();
}

#[test]
fn without_a_watchdog_nothing_is_told_in_between() {
    let place = Place::with_image("64M");
    let mut service = Service::start(&place, None);
    assert!(service.next().contains("READY=1"));
    run(Command::new("umount").arg(&place.dir));
    assert!(service.next().contains("STOPPING=1"));
    assert!(service.server.wait().unwrap().success());
}

/// A service that mounts something is not ready because that is, and does not end with it.
#[test]
fn a_server_in_the_background_does_not_speak_for_its_caller() {
    let place = Place::with_image("64M");
    let socket = place.path("notify");
    let told = UnixDatagram::bind(&socket).unwrap();
    told.set_nonblocking(true).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(["mount", "-o", ""]).arg(&place.image).arg(&place.dir);
    run(command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "20000").env_remove("WATCHDOG_PID"));
    place.umount().ok();
    let mut message = [0; 1024];
    let nothing = told.recv(&mut message).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "{}", String::from_utf8_lossy(&message));
}
