//! Listings have attributes for programs that look at files, and not for those that want names.
//! These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::{Image, Mounted, serve_if_asked};
use std::fs;
use std::path::{Path, PathBuf};

const DIRECTORIES: usize = 40;
const FILES: usize = 50;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// An image with files in directories, which no program has looked at yet.
fn image() -> Image {
    let image = Image::new(128 << 20);
    let mounted = image.mount(kinds()[0], "");
    for directory in 0..DIRECTORIES {
        let directory = mounted.path().join(format!("{directory:03}"));
        fs::create_dir(&directory).unwrap();
        (0..FILES).for_each(|file| fs::write(directory.join(format!("{file:03}")), "content").unwrap());
    }
    mounted.end();
    image
}

/// All directories, of which the listing of the root tells.
fn directories(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Lists all directories, and calls `look` for each file after its directory was listed.
fn walk(root: &Path, mut look: impl FnMut(&Path)) -> usize {
    let mut count = 0;
    for directory in directories(root) {
        let files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        count += files.len();
        files.iter().for_each(|file| look(file));
    }
    count
}

fn look(file: &Path) {
    assert_eq!(fs::metadata(file).unwrap().len(), 7);
}

/// How many files were asked for by name while a thread of its own did `work`.
fn lookups(mounted: &Mounted, work: impl FnOnce(&Path) + Send) -> usize {
    let (before, root) = (mounted.count("lookup"), mounted.path());
    std::thread::scope(|scope| scope.spawn(|| work(root)).join().unwrap());
    (mounted.count("lookup") - before) as usize
}

#[test]
fn a_walk_by_names_gets_no_files() {
    let image = image();
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let by_name = lookups(&mounted, |root| assert_eq!(walk(root, |_| ()), DIRECTORIES * FILES));
        assert!(by_name < 5, "{by_name} requests for files that are not looked at");
        // Another program looks at them.
        let later = lookups(&mounted, |root| assert!(walk(root, look) > 0));
        assert!(later > DIRECTORIES * FILES * 4 / 5, "{later} files were not given by the listings");
        mounted.end();
    }
}

#[test]
fn a_walk_that_looks_at_files_gets_them() {
    let image = image();
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let asked = lookups(&mounted, |root| assert_eq!(walk(root, look), DIRECTORIES * FILES));
        assert!(asked < 10, "{asked} files were asked for one by one");
        let again = lookups(&mounted, |root| assert!(walk(root, look) > 0));
        assert!(again < 10, "{again} files were asked for one by one");
        mounted.end();
    }
}

/// A process that begins to look at files gets them from then on.
#[test]
fn a_walk_that_looks_later_gets_the_rest() {
    let image = image();
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let asked = lookups(&mounted, |root| {
            let mut directories = 0;
            walk(root, |file| {
                directories += usize::from(file.ends_with("000"));
                if directories > DIRECTORIES / 2 {
                    look(file);
                }
            });
        });
        assert!((FILES - 5..FILES * 2).contains(&asked), "{asked} files were asked for one by one");
        mounted.end();
    }
}

#[test]
fn all_listings_have_attributes_if_they_are_to() {
    let image = image();
    for kind in kinds() {
        let mounted = image.mount(kind, "readdirplus=always");
        lookups(&mounted, |root| assert!(walk(root, |_| ()) > 0));
        let asked = lookups(&mounted, |root| assert!(walk(root, look) > 0));
        assert!(asked < 5, "{asked} files were asked for one by one");
        mounted.end();
    }
}
