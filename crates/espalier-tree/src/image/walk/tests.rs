//! Walks that find little among many entries.

use super::{ENTRIES_PER_LOOK, ImageStream, Sink, walk};
use crate::image::{ImageOptions, Opened, format_image};
use espalier_client::{Entry, Listing};
use espalier_fs::{NewNode, PathCaller};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A begun walk that fails to return keeps a test for so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A caller of an image with `count` files, the last of which has a name of its own.
fn with_files(count: u32, test: impl FnOnce(&PathCaller)) {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    format_image(&image, 64 << 20).unwrap();
    let opened = Opened::open(&image, b"/", &ImageOptions::default()).unwrap();
    let caller = opened.caller().unwrap();
    for number in 1..count {
        caller.mknod(&format!("/a{number}"), NewNode::Regular, 0o644).unwrap();
    }
    caller.mknod("/z", NewNode::Regular, 0o644).unwrap();
    test(caller);
}

fn named(name: &[u8]) -> Listing {
    Listing { pattern: Some(name.to_vec()), ..Listing::default() }
}

#[test]
fn a_walk_that_finds_nothing_ends_when_it_is_not_wanted() {
    with_files(ENTRIES_PER_LOOK + 10, |caller| {
        let (sender, found) = channel();
        let find = move |caller: &PathCaller, to: &Sink<Entry>| {
            let mut counts = Vec::new();
            for is_closed in [false, true] {
                to.is_closed.store(is_closed, Ordering::Relaxed);
                walk(caller, (b"/", &named(b"z")), to)?;
                counts.push(to.batch.take().len());
            }
            sender.send(counts).unwrap();
            Ok(())
        };
        let _stream = ImageStream::begin(caller, find).unwrap();
        assert_eq!(found.recv().unwrap(), [1, 0], "found by a walk that is wanted, and by one that is not");
    });
}

#[test]
fn a_walk_begins_before_it_finds_anything() {
    with_files(ENTRIES_PER_LOOK + 10, |caller| {
        let (open, gate) = channel();
        let (told, was_open) = channel();
        let find = move |caller: &PathCaller, to: &Sink<Entry>| {
            walk(caller, (b"/", &named(b"z")), to)?;
            told.send(gate.recv_timeout(PATIENCE).is_ok()).unwrap();
            Ok(())
        };
        let mut stream = ImageStream::begin(caller, find).unwrap();
        open.send(()).unwrap();
        assert!(was_open.recv().unwrap(), "it began when it was done");
        assert_eq!(stream.next().unwrap().unwrap().path, b"z");
        assert!(stream.next().is_none());
    });
}

#[test]
fn what_a_walk_finds_is_given_before_it_finds_more() {
    with_files(ENTRIES_PER_LOOK + 10, |caller| {
        let (open, gate) = channel();
        let (told, was_open) = channel();
        let find = move |caller: &PathCaller, to: &Sink<Entry>| {
            walk(caller, (b"/", &named(b"a1")), to)?;
            told.send(gate.recv_timeout(PATIENCE).is_ok()).unwrap();
            Ok(())
        };
        let mut stream = ImageStream::begin(caller, find).unwrap();
        assert_eq!(stream.next().unwrap().unwrap().path, b"a1");
        open.send(()).unwrap();
        assert!(was_open.recv().unwrap(), "it was given at the end");
        assert!(stream.next().is_none());
    });
}

#[test]
fn what_is_wrong_at_the_beginning_is_said_at_once() {
    with_files(1, |caller| {
        let error = |path: &'static [u8]| {
            let find =
                move |caller: &PathCaller, to: &Sink<Entry>| walk(caller, (path, &Listing::default()), to);
            ImageStream::begin(caller, find).err().map(|error| error.errno())
        };
        assert_eq!(error(b"/none"), Some(libc::ENOENT));
        assert_eq!(error(b"/z"), Some(libc::ENOTDIR));
        assert_eq!(error(b"/"), None);
    });
}
