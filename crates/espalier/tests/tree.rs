//! Real programs and real trees on a real mount, and what is left of them after the server was
//! killed.

mod common;

use common::{Place, Random, assert_same_tree, make_tree, run};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn a_tree_survives_tar_cp_and_rsync() {
    let place = Place::mounted("1G");
    let original = place.path("original");
    make_tree(&original, 7, 3000);
    let archive = place.path("tree.tar");
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&original).arg("."));

    let unpacked = place.dir.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&unpacked));
    assert_same_tree(&original, &unpacked);
    let copy = place.dir.join("copy");
    run(Command::new("cp").arg("-a").arg(&unpacked).arg(&copy));
    let synced = place.dir.join("synced");
    run(Command::new("rsync").arg("-aHAXS").arg(unpacked.join("")).arg(&synced));
    place.remount();
    for tree in [&unpacked, &copy, &synced] {
        assert_same_tree(&original, tree);
    }
    run(Command::new("diff").args(["-r", "--no-dereference"]).args([&original, &unpacked]));
    run(Command::new("rm").arg("-rf").args([&copy, &synced]));
    fs::rename(&unpacked, place.dir.join("moved")).unwrap();
    place.remount();
    assert_same_tree(&original, &place.dir.join("moved"));
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 1);
}

/// Runs git in `dir`, with a configuration of its own.
fn git(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(words);
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "A. Author"),
        ("GIT_AUTHOR_EMAIL", "author@example.org"),
        ("GIT_COMMITTER_NAME", "A. Author"),
        ("GIT_COMMITTER_EMAIL", "author@example.org"),
    ] {
        command.env(name, value);
    }
    run(&mut command)
}

