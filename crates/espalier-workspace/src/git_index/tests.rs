use super::*;
use std::process::Command;

#[test]
fn numbers_are_git_s() {
    for value in [0, 1, 127, 128, 129, 255, 16_511, 16_512, 1 << 20, 1 << 40] {
        let bytes = [number(value), vec![9]].concat();
        assert_eq!(take_number(&bytes), Some((value, &[9][..])), "{value}");
    }
    assert_eq!(number(128), [0x80, 0]);
    assert_eq!(take_number(&[0xff; 20]), None);
}

fn git(dir: &Path, words: &[&str]) -> String {
    let out = Command::new("git").arg("-C").arg(dir).args(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// A repository whose index has a cache of untracked files.
fn repository(dir: &Path, version: &str) {
    std::fs::create_dir(dir).unwrap();
    git(dir, &["init", "-q"]);
    for setting in [["core.untrackedCache", "true"], ["index.version", version], ["index.threads", "2"]] {
        git(dir, &["config", setting[0], setting[1]]);
    }
    for name in ["a", "sub/b", "sub/deep/c c", "ä"] {
        std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        std::fs::write(dir.join(name), name).unwrap();
    }
    git(dir, &["add", "-A"]);
    std::fs::write(dir.join("untracked"), "").unwrap();
    git(dir, &["status"]);
}

fn read(file: &Path) -> Result<Option<IndexEnd>> {
    IndexEnd::read_from(&File::open(file).unwrap(), file)
}

fn relocated(file: &Path, way: (&Path, &Path), known: Option<IndexEnd>) -> Result<bool> {
    let opened = File::options().read(true).write(true).open(file).unwrap();
    relocate(&opened, file, way, known)
}

fn with_room(tree: &Path) -> Result<bool> {
    let git = GitDir::tree(tree).unwrap().unwrap().below(Path::new(".git")).unwrap().unwrap();
    make_room(&git, tree)
}

#[test]
fn a_moved_index_is_as_git_writes_it() {
    for version in ["2", "3", "4"] {
        let above = tempfile::tempdir().unwrap();
        let (old, new) = (above.path().join("old"), above.path().join("a new and longer place"));
        repository(&old, version);
        let file = old.join(".git/index");
        let before = std::fs::read(&file).unwrap();
        let (offset, extensions) = parse(&before).unwrap();
        assert!(extensions.iter().any(|(signature, _)| *signature == UNTRACKED), "{version}");
        let known = read(&file).unwrap();
        assert!(known.as_ref().unwrap().lacks_room());
        assert!(relocated(&file, (&old, &new), known).unwrap());
        assert!(!relocated(&file, (&old, &new), None).unwrap(), "it is no longer at the old place");
        let after = std::fs::read(&file).unwrap();
        assert_eq!(after[..offset], before[..offset]);
        std::fs::rename(&old, &new).unwrap();
        // Git checks the sums, and has no reason to warn of the cache.
        git(&new, &["fsck", "--strict"]);
        let out = Command::new("git").arg("-C").arg(&new).args(["status", "--short"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{version}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("?? untracked"), "{version}");
        // Back, and there again: the same bytes.
        let file = new.join(".git/index");
        std::fs::write(&file, &after).unwrap();
        assert!(relocated(&file, (&new, &old), None).unwrap());
        assert_ne!(std::fs::read(&file).unwrap(), after, "{version}");
        assert!(relocated(&file, (&old, &new), None).unwrap());
        assert_eq!(std::fs::read(&file).unwrap(), after, "{version}");
    }
}

#[test]
fn with_room_for_it_another_place_changes_few_bytes() {
    let above = tempfile::tempdir().unwrap();
    let (old, new) = (above.path().join("old"), above.path().join("a new and longer place"));
    repository(&old, "2");
    let file = old.join(".git/index");
    let modified = file.metadata().unwrap().modified().unwrap();
    assert!(with_room(&old).unwrap());
    assert!(!with_room(&old).unwrap(), "there is room already");
    assert_eq!(file.metadata().unwrap().modified().unwrap(), modified);
    let before = std::fs::read(&file).unwrap();
    // Git leaves the room when it writes an index.
    std::fs::write(old.join("later"), "").unwrap();
    git(&old, &["add", "later"]);
    git(&old, &["fsck", "--strict"]);
    git(&old, &["status"]);
    assert!(!read(&file).unwrap().unwrap().lacks_room());
    std::fs::write(&file, &before).unwrap();
    assert!(relocated(&file, (&old, &new), None).unwrap());
    let after = std::fs::read(&file).unwrap();
    assert_eq!(after.len(), before.len());
    let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(changed < new.as_os_str().len() + HASH_BYTES + 20, "{changed} bytes changed");
}

#[test]
fn a_locked_index_is_left_alone() {
    let above = tempfile::tempdir().unwrap();
    let old = above.path().join("old");
    repository(&old, "2");
    let (file, lock) = (old.join(".git/index"), old.join(".git/index.lock"));
    std::fs::write(&lock, "git is at work").unwrap();
    assert!(!with_room(&old).unwrap());
    assert_eq!(std::fs::read(&lock).unwrap(), b"git is at work");
    std::fs::remove_file(&lock).unwrap();
    // What is not understood stays, and the lock does not.
    std::fs::write(&file, "no index").unwrap();
    assert!(!with_room(&old).unwrap());
    assert!(!lock.exists());
}

/// Makes an index without entries, with one extension that is a hole of so many bytes.
fn write_index_with_hole(file: &Path, hole: u32) {
    let head = [*b"DIRC", 2u32.to_be_bytes(), [0; 4], *b"HOLE", hole.to_be_bytes()].concat();
    std::fs::write(file, &head).unwrap();
    let opened = File::options().write(true).open(file).unwrap();
    opened.set_len((head.len() + HASH_BYTES) as u64 + u64::from(hole)).unwrap();
}

#[test]
fn an_index_that_is_too_large_to_be_read_is_left_alone() {
    let above = tempfile::tempdir().unwrap();
    let old = above.path().join("old");
    repository(&old, "2");
    let file = old.join(".git/index");
    write_index_with_hole(&file, 100);
    assert!(read(&file).unwrap().is_some(), "an index with a hole is one");
    for hole in [MAX_BYTES as u32, u32::MAX] {
        write_index_with_hole(&file, hole);
        let length = file.metadata().unwrap().len();
        assert!(read(&file).unwrap().is_none(), "{length} bytes");
        assert!(!relocated(&file, (&old, Path::new("/new")), None).unwrap(), "{length} bytes");
        assert!(!with_room(&old).unwrap(), "{length} bytes");
        assert_eq!(file.metadata().unwrap().len(), length);
        assert!(!old.join(".git/index.lock").exists());
    }
}

#[test]
fn what_is_known_of_another_index_is_not_used() {
    let above = tempfile::tempdir().unwrap();
    let (old, new) = (above.path().join("old"), above.path().join("new"));
    repository(&old, "2");
    let file = old.join(".git/index");
    let known = read(&file).unwrap();
    std::fs::write(old.join("later"), "").unwrap();
    git(&old, &["add", "later"]);
    assert!(relocated(&file, (&old, &new), known).unwrap());
    std::fs::rename(&old, &new).unwrap();
    git(&new, &["fsck", "--strict"]);
    assert!(git(&new, &["status", "--short"]).contains("A  later"));
}

#[test]
fn damage_is_left_alone() {
    let above = tempfile::tempdir().unwrap();
    let old = above.path().join("old");
    repository(&old, "2");
    let index = std::fs::read(old.join(".git/index")).unwrap();
    let look = |index: &[u8]| {
        if let Some(end) = IndexEnd::of(index, (0, 0)) {
            let _ = end.relocated(&old, Path::new("/new"));
            let _ = end.fsmonitor_token();
        }
    };
    for length in 0..index.len() {
        look(&index[..length]);
    }
    for at in 0..index.len() {
        let mut damaged = index.clone();
        damaged[at] ^= 0xff;
        look(&damaged);
    }
    assert_eq!(IndexEnd::of(&index, (0, 0)).unwrap().fsmonitor_token(), None);
    let hook = "f() { printf 'my token\\0/\\0'; }; f";
    for setting in [["core.fsmonitor", hook], ["core.fsmonitorHookVersion", "2"]] {
        git(&old, &["config", setting[0], setting[1]]);
    }
    git(&old, &["status"]);
    let index = std::fs::read(old.join(".git/index")).unwrap();
    assert_eq!(IndexEnd::of(&index, (0, 0)).unwrap().fsmonitor_token(), Some(&b"my token"[..]));
}

#[test]
fn sums_are_those_of_the_whole() {
    let index: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
    for offset in [0, 1, 55, 56, 63, 64, 65, 500, 512] {
        for length in [0, 1, 55, 56, 63, 64, 300] {
            let (before, rest) = index.split_at(offset / SUM_BLOCK * SUM_BLOCK);
            let mut state = EMPTY_SUM;
            for block in before.chunks_exact(SUM_BLOCK) {
                sha1::compress(&mut state, std::slice::from_ref(GenericArray::from_slice(block)));
            }
            let end = IndexEnd { offset, bytes: rest.to_vec(), state, modified: (0, 0) };
            let whole = Sha1::digest([&index[..offset], &index[..length]].concat());
            assert_eq!(end.sum_with(&index[..length]), whole[..], "{offset} {length}");
        }
    }
}

#[test]
fn what_is_kept_of_an_index_is_good_for_no_other() {
    // Beside the build: /tmp may be a file system without attributes of users.
    let build = std::env::current_exe().unwrap();
    let above = tempfile::tempdir_in(build.parent().unwrap()).unwrap();
    let old = above.path().join("old");
    repository(&old, "2");
    let file = old.join(".git/index");
    let offset = read(&file).unwrap().unwrap().offset;
    let opened = File::open(&file).unwrap();
    let modified = |file: &File| file.metadata().map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
    let kept = fgetxattr(&opened, ENTRIES_XATTR, &mut [0u8; 64][..]);
    assert!(kept.is_ok(), "{}: the file system of the build keeps no attributes: {kept:?}", file.display());
    assert_eq!(known_entries(&opened, modified(&opened)).map(|known| known.0), Some(offset));
    // Read again, with what is kept.
    let again = read(&file).unwrap().unwrap();
    assert_eq!(again.relocated(&old, Path::new("/new")), {
        IndexEnd::of(&std::fs::read(&file).unwrap(), (0, 0)).unwrap().relocated(&old, Path::new("/new"))
    });
    opened.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(known_entries(&opened, modified(&opened)), None);
    // Git writes a new file.
    std::fs::write(old.join("new"), "new").unwrap();
    git(&old, &["add", "new"]);
    let opened = File::open(&file).unwrap();
    assert_eq!(known_entries(&opened, modified(&opened)), None);
    assert_ne!(read(&file).unwrap().unwrap().offset, offset);
}
