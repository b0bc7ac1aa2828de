//! The tree that paths are asked of, made by the library: links, owners, modes, lists, sticky and
//! set-id bits, files with several names, and snapshots.

use crate::random::Random;
use espalier_fs::{
    Caller, Credentials, FileSystem, Links, NewNode, NodeId, OwnerChange, PathCaller, Paths, XattrMode,
};
use std::sync::Arc;

/// The users that ask.
pub(crate) fn users() -> [Credentials; 4] {
    let user = |uid, gid, groups: &[u32]| Credentials { uid, gid, groups: groups.to_vec() };
    [user(0, 0, &[]), user(1000, 100, &[200]), user(1001, 200, &[]), user(1002, 300, &[100, 200])]
}

const NAMES: [&str; 12] =
    ["a", "b", "c", "dir", "file", "link", "x", "y.txt", "\u{1}\u{2}", ".hidden", "zz", "ü"];
const DIRECTORY_MODES: [u32; 20] = [
    0o755, 0o755, 0o755, 0o755, 0o755, 0o777, 0o777, 0o777, 0o777, 0o777, 0o777, 0o777, 0o700, 0o711, 0o750,
    0o070, 0o1777, 0o1777, 0o2777, 0o007,
];
const FILE_MODES: [u32; 8] = [0o644, 0o600, 0o640, 0o666, 0o4755, 0o2755, 0o060, 0o006];

/// A name, from a small set, so that names meet.
pub(crate) fn name(random: &mut Random) -> String {
    random.of(&NAMES).to_owned()
}

/// A mode for a directory.
pub(crate) fn directory_mode(random: &mut Random) -> u32 {
    random.of(&DIRECTORY_MODES)
}

/// A mode for a file.
pub(crate) fn file_mode(random: &mut Random) -> u32 {
    random.of(&FILE_MODES)
}

/// An owner and a group.
pub(crate) fn owner(random: &mut Random) -> (u32, u32) {
    (random.of(&[0, 1000, 1001, 1002]), random.of(&[0, 100, 200, 300]))
}

/// An access control list, in the form of its extended attribute.
pub(crate) fn list(random: &mut Random) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, id: u32, random: &mut Random| {
        value.extend(tag.to_le_bytes());
        value.extend((random.below(8) as u16).to_le_bytes());
        value.extend(id.to_le_bytes());
    };
    entry(1, !0, random);
    entry(2, random.of(&[1000, 1001]), random);
    entry(4, !0, random);
    entry(8, random.of(&[100, 200]), random);
    entry(16, !0, random);
    entry(32, !0, random);
    value
}

/// Makes the tree of `random` in an empty file system; returns paths in it, and some that lead
/// through snapshots.
pub(crate) fn make(fs: &Arc<FileSystem>, random: &mut Random) -> Vec<String> {
    let paths = Paths::new(fs.clone()).unwrap();
    let root = paths.caller(Credentials::default());
    let mut world = World { root, random, directories: vec![String::new()], all: vec!["/".into()] };
    world.root.chmod("/", 0o777, Links::Follow).unwrap();
    (0..150).for_each(|_| world.add());
    let mut snapshots = Vec::new();
    fs.snapshot("whole", false).unwrap();
    let inside: Vec<String> = world.all.clone();
    snapshots.extend(inside.iter().step_by(4).map(|path| format!("/.snapshots/whole{path}")));
    for n in 0..3 {
        let directory = world.directory();
        let Some(node) = node_of(fs, &directory) else { continue };
        if fs.snapshot_tree(node, &format!("s{n}"), false, &Caller::default()).is_ok()
            && !directory.is_empty()
        {
            snapshots.push(format!("{directory}/.snapshots"));
            let below = inside.iter().filter_map(|path| path.strip_prefix(&directory));
            let below = below.filter(|path| path.is_empty() || path.starts_with('/'));
            snapshots.extend(below.map(|path| format!("{directory}/.snapshots/s{n}{path}")));
        }
    }
    snapshots.push("/.snapshots".into());
    (0..50).for_each(|_| world.add());
    let mut all = std::mem::take(&mut world.all);
    all.extend(snapshots);
    all
}

