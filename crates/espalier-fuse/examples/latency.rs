//! What a request costs: microseconds per system call on a mount, for a file system in memory
//! behind each transport. Run as root: `cargo run --release -p espalier-fuse --example latency
//! [DIR|ARCHIVE]`; with a directory, the calls are made there and nothing is mounted; with an
//! archive, whole programs do what `make bench` times: `tar` unpacks it onto a server that throws
//! the data away, and a file of 2 GiB is written there; then, from one that has everything in
//! memory, the kernel knowing nothing yet, a file of 2 GiB is overwritten, page by page at random
//! places, and read by `dd`, `grep -r` searches the tree, and `rm -rf` removes it. No file system
//! behind these transports can be faster than that.

#[path = "../tests/common/toy.rs"]
#[allow(dead_code, reason = "the tests of transport and mount use more of it")]
mod toy;

use espalier_fuse::transport::{Handler, Kind};
use espalier_fuse::{Mount, MountOptions};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use toy::{Nowhere, Toy};

const CALLS: u32 = 20_000;
/// Pages that are overwritten, as many as in `make bench`.
const OVERWRITES: u64 = 262_144;

fn main() {
    let path = std::env::args().nth(1);
    let archive = match &path {
        Some(path) if Path::new(path).is_dir() => return measure(path, Path::new(path)),
        path => path.as_deref(),
    };
    for kind in [Kind::Uring, Kind::Classic] {
        let label = kind.to_string();
        match archive {
            None => on_mount(kind, &Arc::new(Toy::plain()), |directory| measure(&label, directory)),
            Some(archive) => programs(kind, archive),
        }
    }
}

/// Mounts `toy`, as if the kernel had never seen it, and calls `body` with the directory.
fn on_mount(kind: Kind, toy: &Arc<Toy>, body: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = MountOptions { transport: Some(kind), ..MountOptions::default() };
    match Mount::start_handler(Arc::clone(toy) as Arc<dyn Handler>, directory.path(), &options) {
        Ok(mount) => {
            body(directory.path());
            mount.unmount(false).expect("the mount is not in use");
            mount.wait();
        }
        Err(error) => println!("{kind}: {error}"),
    }
}

/// Times programs. (The file system in memory has no links: `tar` says so.)
fn programs(kind: Kind, archive: &str) {
    let run = |what: &str, program: &str, arguments: &[&str]| {
        let start = Instant::now();
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap_or_else(|error| panic!("{program} cannot be started: {error}"));
        println!("{kind:10} {what:12} {:8.2} s", start.elapsed().as_secs_f64());
    };
    let text = |path: &Path| path.to_str().expect("a path of ASCII").to_owned();
    on_mount(kind, &Arc::new(Toy::into_sink(Nowhere)), |directory| {
        run("unpack", "tar", &["-xf", archive, "-C", &text(directory)]);
    });
    on_mount(kind, &Arc::new(Toy::into_sink(Nowhere)), |directory| {
        let start = Instant::now();
        let file = File::create(directory.join("large")).expect("a file");
        let megabyte = vec![7; 1 << 20];
        (0..2048).for_each(|n| file.write_all_at(&megabyte, n << 20).expect("written"));
        file.sync_all().expect("synced");
        println!("{kind:10} {:12} {:8.2} s", "write_seq", start.elapsed().as_secs_f64());
    });
    let toy = Arc::new(Toy::plain());
    on_mount(kind, &toy, |directory| {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(archive).arg("-C").arg(directory).stderr(Stdio::null());
        tar.status().expect("tar runs");
        let file = File::create(directory.join("large")).expect("a file");
        let megabyte = vec![7; 1 << 20];
        (0..2048).for_each(|n| file.write_all_at(&megabyte, n << 20).expect("written"));
    });
    let large = |directory: &Path| directory.join("large");
    on_mount(kind, &toy, |directory| {
        let file = File::options().write(true).open(large(directory)).expect("the file");
        let start = Instant::now();
        // Any odd factor visits pages in an order that no read-ahead and no cache line foresees.
        (0..OVERWRITES).for_each(|n| {
            let page = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (2 << 18);
            file.write_all_at(&[7; 4096], page << 12).expect("written");
        });
        file.sync_all().expect("synced");
        println!("{kind:10} {:12} {:8.2} s", "overwrite_4K", start.elapsed().as_secs_f64());
    });
    on_mount(kind, &toy, |directory| {
        run("read_seq", "dd", &[&format!("if={}", text(&large(directory))), "of=/dev/null", "bs=1M"]);
        fs::remove_file(large(directory)).expect("it was there");
    });
    on_mount(kind, &toy, |directory| run("grep", "grep", &["-r", "cpu_to_be64", &text(directory)]));
    on_mount(kind, &toy, |directory| {
        let trees =
            fs::read_dir(directory).expect("a listing").map(|entry| text(&entry.expect("an entry").path()));
        let trees: Vec<_> = trees.collect();
        let arguments: Vec<_> = ["-rf"].into_iter().chain(trees.iter().map(String::as_str)).collect();
        run("rm_rf", "rm", &arguments);
    });
}

/// Prints the median of five rounds of each call.
fn measure(label: &str, directory: &Path) {
    let path = directory.join("file");
    fs::write(&path, vec![7; 1 << 20]).expect("a file");
    let file =
        File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).expect("direct I/O");
    let mut page = Aligned([0; 4096]);
    let report = |what: &str, mut call: Box<dyn FnMut(u32) + '_>| {
        let mut rounds: Vec<f64> = (0..5)
            .map(|round| {
                let start = Instant::now();
                (0..CALLS / 5).for_each(|n| call(round * CALLS / 5 + n));
                start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS / 5)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        println!("{label:10} {what:20} {:8.2} us", rounds[2]);
    };
    // A read makes the time of the last read stale, so the `stat` after it asks again: the
    // difference is GETATTR.
    report("read 4k direct", Box::new(|n| drop(file.read_at(&mut page.0, u64::from(n % 256) * 4096))));
    let mut page = Aligned([0; 4096]);
    report(
        "read 4k + getattr",
        Box::new(|n| {
            file.read_at(&mut page.0, u64::from(n % 256) * 4096).expect("a read");
            file.metadata().expect("attributes");
        }),
    );
    let page = Aligned([1; 4096]);
    report("write 4k direct", Box::new(|n| drop(file.write_at(&page.0, u64::from(n % 256) * 4096))));
    let buffered = File::options().write(true).open(&path).expect("the file");
    report("write 4k", Box::new(|n| drop(buffered.write_at(&page.0, u64::from(n % 256) * 4096))));
    report("lookup (absent)", Box::new(|n| drop(fs::metadata(directory.join(format!("absent{n}"))))));
    report(
        "create",
        Box::new(|n| drop(File::create_new(directory.join(format!("new{n}"))).expect("a file"))),
    );
    report("unlink", Box::new(|n| fs::remove_file(directory.join(format!("new{n}"))).expect("it was there")));
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);
