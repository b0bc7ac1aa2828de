//! Calls by path: the library on an image against the kernel on a mount of it, errno by errno.
//! Random but replayable: a failure prints its seed, and `ESPALIER_SEED` replays it;
//! `ESPALIER_STEPS` sets the number of calls, `ESPALIER_SEEDS` that of seeds. Needs root and FUSE,
//! and fails without.

#[path = "paths/calls.rs"]
mod calls;
mod common;
#[path = "paths/kernel.rs"]
mod kernel;
#[path = "paths/library.rs"]
mod library;
#[path = "differential/random.rs"]
mod random;
#[path = "differential/tree.rs"]
mod tree;
#[path = "paths/world.rs"]
mod world;

use calls::Script;
use common::kinds;
use common::store::Image;
use espalier_fuse::transport::Kind;
use random::Random;

const QUESTIONS: usize = 6000;
const CHANGES: usize = 3000;

#[test]
fn serves_when_asked() {
    common::store::serve_if_asked();
}

#[test]
fn asks_the_kernel_when_told() {
    kernel::ask_if_told();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn steps(default: usize) -> usize {
    number("ESPALIER_STEPS").map_or(default, |steps| steps as usize)
}

/// Seeds from `first` on.
fn range(first: u64) -> std::ops::Range<u64> {
    first..first + number("ESPALIER_SEEDS").unwrap_or(3)
}

/// Calls the test with each seed, or with the one that is asked for.
fn each_seed(seeds: std::ops::Range<u64>, test: impl Fn(u64)) {
    match number("ESPALIER_SEED") {
        Some(seed) => test(seed),
        None => seeds.for_each(test),
    }
}

/// What the kernel answers on a mount of `image`.
fn answers(image: &Image, kind: Kind, script: &Script) -> Vec<String> {
    let mounted = image.mount(kind, "");
    let answers = kernel::ask(mounted.path(), script);
    mounted.end();
    answers
}

fn assert_same(script: &Script, kernel: &[String], library: &[String]) {
    let calls = script.calls();
    assert_eq!((kernel.len(), library.len()), (calls.len(), calls.len()));
    for (step, call) in calls.iter().enumerate() {
        assert_eq!(
            kernel[step],
            library[step],
            "ESPALIER_SEED={} step {step}: kernel and library differ in {call:?} of {:?}",
            script.seed,
            String::from_utf8_lossy(&call.place.path)
        );
    }
}

/// How many calls were refused.
fn refused(script: &Script, answers: &[String]) -> usize {
    let refused = answers.iter().filter(|answer| answer.starts_with("error")).count();
    eprintln!("seed {}: {} calls, {refused} of them refused", script.seed, answers.len());
    refused
}

/// Questions that change nothing, on one image, of which both sides see the same inode numbers.
#[test]
fn the_library_answers_as_the_kernel() {
    each_seed(range(1), |seed| {
        for kind in kinds() {
            let image = Image::new(256 << 20);
            let paths = image.embedded(|fs| world::make(fs, &mut Random::new(seed)));
            let script = Script { seed, steps: steps(QUESTIONS), changes: false, paths };
            let kernel = answers(&image, kind, &script);
            image.embedded(|fs| {
                assert_same(&script, &kernel, &library::ask(fs, &script));
                // Again with what the first time left in memory.
                assert_same(&script, &kernel, &library::ask(fs, &script));
            });
            let refused = refused(&script, &kernel);
            assert!(refused * 10 > kernel.len() * 2 && refused * 10 < kernel.len() * 8, "poor questions");
        }
    });
}

/// Calls that change things, on two images that are equal.
#[test]
fn the_library_changes_what_the_kernel_changes() {
    each_seed(range(11), |seed| {
        let images = [Image::new(256 << 20), Image::new(256 << 20)];
        let made =
            images.each_ref().map(|image| image.embedded(|fs| world::make(fs, &mut Random::new(seed))));
        assert_eq!(made[0], made[1]);
        let paths = made[0].clone();
        let script = Script { seed, steps: steps(CHANGES), changes: true, paths };
        let kernel = answers(&images[0], Kind::Classic, &script);
        let library = images[1].embedded(|fs| library::ask(fs, &script));
        assert_same(&script, &kernel, &library);
        assert!(refused(&script, &kernel) * 20 < kernel.len() * 19, "poor calls");
        let trees = images.each_ref().map(|image| {
            let mounted = image.mount(Kind::Classic, "");
            let tree = tree::read(mounted.path());
            mounted.end();
            tree
        });
        tree::assert_same(&trees[0], &trees[1], || format!("ESPALIER_SEED={seed} at the end"));
    });
}

/// A directory of snapshots has the rights that its directory has now, not those of when the kernel
/// looked it up first.
#[test]
fn a_directory_of_snapshots_follows_its_directory() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    for kind in kinds() {
        let image = Image::new(64 << 20);
        image.embedded(|fs| {
            let caller = espalier_fs::Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
            let directory = fs.mkdir(espalier_fs::NodeId::ROOT, b"d", 0o755, &caller).unwrap().node;
            fs.snapshot_tree(directory, "first", false, &caller).unwrap();
            fs.snapshot("whole", false).unwrap();
        });
        let mounted = image.mount(kind, "");
        for directory in [mounted.path().to_owned(), mounted.path().join("d")] {
            let shown = directory.join(".snapshots");
            let may_list = |uid: u32| {
                let listed = std::process::Command::new("ls").arg(&shown).uid(uid).gid(uid).output();
                listed.unwrap().status.success()
            };
            assert_eq!(std::fs::metadata(&shown).unwrap().mode() & 0o7777, 0o555);
            assert!(may_list(1000));
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o711)).unwrap();
            assert_eq!(std::fs::metadata(&shown).unwrap().mode() & 0o7777, 0o511);
            assert!(!may_list(1000), "a user that may not list the directory");
            chown(&directory, Some(1000), Some(1000)).unwrap();
            assert_eq!(std::fs::metadata(&shown).unwrap().uid(), 1000);
            assert!(may_list(1000), "its owner");
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
            assert!(may_list(1001));
        }
        mounted.end();
    }
}

/// An entry of the root that took the name of what is shown there would be out of sight.
#[test]
fn what_is_shown_in_the_root_is_not_replaced() {
    use rustix::io::Errno;
    let image = Image::new(64 << 20);
    image.embedded(|fs| fs.snapshot("first", false).unwrap());
    let mounted = image.mount(Kind::Classic, "");
    let (directory, file) = (mounted.path().join("d"), mounted.path().join("f"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(&file, b"").unwrap();
    let shown = mounted.path().join(".snapshots");
    assert_eq!(rustix::fs::rename(&directory, &shown), Err(Errno::BUSY));
    let inside = shown.join("first");
    assert_eq!(rustix::fs::rename(&file, inside.join("f")), Err(Errno::XDEV));
    assert_eq!(rustix::fs::link(&file, inside.join("f")), Err(Errno::XDEV));
    assert!(shown.join("first").exists() && directory.exists() && file.exists());
    mounted.end();
}
