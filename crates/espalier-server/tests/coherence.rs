//! What a client does is seen through the mount when its call returns, and what is done through the
//! mount is seen by clients: names (also of what does not exist), listings, attributes, pages.

mod common;

use common::{Mounted, serve_if_asked};
use espalier_client::{Client, Links, Rename, Write};
use rustix::fs::{AtFlags, SeekFrom};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn write(client: &Client, files: &[(&str, &[u8])]) {
    let files: Vec<_> = files.iter().map(|(path, data)| Write::file(*path, *data)).collect();
    for result in client.write_many(&files, Default::default()) {
        result.unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Lists an open directory from its beginning.
fn list_again(directory: &mut rustix::fs::Dir) -> Vec<String> {
    directory.rewind();
    let mut names = Vec::new();
    while let Some(entry) = directory.read() {
        names.push(entry.unwrap().file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

#[test]
fn new_names_are_seen_where_the_kernel_knew_that_there_were_none() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    fs::create_dir(root.join("d")).unwrap();
    let open = File::open(root.join("d")).unwrap();
    let mut listing = rustix::fs::Dir::read_from(&open).unwrap();
    for round in 0..20 {
        let (file, below) = (format!("d/f{round}"), format!("n{round}/deep/f"));
        assert!(!root.join(&file).exists() && !root.join(&below).exists());
        assert!(!root.join(format!("n{round}")).exists());
        let before = list_again(&mut listing);
        assert_eq!(before.len(), round);
        write(&client, &[(&file, b"one"), (&below, b"two")]);
        assert_eq!(fs::read(root.join(&file)).unwrap(), b"one");
        assert_eq!(fs::read(root.join(&below)).unwrap(), b"two");
        assert_eq!(list_again(&mut listing).len(), round + 1, "the kept listing is gone");
        assert_eq!(names(&root.join("d")).len(), round + 1);
        assert_eq!(fs::metadata(root.join("d")).unwrap().size(), round as u64 + 1);
    }
    for (path, make) in [("m", 0), ("s", 1), ("l", 2), ("c", 3), ("w", 4)] {
        assert!(fs::symlink_metadata(root.join(path)).is_err());
        match make {
            0 => client.make_directory(path, 0o755, false).unwrap(),
            1 => client.symlink("d/f0", path).unwrap(),
            2 => {
                assert_eq!(fs::metadata(root.join("d/f0")).unwrap().nlink(), 1);
                client.link("d/f0", path).unwrap();
                assert_eq!(fs::metadata(root.join("d/f0")).unwrap().nlink(), 2);
            }
            3 => client.clone_tree("d", path).unwrap(),
            _ => client.write_at(path, b"new", 0, Some(0o644), false).unwrap(),
        }
        assert!(fs::symlink_metadata(root.join(path)).is_ok(), "{path}");
    }
    assert_eq!(fs::read(root.join("s")).unwrap(), b"one");
    assert_eq!(fs::read(root.join("c/f7")).unwrap(), b"one");
    drop((client, open, listing));
    mounted.end();
}

/// Whether the kernel knows the directory or not, and what the names meant before.
#[test]
fn many_names_of_one_call_are_seen() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    fs::create_dir(root.join("known")).unwrap();
    let paths: Vec<String> =
        ["known", "unknown"].iter().flat_map(|dir| (0..100).map(move |n| format!("{dir}/f{n}"))).collect();
    let absent = paths.iter().take(100).all(|path| fs::symlink_metadata(root.join(path)).is_err());
    assert!(absent && names(&root.join("known")).is_empty());
    let first: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), path.as_bytes())).collect();
    write(&client, &first);
    for dir in ["known", "unknown"] {
        assert_eq!(names(&root.join(dir)).len(), 100);
    }
    for path in &paths {
        assert_eq!(fs::read(root.join(path)).unwrap(), path.as_bytes());
        fs::hard_link(root.join(path), root.join(path.replace('/', "-"))).unwrap();
    }
    // Files that the kernel knows, by another name too, are replaced.
    let second: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), &b"again"[..])).collect();
    write(&client, &second);
    for path in &paths {
        assert_eq!(fs::read(root.join(path)).unwrap(), b"again");
        let other = root.join(path.replace('/', "-"));
        assert_eq!(fs::metadata(&other).unwrap().nlink(), 1, "the replaced file has one name left");
        assert_eq!(fs::read(&other).unwrap(), path.as_bytes());
    }
    drop(client);
    mounted.end();
}

