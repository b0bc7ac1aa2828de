//! A mount with one serving thread for each CPU does not wait for itself. These tests need root and
//! FUSE, and fail without.

mod common;

use common::store::{Image, serve_if_asked};
use common::{kinds, stay_on};
use espalier_fuse::control::{self, CLONE, REMOVE_TREE, TOKEN, TOKEN_BYTES};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rounds of clones and removals.
const ROUNDS: usize = 20;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn ioctl(file: &File, command: u32, argument: &mut [u8]) -> io::Result<()> {
    // SAFETY: the commands read or fill as many bytes as the argument has.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The server tells the kernel of a clone while it serves the ioctl, for which the kernel locks the
/// directory; and a caller that makes files there holds that lock while its request waits for the
/// only thread of the CPU.
#[test]
fn clones_and_new_files_of_one_directory_do_not_wait_for_each_other() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "threads=1");
        let (source, parent) = (mounted.path().join("source"), mounted.path().join("parent"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), b"content").unwrap();
        fs::create_dir(&parent).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(0);
                while !done.load(Ordering::Relaxed) {
                    fs::create_dir(parent.join("new")).unwrap();
                    fs::remove_dir(parent.join("new")).unwrap();
                }
            });
            scope.spawn(|| {
                stay_on(0);
                let (source, target) = (File::open(&source).unwrap(), File::open(&parent).unwrap());
                for _ in 0..ROUNDS {
                    let mut token = [0; TOKEN_BYTES];
                    ioctl(&source, TOKEN, &mut token).unwrap();
                    let mut clone = control::clone_argument(&token, b"clone").unwrap();
                    ioctl(&target, CLONE, &mut clone).unwrap();
                    let mut removal = control::name_argument(0, b"clone").unwrap();
                    ioctl(&target, REMOVE_TREE, &mut removal).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
        });
        mounted.end();
    }
}
