//! Devices that fail below a mount: which calls get an error, which do not, and what is said.

mod common;

use common::{Place, Random, content, espalier, poke, run};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

#[track_caller]
fn is_eio<T>(what: &str, result: io::Result<T>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} succeeds"));
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{what}: {error}");
}

/// A disk that refuses writes: a small tmpfs below a large image.
struct Small(Place);

impl Small {
    fn new() -> Self {
        let mut place = Place::new();
        let disk = place.path("disk");
        fs::create_dir(&disk).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(&disk));
        place.image = disk.join("a.img");
        Self(place)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = espalier(&["umount".as_ref(), "--lazy".as_ref(), self.0.dir.as_os_str()]);
        let _ = Command::new("umount").arg("-l").arg(self.0.path("disk")).status();
    }
}

#[test]
fn after_a_failed_write_every_caller_gets_an_error_and_the_log_says_why() {
    let small = Small::new();
    let place = &small.0;
    place.mkfs(&["--size", "1G"]).ok();
    let log = place.path("log");
    let mut server = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(["mount", "--foreground", "-o", "commit=0"])
        .args([&place.image, &place.dir])
        .stdout(Stdio::piped())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = io::BufReader::new(server.stdout.take().unwrap());
    io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(line.contains("is mounted"), "{line}");

    let dir = &place.dir;
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("early"), "durable").unwrap();
    let (early, directory) =
        (File::options().read(true).write(true).open(dir.join("early")).unwrap(), File::open(dir).unwrap());
    directory.sync_all().unwrap();
    let chunk = Random(4).bytes(1 << 20);
    let first = (0..200).find_map(|number| {
        let path = dir.join(format!("f{number}"));
        fs::write(&path, &chunk).and_then(|()| File::open(&path)?.sync_all()).err()
    });
    // The room that is missing is not the mount's.
    is_eio("the sync that fails", Err::<(), _>(first.expect("200 MiB do not fit into 48")));

    // Every change and every sync from now on, whatever file was open before.
    is_eio("a write to an open file", early.write_at(b"x", 0));
    is_eio("fsync of a file", early.sync_all());
    is_eio("fdatasync of a file", early.sync_data());
    is_eio("fsync of a directory", directory.sync_all());
    is_eio("create", File::create(dir.join("new")));
    is_eio("mkdir", fs::create_dir(dir.join("new")));
    is_eio("unlink", fs::remove_file(dir.join("early")));
    is_eio("rmdir", fs::remove_dir(dir.join("empty")));
    is_eio("rename", fs::rename(dir.join("early"), dir.join("late")));
    is_eio("link", fs::hard_link(dir.join("early"), dir.join("link")));
    is_eio("symlink", std::os::unix::fs::symlink("early", dir.join("symlink")));
    is_eio("truncate", early.set_len(2));
    is_eio("chmod", fs::set_permissions(dir.join("early"), fs::Permissions::from_mode(0o600)));
    let other = Command::new("touch").arg(dir.join("another")).stderr(Stdio::null()).status().unwrap();
    assert!(!other.success(), "another process may change something");
    // What was durable is there to be read.
    assert_eq!(fs::read(dir.join("early")).unwrap(), b"durable");
    assert_eq!(fs::metadata(dir.join("empty")).unwrap().permissions().mode() & 0o777, 0o755);

    drop((early, directory));
    let _ = place.umount();
    assert!(!server.wait().unwrap().success(), "the server says that all is well");
    let said = fs::read_to_string(&log).unwrap();
    let why = ["read-only from now on", "a.img", "No space left on device"];
    assert!(said.lines().any(|line| why.iter().all(|word| line.contains(word))), "{said}");

    // With a device that works everything that was durable is there.
    run(Command::new("mount").args(["-o", "remount,size=600m"]).arg(place.path("disk")));
    place.fsck().ok();
    place.mount(&[]).ok();
    assert_eq!(fs::read(dir.join("early")).unwrap(), b"durable");
    fs::write(dir.join("new"), "works again").unwrap();
    place.umount().ok();
}

/// A page of a file that cannot be read is an error for readers of that page.
#[test]
fn what_cannot_be_read_is_an_error_for_that_alone() {
    const PAGE: usize = 4096;
    let place = Place::mounted("128M");
    let (hit, spared) = (Random(9).bytes(3 << 20), Random(10).bytes(1 << 20));
    fs::write(place.dir.join("hit"), &hit).unwrap();
    fs::write(place.dir.join("spared"), &spared).unwrap();
    place.umount().ok();
    let whole = content(&place.image);
    let page = 300;
    let at = whole.windows(64).position(|window| window == &hit[page * PAGE + 100..][..64]).unwrap();
    poke(&place.image, at as u64, &[whole[at] ^ 1]);
    let ran = place.fsck();
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stdout.contains("/hit") && !ran.stdout.contains("/spared"), "{ran:?}");

    place.mount(&[]).ok();
    let file = File::options().read(true).write(true).open(place.dir.join("hit")).unwrap();
    let read = |number: usize| {
        let mut bytes = vec![0; PAGE];
        file.read_exact_at(&mut bytes, (number * PAGE) as u64).map(|()| bytes)
    };
    for number in 0..hit.len() / PAGE {
        match read(number) {
            Ok(bytes) => assert!(number != page && bytes == hit[number * PAGE..][..PAGE], "page {number}"),
            Err(error) => {
                is_eio::<()>("the page", Err(error));
                assert_eq!(number, page);
            }
        }
    }
    assert!(fs::read(place.dir.join("spared")).unwrap() == spared);
    // Everything else goes on, and a page that is written anew can be read.
    fs::write(place.dir.join("new"), "works").unwrap();
    file.write_all_at(&[7; PAGE], (page * PAGE) as u64).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(page).unwrap(), [7; PAGE]);
    drop(file);
    place.umount().ok();
}
