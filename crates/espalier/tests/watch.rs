//! What commands and metrics tell of a mount that is in use.

mod common;

use common::{Place, Ran, espalier};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn on_mount(place: &Place, words: &[&str]) -> Ran {
    let words = words.iter().map(OsStr::new).chain([place.dir.as_os_str()]);
    espalier(&words.collect::<Vec<_>>())
}

fn stat(place: &Place) -> Value {
    serde_json::from_str(&on_mount(place, &["stat", "--json"]).ok()).unwrap()
}

/// The requests of a kind.
fn requests(stat: &Value, kind: &str) -> u64 {
    let kinds = stat["kinds"].as_array().unwrap();
    kinds.iter().find(|of| of["kind"] == kind).map_or(0, |of| of["requests"].as_u64().unwrap())
}

/// What a client of the metrics gets for a request.
fn get(socket: &Path, target: &str) -> String {
    let mut client = UnixStream::connect(socket).unwrap();
    client.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

fn figures_agree(transport: &str) {
    let place = Place::with_image("256M");
    let socket = place.base.path().join("m.sock");
    let metrics = format!("metrics=unix:{},transport={transport}", socket.display());
    place.mount(&["-o", &metrics]).ok();
    for at in 0..30 {
        fs::write(place.dir.join(format!("file {at}")), vec![b'x'; 10_000]).unwrap();
    }
    assert!(fs::read(place.dir.join("none")).is_err());
    let told = stat(&place);
    assert_eq!(told["mount"]["transport"], transport, "{told}");
    assert_eq!(requests(&told, "mknod"), 30, "{told}");
    assert!(told["written_bytes"].as_u64().unwrap() >= 300_000, "{told}");
    let mknod = told["kinds"].as_array().unwrap().iter().find(|of| of["kind"] == "mknod").unwrap();
    assert!(mknod["work"]["p99_seconds"].as_f64().unwrap() > 0.0, "{mknod}");
    assert!(told["space"]["total_bytes"].as_u64().unwrap() == 256 << 20, "{told}");
    // The same figures for Prometheus.
    let reply = get(&socket, "/metrics");
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{reply}");
    assert!(reply.contains("\nespalier_requests_total{kind=\"mknod\"} 30.0\n"), "{reply}");
    assert!(reply.ends_with("# EOF\n"), "{reply}");
    assert!(get(&socket, "/").starts_with("HTTP/1.1 404"));
    // A client that says nothing keeps no other from being answered for ever.
    let silent = UnixStream::connect(&socket).unwrap();
    assert!(get(&socket, "/metrics").contains("espalier_mount_info"));
    drop(silent);
    place.umount().ok();
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn stat_and_metrics_tell_the_same_over_io_uring() {
    figures_agree("io_uring");
}

#[test]
fn stat_and_metrics_tell_the_same_over_the_device() {
    figures_agree("classic");
}

#[test]
fn stat_prints_lines_for_people() {
    let place = Place::mounted("64M");
    let text = on_mount(&place, &["stat", "--interval", "0.02", "--count", "22"]).ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 22 + 2 * 2, "two headings of two lines: {text}");
    assert_eq!(lines[0], lines[22]);
    for interval in ["0", "1e19", "-1"] {
        on_mount(&place, &["stat", &format!("--interval={interval}")]).refused(1, &["--interval"]);
        on_mount(&place, &["top", &format!("--interval={interval}")]).refused(1, &["--interval"]);
    }
    on_mount(&place, &["top"]).refused(1, &["espalier stat"]);
    for command in ["stat", "top", "trace"] {
        espalier(&[command, "/"]).refused(1, &["no Espalier file system", "directory of a mount"]);
    }
    espalier(&["info", "/"]).refused(1, &["no Espalier file system", "an image or a mount point"]);
}

/// A trace that is on.
struct Traced {
    program: Child,
    lines: BufReader<ChildStdout>,
}

impl Traced {
    /// Begins a trace, and returns when it is on.
    fn begin(place: &Place, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command.arg("trace").args(words).arg(&place.dir);
        let mut program = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap());
        // The heading comes when the trace is on.
        let mut heading = String::new();
        lines.read_line(&mut heading).unwrap();
        assert!(heading.contains("WORK"), "{heading}");
        Self { program, lines }
    }

    /// The lines that it prints until it ends by itself.
    fn rest(mut self) -> Vec<String> {
        let lines = self.lines.lines().map(Result::unwrap).collect();
        assert!(self.program.wait().unwrap().success());
        lines
    }
}

