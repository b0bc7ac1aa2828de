//! The kernel is told of the nodes that a change was on, also if another caller has changed what a
//! name means since the server looked it up.

use super::interleave::Stop;
use crate::common::Mounted;
use espalier_client::{Client, Links, Rename, Write};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Has a client make a call, and another caller do something while the call has found what its
/// paths name, and changed nothing yet.
fn interleave(mounted: &Mounted, call: impl FnOnce(&Client) + Send, meanwhile: impl FnOnce()) {
    let client = mounted.client();
    let stop = Stop::ask(mounted.image());
    std::thread::scope(|scope| {
        let calling = scope.spawn(move || call(&client));
        stop.wait();
        meanwhile();
        stop.end();
        calling.join().unwrap();
    });
}

/// Makes two files with two names each, `NAME` and `NAME-other`, of which the kernel has the
/// attributes.
fn make_linked(root: &Path, names: [&str; 2]) {
    for name in names {
        fs::write(root.join(name), name).unwrap();
        fs::hard_link(root.join(name), root.join(format!("{name}-other"))).unwrap();
        assert_eq!(links(root, &format!("{name}-other")), 2);
    }
}

fn links(root: &Path, name: &str) -> u64 {
    fs::symlink_metadata(root.join(name)).unwrap().nlink()
}

/// Moves a file, and has the kernel ask for the attributes that it has then.
fn move_known(root: &Path, from: &str, to: &str) {
    fs::rename(root.join(from), root.join(to)).unwrap();
    assert_eq!(links(root, &format!("{from}-other")), 2);
}

/// The kernel has the attributes of a file that the server has.
#[track_caller]
fn assert_seen(mounted: &Mounted, name: &str) {
    let (seen, client) = (fs::symlink_metadata(mounted.path().join(name)).unwrap(), mounted.client());
    let is = client.stat(name, Links::Stay).unwrap();
    let ctime = seen.ctime() * 1_000_000_000 + seen.ctime_nsec();
    assert_eq!((seen.nlink(), ctime), (u64::from(is.nlink), is.ctime), "links and last change of {name}");
}

#[test]
fn the_file_that_lost_a_name_is_told_of() {
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    make_linked(&root, ["f", "b"]);
    interleave(&mounted, |client| client.unlink("f").unwrap(), || move_known(&root, "b", "f"));
    assert_eq!(links(&root, "b-other"), 1);
    for name in ["f-other", "b-other"] {
        assert_seen(&mounted, name);
    }
    mounted.end();
}

#[test]
fn the_file_that_moved_and_the_one_that_was_replaced_are_told_of() {
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    make_linked(&root, ["source", "target"]);
    make_linked(&root, ["a", "b"]);
    let meanwhile = || {
        move_known(&root, "a", "source");
        move_known(&root, "b", "target");
    };
    let call = |client: &Client| client.rename("source", "target", Rename::Replace).unwrap();
    interleave(&mounted, call, meanwhile);
    assert_eq!((links(&root, "a-other"), links(&root, "b-other")), (2, 1));
    for name in ["target", "source-other", "target-other", "a-other", "b-other"] {
        assert_seen(&mounted, name);
    }
    mounted.end();
}

#[test]
fn the_file_that_got_a_name_is_told_of() {
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    make_linked(&root, ["f", "b"]);
    interleave(&mounted, |client| client.link("f", "new").unwrap(), || move_known(&root, "b", "f"));
    assert_eq!(links(&root, "b-other"), 3);
    for name in ["f-other", "b-other", "new"] {
        assert_seen(&mounted, name);
    }
    mounted.end();
}

#[test]
fn the_file_that_a_new_one_replaced_is_told_of() {
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    make_linked(&root, ["f", "b"]);
    let write = |client: &Client| {
        let written = client.write_many(&[Write::file("f", &b"new"[..])], Default::default());
        written.into_iter().for_each(|result| result.unwrap());
    };
    interleave(&mounted, write, || move_known(&root, "b", "f"));
    assert_eq!(fs::read(root.join("f")).unwrap(), b"new");
    assert_eq!(links(&root, "b-other"), 1);
    for name in ["f", "f-other", "b-other"] {
        assert_seen(&mounted, name);
    }
    mounted.end();
}

/// Removes directory `d` by a client's call after another directory, which a program has open, has
/// taken its place: the program sees that it has changed.
fn the_open_directory_has_changed(call: impl FnOnce(&Client) + Send) {
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    fs::create_dir(root.join("d")).unwrap();
    fs::create_dir(root.join("e")).unwrap();
    let open = File::open(root.join("e")).unwrap();
    let attributes = || {
        let is = open.metadata().unwrap();
        (is.nlink(), is.ctime(), is.ctime_nsec())
    };
    let mut before = None;
    let meanwhile = || {
        fs::rename(root.join("e"), root.join("d")).unwrap();
        before = Some(attributes());
    };
    interleave(&mounted, call, meanwhile);
    assert_ne!(before, Some(attributes()), "the kernel still has what the directory was");
    assert!(!root.join("d").exists());
    drop(open);
    mounted.end();
}

#[test]
fn the_empty_directory_that_was_removed_is_told_of() {
    the_open_directory_has_changed(|client| client.remove_directory("d").unwrap());
}

#[test]
fn the_tree_that_was_removed_is_told_of() {
    the_open_directory_has_changed(|client| client.remove_tree("d").unwrap());
}
