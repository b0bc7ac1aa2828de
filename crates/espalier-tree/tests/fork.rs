//! A program that has a tree open forks, at any moment of what its threads do. Needs nothing.

use espalier_tree::{ImageOptions, Piece, Tree, Write, WriteFlags, format_image};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const FILES: usize = 200;
/// Children in all, of which as many as [`AT_ONCE`] run side by side.
const CHILDREN: usize = 320;
const AT_ONCE: usize = 8;
/// After that a child has hung, in seconds.
const PATIENCE: u32 = 120;

fn name(n: usize) -> String {
    format!("directory{}/{n}", n % 7)
}

fn piece(name: &str) -> Piece<'_> {
    Piece { path: name.as_bytes(), offset: 0, length: u64::MAX }
}

/// Reads all files with one call; true if each holds its name.
fn reads_all(tree: &Tree) -> bool {
    let names: Vec<_> = (0..FILES).map(name).collect();
    let pieces: Vec<_> = names.iter().map(|name| piece(name)).collect();
    let mut right = 0;
    let result = tree.read_many(&pieces, &mut |at, data| {
        right += usize::from(data.is_ok_and(|data| data == names[at].as_bytes()));
        true
    });
    result.is_ok() && right == FILES
}

/// The exit status of a child that opens the tree of its parent anew.
fn child(tree: &Tree) -> i32 {
    // SAFETY: it takes no memory; the signal ends this process, which is a child of the test.
    unsafe { libc::alarm(PATIENCE) };
    i32::from(!reads_all(tree))
}

/// The threads of a parent wait for locks, or hold some, when it forks. The child has none of them,
/// and nothing of what they waited for may be in its way.
#[test]
fn children_open_an_image_whatever_their_parents_threads_do() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    format_image(&image, 64 << 20).unwrap();
    let tree = Tree::open(&image, &ImageOptions::default()).unwrap();
    let names: Vec<_> = (0..FILES).map(name).collect();
    let files: Vec<_> = names.iter().map(|name| Write::file(name, name.as_bytes())).collect();
    assert!(tree.write_many(&files, WriteFlags::default()).iter().all(Result::is_ok));
    tree.close().unwrap();
    drop(tree);

    let options = ImageOptions { read_only: true, ..ImageOptions::default() };
    let other = Tree::open(&image, &options).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert!(reads_all(&other));
                }
            });
        }
        for _ in 0..CHILDREN / AT_ONCE {
            // Its threads are at their beginning, or wait already.
            let tree = Tree::open(&image, &options).unwrap();
            let children = [(); AT_ONCE].map(|()| {
                // SAFETY: the child uses what the library says that a child may use.
                let id = unsafe { libc::fork() };
                if id == 0 {
                    let status = child(&tree);
                    // SAFETY: the child ends without what the parent would do at its end.
                    unsafe { libc::_exit(status) };
                }
                id
            });
            for id in children {
                assert!(id > 0, "fork");
                let mut status = 0;
                // SAFETY: `status` is there for the call to write to.
                let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
                ended.fetch_or(status != 0, Ordering::Relaxed);
                assert_eq!((waited, status), (id, 0), "a child's status; 14 if it hung");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
}
