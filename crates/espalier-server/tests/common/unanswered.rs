//! A FUSE file system of a single file, whose server never answers that the file is closed: a close
//! waits until the file system is gone.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

pub(crate) struct Unanswered {
    /// What it is mounted on.
    point: tempfile::NamedTempFile,
    flushes: Receiver<()>,
}

impl Unanswered {
    pub(crate) fn new() -> Self {
        let point = tempfile::NamedTempFile::new().unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=100666,user_id=0,group_id=0,allow_other\0", device.as_raw_fd());
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        mount("unanswered", point.path(), "fuse", MountFlags::empty(), Some(options)).unwrap();
        let (told, flushes) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(length) = (&device).read(&mut buffer) {
                let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
                assert!(length >= 40);
                let (number, unique) = (word(4), &buffer[8..16]);
                let answer = |error: i32, body: &[u8]| {
                    let length = 16 + body.len() as u32;
                    let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), unique].concat();
                    // It may be over.
                    let _ = (&device).write(&[&head, body].concat());
                };
                match number {
                    INIT => {
                        let mut body = [0; 64];
                        body[..4].copy_from_slice(&7u32.to_ne_bytes());
                        body[4..8].copy_from_slice(&31u32.to_ne_bytes());
                        body[20..24].copy_from_slice(&4096u32.to_ne_bytes());
                        answer(0, &body);
                    }
                    OPEN | RELEASE => answer(0, &[0; 16][..if number == OPEN { 16 } else { 0 }]),
                    FLUSH => drop(told.send(())),
                    GETATTR => {
                        let mut body = [0; 104];
                        body[16..24].copy_from_slice(&1u64.to_ne_bytes());
                        body[76..80].copy_from_slice(&0o100_666u32.to_ne_bytes());
                        body[80..84].copy_from_slice(&1u32.to_ne_bytes());
                        answer(0, &body);
                    }
                    // Nothing else is needed, and what is not to be answered the kernel refuses.
                    _ => answer(-libc::ENOSYS, &[]),
                }
            }
        });
        Self { point, flushes }
    }

    /// Opens its file anew. Nothing else in this process may start a program while it is open.
    pub(crate) fn open(&self) -> File {
        File::options().read(true).write(true).open(self.point.path()).unwrap()
    }

    /// Returns when the kernel has asked once more, and waits for the answer.
    pub(crate) fn wait_for_flush(&self) {
        self.flushes.recv().unwrap();
    }

    /// What takes it away, so that all closes end.
    pub(crate) fn removal(&self) -> impl FnOnce() + Send + use<> {
        let point: PathBuf = self.point.path().into();
        move || {
            // Another one may have done it.
            let _ = unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.removal()();
    }
}