#[test]
fn git_clones_commits_and_finds_nothing_wrong() {
    let place = Place::mounted("1G");
    let origin = place.path("origin");
    make_tree(&origin, 21, 800);
    git(&origin, &["init", "-q", "-b", "main"]);
    git(&origin, &["add", "-A"]);
    git(&origin, &["commit", "-qm", "first"]);
    for number in 0..20 {
        fs::write(origin.join("changing"), format!("version {number}")).unwrap();
        git(&origin, &["add", "-A"]);
        git(&origin, &["commit", "-qm", &format!("change {number}")]);
    }
    let clone = place.dir.join("clone");
    git(place.base.path(), &["clone", "-q", &origin.to_string_lossy(), &clone.to_string_lossy()]);
    git(&clone, &["fsck", "--strict", "--full"]);
    fs::write(clone.join("changing"), "in the mount").unwrap();
    git(&clone, &["commit", "-qam", "in the mount"]);
    git(&clone, &["gc", "-q", "--prune=now"]);
    place.remount();
    git(&clone, &["fsck", "--strict", "--full"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    assert_eq!(git(&clone, &["rev-list", "--count", "HEAD"]).trim(), "22");
    // And from the mount back to a plain directory.
    let back = place.path("back");
    git(place.base.path(), &["clone", "-q", &clone.to_string_lossy(), &back.to_string_lossy()]);
    git(&back, &["fsck", "--strict", "--full"]);
}

/// What one writer knows to be durable, and what it was doing since.
#[derive(Default)]
struct Ledger {
    /// Content by name, as of the last fsync that returned.
    durable: BTreeMap<String, Vec<u8>>,
    /// Names that were being changed when the server died: their content may be old or new.
    open: BTreeMap<String, Vec<Vec<u8>>>,
}

/// Writes, appends, replaces and removes files until the server is gone; notes what was made
/// durable.
fn write_until_killed(dir: &Path, seed: u64, ledger: &Mutex<Ledger>, done: &AtomicUsize) {
    let mut random = Random(seed);
    for number in 0.. {
        let name = format!("w{seed}-{}", random.below(60));
        let path = dir.join(&name);
        let length = [10, 4096, 30_000, 200_000][random.below(4) as usize];
        let content = random.bytes(length);
        let remember = |state: Vec<u8>| {
            ledger.lock().unwrap().open.entry(name.clone()).or_default().push(state);
        };
        remember(content.clone());
        let attempt = || -> std::io::Result<()> {
            match number % 3 {
                0 => {
                    // The way of careful programs: a new file, fsync, rename.
                    let fresh = dir.join(format!("{name}.new"));
                    fs::write(&fresh, &content)?;
                    fs::File::open(&fresh)?.sync_all()?;
                    fs::rename(&fresh, &path)?;
                }
                1 => {
                    let _ = fs::remove_file(&path);
                    fs::write(&path, &content)?;
                }
                _ => {
                    // In place, so a mixture may be left if the server dies now.
                    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
                    file.set_len(0)?;
                    file.write_all_at(&content, 0)?;
                }
            }
            fs::File::open(&path)?.sync_all()?;
            fs::File::open(dir)?.sync_all()
        };
        if attempt().is_err() {
            return;
        }
        let mut ledger = ledger.lock().unwrap();
        ledger.open.remove(&name);
        ledger.durable.insert(name.clone(), content);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything a ledger calls durable is there, unless it was just being replaced.
fn verify(dir: &Path, ledger: &Ledger) {
    for (name, content) in &ledger.durable {
        if ledger.open.contains_key(name) {
            continue;
        }
        let found = fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{name} was durable: {e}"));
        assert!(
            &found == content,
            "{name}: {} durable bytes, {} other bytes found",
            content.len(),
            found.len()
        );
    }
}

#[test]
fn what_was_fsynced_survives_kill_under_load() {
    let place = Place::with_image("2G");
    let originals = place.path("originals");
    make_tree(&originals, 99, 400);
    for round in 0..4u64 {
        place.mount(&[]).ok();
        let dir = place.dir.join(format!("round{round}"));
        fs::create_dir(&dir).unwrap();
        let ledgers: Vec<_> = (0..3).map(|_| Mutex::new(Ledger::default())).collect();
        let done = AtomicUsize::new(0);
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (number, ledger) in ledgers.iter().enumerate() {
                let (dir, done) = (&dir, &done);
                scope.spawn(move || write_until_killed(dir, round * 10 + number as u64 + 1, ledger, done));
            }
            // Unsynced load beside it: a tree that is copied in.
            let mut load = Command::new("cp");
            load.arg("-a").arg(&originals).arg(place.dir.join(format!("load{round}")));
            let mut load = load.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            while done.load(Ordering::Relaxed) < 60 * (round as usize + 1) {
                std::thread::yield_now();
            }
            place.kill_server();
            killed.store(true, Ordering::Relaxed);
            let _ = load.wait();
        });
        place.fsck().ok();
        place.mount(&[]).ok();
        for ledger in &ledgers {
            verify(&dir, &ledger.lock().unwrap());
        }
        // It is as good as new: everything can be changed and removed.
        make_tree(&place.dir.join(format!("after{round}")), round + 1, 100);
        run(Command::new("rm").arg("-rf").arg(place.dir.join(format!("load{round}"))));
        place.umount().ok();
        place.fsck().ok();
    }
}

#[test]
fn a_killed_server_leaves_errors_and_no_hang() {
    let place = Place::mounted("256M");
    fs::write(place.dir.join("f"), "x").unwrap();
    let held = fs::File::open(place.dir.join("f")).unwrap();
    held.sync_all().unwrap();
    let pid = place.server();
    run(Command::new("kill").args(["-KILL", &pid.to_string()]));
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::yield_now();
    }
    assert!(fs::metadata(place.dir.join("g")).is_err());
    assert!(held.sync_all().is_err());
    // A new mount takes the place of the dead one; what was open there stays dead.
    let again = place.mount(&[]);
    assert!(again.stderr.contains("has died"), "{again:?}");
    again.ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"x");
    assert!(held.sync_all().is_err());
    drop(held);
}