#[test]
fn a_trace_has_paths_and_times() {
    let place = Place::mounted("64M");
    let trace = Traced::begin(&place, &["--count", "60"]);
    fs::create_dir(place.dir.join("dir")).unwrap();
    fs::write(place.dir.join("dir/old"), b"data").unwrap();
    fs::rename(place.dir.join("dir/old"), place.dir.join("new\n")).unwrap();
    fs::remove_file(place.dir.join("new\n")).unwrap();
    (0..60).for_each(|at| fs::write(place.dir.join(format!("dir/{at}")), b"").unwrap());
    let lines = trace.rest();
    assert_eq!(lines.len(), 60, "{lines:?}");
    for (kind, path) in [
        ("mkdir", "/dir"),
        ("mknod", "/dir/old"),
        ("write", "/dir/old"),
        ("rename", "/dir/old -> /new\u{fffd}"),
        ("unlink", "/new\u{fffd}"),
    ] {
        let has =
            |line: &&String| line.contains(&format!(" {kind} ")) && line.ends_with(&format!("  {path}"));
        assert_eq!(lines.iter().filter(has).count(), 1, "{kind} {path}: {lines:?}");
    }
    assert!(
        !lines.iter().any(|line| line.ends_with("  /") && line.contains("getxattr")),
        "its own questions"
    );
}

#[test]
fn a_trace_for_programs_is_json() {
    let place = Place::mounted("64M");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs::write(place.dir.join("file"), b"").unwrap();
                fs::remove_file(place.dir.join("file")).unwrap();
            }
        });
        let told = on_mount(&place, &["trace", "--json", "--count", "20", "--slow", "0.5us"]);
        done.store(true, Ordering::Relaxed);
        let events: Vec<Value> = told.ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 20);
        for event in events {
            assert!(event["work_seconds"].as_f64().unwrap() > 0.0, "{event}");
            assert!(event["thread"].as_u64().is_some() && event["errno"].as_i64().is_some(), "{event}");
            let path = event["path"].as_str().unwrap();
            assert!(
                ["/", "/file"].contains(&path) || path.starts_with("(removed)") || path.starts_with("node "),
                "{event}"
            );
        }
    });
}

#[test]
fn a_trace_is_of_one_process_if_it_is_asked_for() {
    let place = Place::mounted("64M");
    let mut other = Command::new("sh");
    other.args(["-c", "read line; exec touch \"$0/theirs\""]).arg(&place.dir);
    let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
    let trace = Traced::begin(&place, &["--pid", &other.id().to_string(), "--count", "1"]);
    fs::write(place.dir.join("ours"), b"").unwrap();
    other.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(other.wait().unwrap().success());
    let lines = trace.rest();
    assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("ours")), "{lines:?}");
}

#[test]
fn traces_are_few_and_one_that_is_given_up_makes_room_soon() {
    let place = Place::mounted("64M");
    let mut traces: Vec<Traced> = (0..8).map(|_| Traced::begin(&place, &[])).collect();
    on_mount(&place, &["trace"]).refused(1, &["too many traces are on", "wait 10 seconds"]);
    for trace in &mut traces {
        trace.program.kill().unwrap();
        trace.program.wait().unwrap();
    }
}

/// The number of a trace that is begun.
fn begin_trace(place: &Place) -> u64 {
    let told = ask(place, "trace.begin.0.0");
    told["trace"].as_u64().unwrap()
}

/// What the server answers to a command.
fn ask(place: &Place, command: &str) -> Value {
    let mut answer = vec![0; 1 << 16];
    let name = format!("{}{command}", espalier_fuse::COMMAND_XATTR);
    let length = rustix::fs::getxattr(&place.dir, name, &mut answer[..]).unwrap();
    serde_json::from_slice(&answer[..length]).unwrap()
}