#[test]
fn removed_moved_and_replaced_names_are_seen() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    write(&client, &[("a/f", b"old"), ("a/g", b"other"), ("t/x/y", b"deep")]);
    let open = File::open(root.join("a/f")).unwrap();
    let read = || {
        let mut data = [0; 8];
        let length = open.read_at(&mut data, 0).unwrap();
        data[..length].to_vec()
    };
    assert_eq!(read(), b"old");
    assert_eq!(open.metadata().unwrap().nlink(), 1);
    write(&client, &[("a/f", b"newer")]);
    assert_eq!(fs::read(root.join("a/f")).unwrap(), b"newer", "the name leads to the new file");
    assert_eq!(read(), b"old", "and what is open stays");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    client.rename("a/f", "a/h", Rename::Replace).unwrap();
    assert!(!root.join("a/f").exists());
    assert_eq!(fs::read(root.join("a/h")).unwrap(), b"newer");
    client.rename("a/h", "a/g", Rename::Exchange).unwrap();
    assert_eq!(fs::read(root.join("a/h")).unwrap(), b"other");
    // A directory that moves, with a program in it.
    let inside = File::open(root.join("t/x")).unwrap();
    assert_eq!(fs::read(root.join("t/x/y")).unwrap(), b"deep");
    client.rename("t", "u", Rename::Replace).unwrap();
    assert!(!root.join("t").exists());
    assert_eq!(fs::read(root.join("u/x/y")).unwrap(), b"deep");
    assert!(rustix::fs::statat(&inside, "y", AtFlags::empty()).is_ok());
    client.unlink("a/g").unwrap();
    assert!(!root.join("a/g").exists());
    assert_eq!(names(&root.join("a")), ["h"]);
    client.remove_tree("u").unwrap();
    assert!(!root.join("u").exists() && !root.join("u/x/y").exists());
    client.make_directory("e", 0o755, false).unwrap();
    assert!(root.join("e").is_dir());
    client.remove_directory("e").unwrap();
    assert!(!root.join("e").exists());
    drop((open, inside));
    drop(client);
    mounted.end();
}

#[test]
fn attributes_that_a_client_changes_are_seen() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    write(&client, &[("d/f", b"data"), ("d/e/g", b"data")]);
    let look = |path: &str| fs::metadata(root.join(path)).unwrap();
    assert_eq!((look("d/f").size(), look("d/f").mode() & 0o7777), (4, 0o644));
    client.set_mode("d/f", 0o600).unwrap();
    client.set_owner("d/f", Some(5), Some(6), Links::Follow).unwrap();
    let times = (espalier_client::Time::At(1_000), espalier_client::Time::At(-2_000_000_001));
    client.set_times("d/f", times, Links::Follow).unwrap();
    client.truncate("d/f", 9).unwrap();
    let seen = look("d/f");
    assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid(), seen.size()), (0o600, 5, 6, 9));
    assert_eq!(seen.atime_nsec(), 1_000);
    assert_eq!(fs::read(root.join("d/f")).unwrap(), b"data\0\0\0\0\0");
    client.truncate("d/f", 2).unwrap();
    assert_eq!(fs::read(root.join("d/f")).unwrap(), b"da");
    look("d/e/g");
    client.own_tree("d", Some(7), None).unwrap();
    client.mode_tree("d", [0o7777, 0, 0o7700, 0, 0]).unwrap();
    assert_eq!((look("d/e/g").uid(), look("d/e/g").mode() & 0o7777), (7, 0o600));
    assert_eq!(look("d").uid(), 7);
    drop(client);
    mounted.end();
}

/// A mapping of the first page of a file.
struct Mapped(*mut u8);

impl Mapped {
    fn of(file: &File) -> Self {
        let (protection, place) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: the kernel chooses the place, so nothing of ours lies there.
        Self(unsafe { mmap(place, 4096, protection, MapFlags::SHARED, file, 0) }.unwrap().cast())
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < 4096);
        // SAFETY: the byte is mapped.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < 4096);
        // SAFETY: the byte is mapped, and nothing refers to it.
        unsafe { self.0.add(at).write_volatile(value) }
    }

    fn sync(&self) {
        // SAFETY: the page is mapped.
        unsafe { msync(self.0.cast(), 4096, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { munmap(self.0.cast(), 4096) }.unwrap();
    }
}

#[test]
fn content_that_a_client_changes_is_seen_in_pages_and_mappings() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    fs::write(root.join("f"), [1; 4096]).unwrap();
    let file = File::options().read(true).write(true).open(root.join("f")).unwrap();
    let mapped = Mapped::of(&file);
    for value in 2..30 {
        assert_eq!(mapped.get(7), value - 1);
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, 0).unwrap();
        client.write_at("f", &[value; 100], 0, None, false).unwrap();
        file.read_exact_at(&mut page, 0).unwrap();
        assert_eq!((page[99], page[100]), (value, 1));
        assert_eq!((mapped.get(99), mapped.get(100)), (value, 1));
    }
    // What is stored through a mapping, and not written yet, comes before the client's write: it is
    // neither lost, nor does its page take the client's data away.
    for round in 30..60 {
        mapped.set(2000, round);
        client.write_at("f", &[round], 5, None, false).unwrap();
        assert_eq!((mapped.get(5), mapped.get(2000)), (round, round));
        assert_eq!(client.read("f").unwrap()[2000], round);
        mapped.sync();
        assert_eq!(client.read("f").unwrap()[5], round);
    }
    client.write_at("f", b"end", 10_000, None, false).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_003);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::End(0)).unwrap(), 10_003);
    drop((mapped, file));
    drop(client);
    mounted.end();
}

