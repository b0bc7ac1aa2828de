//! What inotify says to a program that watches a directory while whole trees come and go in it.

mod common;

use common::{Place, espalier};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A watch of one directory.
struct Watch(OwnedFd);

impl Watch {
    fn of(dir: &Path) -> Self {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let all = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB;
        inotify::add_watch(&watch, dir, all).unwrap();
        Self(watch)
    }

    /// What has happened since the last call: kinds and names. Events are there when the call that
    /// caused them has returned.
    fn seen(&self) -> Vec<(ReadFlags, String)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    events.push((event.events(), name.unwrap_or_default()));
                }
                Err(rustix::io::Errno::AGAIN) => return events,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn heard(events: &[(ReadFlags, String)], kind: ReadFlags, name: &str) -> bool {
    events.iter().any(|(flags, of)| flags.contains(kind) && of == name)
}

/// A mount with a tree, with paths of what lies in it.
fn with_tree() -> Place {
    let place = Place::mounted("64M");
    fs::create_dir_all(place.dir.join("tree/below")).unwrap();
    fs::write(place.dir.join("tree/below/f"), "content").unwrap();
    fs::write(place.dir.join("file"), "content").unwrap();
    place
}

fn call(place: &Place, words: &[&str], paths: &[&str]) {
    let paths = paths.iter().map(|path| place.dir.join(path).into_os_string());
    let words: Vec<_> = words.iter().map(|word| OsStr::new(word).to_owned()).chain(paths).collect();
    espalier(&words).ok();
}

#[test]
fn a_clone_is_announced_under_its_name() {
    let place = with_tree();
    let watch = Watch::of(&place.dir);
    for (source, name) in [("tree", "copy"), ("file", "file-copy")] {
        call(&place, &["clone"], &[source, name]);
        let events = watch.seen();
        assert!(heard(&events, ReadFlags::MOVED_TO, name), "{name}: {events:?}");
    }
    assert_eq!(fs::read(place.dir.join("copy/below/f")).unwrap(), b"content");
    assert_eq!(fs::read(place.dir.join("file-copy")).unwrap(), b"content");
    let clone =
        [OsStr::new("clone").to_owned(), place.dir.join("file").into(), place.dir.join("copy/f").into()];
    espalier(&clone).ok();
    espalier(&clone).refused(1, &["copy/f exists already"]);
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 4, "something hidden was left");
}

#[test]
fn changes_of_modes_and_owners_and_restores_are_announced() {
    let place = with_tree();
    let snapshot = ["snapshot".into(), "create".into(), place.dir.join("tree").into_os_string(), "s".into()];
    espalier(&snapshot).ok();
    let watch = Watch::of(&place.dir);
    call(&place, &["chmod", "-R", "u=rwX"], &["tree"]);
    assert!(heard(&watch.seen(), ReadFlags::ATTRIB, "tree"));
    call(&place, &["chown", "-R", "7:7"], &["tree"]);
    assert!(heard(&watch.seen(), ReadFlags::ATTRIB, "tree"));
    let restore = ["snapshot".into(), "restore".into(), place.dir.join("tree").into_os_string(), "s".into()];
    espalier(&restore).ok();
    assert!(heard(&watch.seen(), ReadFlags::ATTRIB, "tree"));
}

#[test]
fn removals_are_announced_above_and_at_the_top() {
    let place = with_tree();
    for name in ["second", "third"] {
        fs::create_dir_all(place.dir.join(name).join("below")).unwrap();
    }
    let above = Watch::of(&place.dir);
    let tops = ["tree", "second", "third"].map(|name| Watch::of(&place.dir.join(name)));
    call(&place, &["rm"], &["tree", "second", "third", "file"]);
    let events = above.seen();
    for name in ["tree", "second", "third", "file"] {
        assert!(heard(&events, ReadFlags::DELETE, name), "{name}: {events:?}");
    }
    assert!(!events.iter().any(|(_, name)| name.starts_with(".espalier")), "{events:?}");
    for top in &tops {
        let events = top.seen();
        assert!(heard(&events, ReadFlags::DELETE_SELF, ""), "{events:?}");
    }
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
}

/// A directory in use below takes the news from the watcher at the top, not from the one above.
#[test]
fn a_removal_of_a_tree_in_use_is_announced_above() {
    let place = with_tree();
    let above = Watch::of(&place.dir);
    let mut open = fs::File::open(place.dir.join("tree/below/f")).unwrap();
    call(&place, &["rm"], &["tree"]);
    assert!(heard(&above.seen(), ReadFlags::DELETE, "tree"));
    assert!(!place.dir.join("tree").exists());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut open, &mut text).unwrap();
    assert_eq!(text, "content");
}
