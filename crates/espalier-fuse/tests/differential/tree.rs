//! A whole tree, read by ordinary calls, and compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What a path shows, in words that are the same on every good file system.
pub(crate) type Tree = BTreeMap<String, String>;

pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    visit(root, root, &mut tree);
    tree
}

fn visit(root: &Path, path: &Path, tree: &mut Tree) {
    let meta = fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let mut words = format!("mode {:o} uid {} gid {}", meta.mode(), meta.uid(), meta.gid());
    if !kind.is_dir() {
        words += &format!(" links {} size {}", meta.nlink(), meta.size());
    }
    if kind.is_file() {
        let content = fs::read(path).unwrap();
        assert_eq!(content.len() as u64, meta.size(), "{}", path.display());
        words += &format!(" content {:016x}", hash(&content));
    } else if kind.is_symlink() {
        words += &format!(" to {}", fs::read_link(path).unwrap().display());
    } else if kind.is_char_device() || kind.is_block_device() {
        words += &format!(" device {:x}", meta.rdev());
    }
    for (name, value) in xattrs(path) {
        words += &format!(" {name}={value:x?}");
    }
    tree.insert(path.strip_prefix(root).unwrap().display().to_string(), words);
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().file_type(), entry.file_type().unwrap());
            visit(root, &entry.path(), tree);
        }
    }
}

/// The user's extended attributes of `path` itself, sorted.
fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut buffer = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut buffer[..]).unwrap();
    let names: Vec<_> =
        buffer[..length].split(|&b| b == 0).filter(|name| name.starts_with(b"user.")).collect();
    let value = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    names.iter().map(|name| (String::from_utf8_lossy(name).into_owned(), value(name))).collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

pub(crate) fn assert_same(left: &Tree, right: &Tree, explain: impl Fn() -> String) {
    if left == right {
        return;
    }
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differing: Vec<_> = paths
        .into_iter()
        .filter(|path| left.get(*path) != right.get(*path))
        .map(|path| format!("{path}\n  {:?}\n  {:?}", left.get(path), right.get(path)))
        .collect();
    panic!("trees differ: {}\n{}", explain(), differing.join("\n"));
}