#[test]
fn what_the_kernel_does_is_seen_by_clients() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    for round in 0..20 {
        let name = format!("f{round}");
        assert_eq!(client.stat(&name, Links::Follow).unwrap_err().errno(), libc::ENOENT);
        let mut file = File::create(root.join(&name)).unwrap();
        assert_eq!(client.stat(&name, Links::Follow).unwrap().size, 0);
        file.write_all(b"some").unwrap();
        assert_eq!(client.read(&name).unwrap(), b"some");
        file.write_all(b" more").unwrap();
        assert_eq!(client.stat(&name, Links::Follow).unwrap().size, 9);
        fs::set_permissions(root.join(&name), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(client.stat(&name, Links::Follow).unwrap().mode & 0o7777, 0o640);
        fs::rename(root.join(&name), root.join("moved")).unwrap();
        assert_eq!(client.read("moved").unwrap(), b"some more");
        assert!(client.stat(&name, Links::Follow).is_err());
        fs::remove_file(root.join("moved")).unwrap();
        assert!(client.stat("moved", Links::Follow).is_err());
    }
    fs::write(root.join("m"), [0; 4096]).unwrap();
    let file = File::options().read(true).write(true).open(root.join("m")).unwrap();
    let mapped = Mapped::of(&file);
    mapped.set(9, 9);
    mapped.sync();
    assert_eq!(client.read("m").unwrap()[9], 9, "what msync has written");
    assert_eq!(client.walk(".", &Default::default()).unwrap().count(), 1);
    drop((mapped, file));
    drop(client);
    mounted.end();
}

/// A client writes numbers that grow into files, in place or by replacing them, while programs list
/// the directory, read and stat the files: none sees a number that is older than the last one of
/// which the client had its answer before it looked. Listings in order also have the files
/// prefetched.
fn no_reader_sees_less(replace: bool) {
    const FILES: usize = 24;
    const ROUNDS: u64 = 40;
    let mounted = Mounted::new("");
    let root = mounted.path().to_owned();
    let writer = mounted.client();
    let path = |file: usize| format!("d/f{file:02}");
    let content = |number: u64| number.to_le_bytes().repeat(1 + number as usize % 900);
    let put = |file: usize, number: u64| {
        let (path, data) = (path(file), content(number));
        if replace {
            write(&writer, &[(&path, &data)]);
        } else {
            // Sizes only grow, so that a reader never finds the file cut.
            writer.write_at(&path, &data, 0, Some(0o644), false).unwrap();
        }
    };
    writer.make_directory("d", 0o755, false).unwrap();
    let written: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(1)).collect();
    (0..FILES).for_each(|file| put(file, 1));
    let done = AtomicBool::new(false);
    let number_in = |data: &[u8]| u64::from_le_bytes(data[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        let (done, written, root) = (&done, &written, &root);
        for reader in 0..3 {
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(names(&root.join("d")).len(), FILES);
                    for (file, written) in written.iter().enumerate() {
                        let least = written.load(Ordering::SeqCst);
                        let data = fs::read(root.join(format!("d/f{file:02}"))).unwrap();
                        let seen = number_in(&data);
                        assert!(seen >= least, "reader {reader}, file {file}: {seen} after {least}");
                    }
                }
            });
        }
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let _end = End(done);
        for number in 2..ROUNDS {
            for (file, written) in written.iter().enumerate() {
                put(file, number);
                written.store(number, Ordering::SeqCst);
            }
        }
    });
    drop(writer);
    mounted.end();
}

#[test]
fn no_reader_sees_less_of_files_that_are_written_in_place() {
    no_reader_sees_less(false);
}

#[test]
fn no_reader_sees_less_of_files_that_are_replaced() {
    no_reader_sees_less(true);
}