#[test]
fn watching_goes_on_when_the_server_is_replaced() {
    let place = Place::mounted("64M");
    // Traces have numbers that a new server knows no trace of.
    let others = begin_trace(&place);
    let mut trace = Traced::begin(&place, &["--count", "300"]);
    let mut stat = Command::new(env!("CARGO_BIN_EXE_espalier"));
    stat.args(["stat", "--json", "--interval", "0.01"]).arg(&place.dir);
    let mut stat = stat.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(stat.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let old = next()["mount"]["pid"].clone();
    on_mount(&place, &["mount", "--replace"]).ok();
    let first = loop {
        let told = next();
        if told["mount"]["pid"] != old {
            break told;
        }
    };
    let seconds = first["period_seconds"].as_f64().unwrap();
    assert!(seconds > 1e-6, "it counts from the new server's beginning: {first}");
    stat.kill().unwrap();
    stat.wait().unwrap();

    assert_ne!(begin_trace(&place), others);
    assert_eq!(ask(&place, &format!("trace.read.{others}"))["ended"], true);
    // The trace goes on at the new server, and says why requests are missing.
    while trace.program.try_wait().unwrap().is_none() {
        fs::write(place.dir.join("file"), b"").unwrap();
        fs::remove_file(place.dir.join("file")).unwrap();
    }
    let lines = trace.rest();
    let says = |line: &String| line.contains("the server was replaced") && line.contains("was not read");
    assert_eq!(lines.iter().filter(|line| says(line)).count(), 1, "{lines:?}");
}

#[test]
fn a_trace_ends_with_its_mount() {
    let place = Place::mounted("64M");
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.arg("trace").arg(&place.dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut trace = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(trace.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("TIME"), "{first}");
    place.umount().ok();
    let ended: Ran = trace.wait_with_output().unwrap().into();
    ended.refused(1, &["is not mounted any more"]);
}

/// On a terminal of its own, as `script` makes one.
#[test]
fn top_shows_a_mount_on_a_terminal_until_its_key_ends_it() {
    let place = Place::mounted("64M");
    on_mount(&place, &["top"]).refused(1, &["no terminal", "espalier stat"]);
    let (program, dir) = (env!("CARGO_BIN_EXE_espalier"), place.dir.display());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!("stty rows 24 cols 80 && exec '{program}' top '{dir}'"))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = terminal.stdout.take().unwrap();
    let (mut shown, mut bytes) = (String::new(), [0; 4096]);
    // The last box of the screen.
    while !shown.contains("q quit") {
        let read = screen.read(&mut bytes).unwrap();
        assert!(read > 0, "it ended: {shown}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert!(shown.contains("operation"), "{shown}");
    terminal.stdin.take().unwrap().write_all(b"q").unwrap();
    screen.read_to_string(&mut shown).unwrap_or_default();
    assert!(terminal.wait().unwrap().success(), "{shown}");
}

#[test]
fn other_users_learn_nothing() {
    let place = Place::mounted("64M");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for command in ["stat", "trace"] {
        let mut asked = Command::new(env!("CARGO_BIN_EXE_espalier"));
        asked.arg(command).arg(&place.dir).uid(12_345).gid(12_345).stdin(Stdio::null());
        let asked: Ran = asked.output().unwrap().into();
        asked.refused(1, &["only root and the user that mounted it"]);
    }
}

#[test]
fn addresses_for_metrics_are_checked() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "metrics=0.0.0.0:9464"]).refused(1, &["public:0.0.0.0:9464"]);
    place.mount(&["-o", "metrics=unix:/nowhere/at/all"]).refused(1, &["no metrics can be had at /nowhere"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("metrics={}", taken.local_addr().unwrap());
    place.mount(&["-o", &address]).refused(1, &["no metrics can be had at 127.0.0.1"]);
    drop(taken);
    place.mount(&["-o", &address]).ok();
    place.umount().ok();
}