fn node_of(fs: &FileSystem, path: &str) -> Option<NodeId> {
    let names = path.split('/').filter(|name| !name.is_empty());
    let mut at = NodeId::ROOT;
    for name in names {
        at = fs.lookup(at, name.as_bytes()).ok()?.node;
    }
    Some(at)
}

struct World<'r> {
    root: PathCaller,
    random: &'r mut Random,
    directories: Vec<String>,
    all: Vec<String>,
}

impl World<'_> {
    fn directory(&mut self) -> String {
        let count = self.directories.len() as u64;
        let mut one = || self.directories[self.random.below(count) as usize].clone();
        // Rather a short path than a long one.
        [one(), one(), one()].into_iter().min_by_key(|path| path.matches('/').count()).unwrap()
    }

    fn known(&mut self) -> String {
        self.all[self.random.below(self.all.len() as u64) as usize].clone()
    }

    /// The target of a link: a path in the tree, near or far, or one that leads nowhere.
    fn target(&mut self) -> String {
        match self.random.below(7) {
            0 | 1 => self.known(),
            2 => format!("../{}", name(self.random)),
            3 => name(self.random),
            4 => format!("{}/../{}", name(self.random), name(self.random)),
            5 => format!("./{}/", name(self.random)),
            _ => format!("..{}", self.known()),
        }
    }

    fn add(&mut self) {
        let directory = self.directory();
        let path = format!("{directory}/{}", name(self.random));
        if path == "/.snapshots" || self.root.stat(&path, Links::Stay).is_ok() {
            return;
        }
        let made = match self.random.below(16) {
            0..=8 => self.root.mkdir(&path, 0o755),
            9..=11 => {
                let target = self.target();
                self.root.symlink(target.as_bytes(), &path)
            }
            12 => self.root.mknod(&path, NewNode::Fifo, 0o644),
            13 => {
                let old = self.known();
                self.root.link(&old, &path, Links::Stay)
            }
            _ => self.root.mknod(&path, NewNode::Regular, 0o644),
        };
        if made.is_err() {
            return;
        }
        self.dress(&path);
        self.all.push(path);
    }

    fn dress(&mut self, path: &str) {
        let (uid, gid) = owner(self.random);
        let change = OwnerChange { uid: Some(uid), gid: Some(gid) };
        self.root.chown(path, change, Links::Stay).unwrap();
        let kind = self.root.stat(path, Links::Stay).unwrap().kind;
        if kind == espalier_fs::FileKind::Directory {
            self.directories.push(path.into());
        }
        if kind == espalier_fs::FileKind::Symlink {
            return;
        }
        let mode = match kind {
            espalier_fs::FileKind::Directory => directory_mode(self.random),
            _ => file_mode(self.random),
        };
        self.root.chmod(path, mode, Links::Stay).unwrap();
        if self.random.one_in(8) {
            let value = list(self.random);
            let name = b"system.posix_acl_access";
            self.root.set_xattr(path, name, &value, XattrMode::Set, Links::Stay).unwrap();
        }
        if self.random.one_in(6) && kind == espalier_fs::FileKind::Regular {
            self.root.open(path, &espalier_fs::Open::write()).unwrap().write_at(0, path.as_bytes()).unwrap();
            self.root.set_xattr(path, b"user.n", b"v", XattrMode::Set, Links::Stay).unwrap();
            self.root.set_xattr(path, b"trusted.n", b"v", XattrMode::Set, Links::Stay).unwrap();
        }
        if self.random.one_in(8) && kind == espalier_fs::FileKind::Directory {
            let value = list(self.random);
            let name = b"system.posix_acl_default";
            self.root.set_xattr(path, name, &value, XattrMode::Set, Links::Stay).unwrap();
        }
    }
}
