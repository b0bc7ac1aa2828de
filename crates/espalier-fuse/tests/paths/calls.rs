//! Calls by path, and the users and paths that make them.

use crate::random::Random;
use crate::world;

/// A path, and the directory where it begins if it has no slash in front: one of
/// [`BASES`], or the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base: Option<usize>,
    pub(crate) path: Vec<u8>,
}

/// Names of directories that are opened before any call.
pub(crate) const BASES: [&str; 4] = ["/a", "/b", "/dir", "/c"];

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) write: bool,
    pub(crate) create: Option<u32>,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) directory: bool,
    pub(crate) stay: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Stat(bool),
    Access(u32),
    ReadLink,
    /// Opens, and reads what is there: content or entries.
    Open(Opening),
    GetXattr(&'static str, bool),
    ListXattr(bool),
    /// Lists a tree with attributes.
    Walk,
    MakeDirectory(u32),
    MakeNode(bool, u32),
    Symlink(Vec<u8>),
    Link(Place, bool),
    Unlink,
    RemoveDirectory,
    Rename(Place, u32),
    Mode(u32),
    Owner(Option<u32>, Option<u32>, bool),
    Truncate(u64),
    /// Time of the last read and of the last change: now, or at a second.
    Times([Option<Option<i64>>; 2], bool),
    SetXattr(&'static str, Vec<u8>, u32, bool),
    RemoveXattr(&'static str, bool),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Which of [`world::users`].
    pub(crate) user: usize,
    pub(crate) place: Place,
    pub(crate) what: What,
}

/// Calls that a seed decides.
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) steps: usize,
    /// They change something.
    pub(crate) changes: bool,
    /// Paths of the tree.
    pub(crate) paths: Vec<String>,
}

impl Script {
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut random = Random::new(self.seed ^ 0x5eed);
        let mut one = || match self.changes {
            true => Call::change(&mut random, &self.paths),
            false => Call::question(&mut random, &self.paths),
        };
        (0..self.steps).map(|_| one()).collect()
    }

    /// What another process needs to make the same calls.
    pub(crate) fn encode(&self) -> String {
        format!("{} {} {}\n{}", self.seed, self.steps, self.changes, self.paths.join("\n"))
    }

    pub(crate) fn decode(text: &str) -> Self {
        let mut lines = text.split('\n');
        let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (seed, steps) = (number(0), number(1) as usize);
        Self { seed, steps, changes: words[2] == "true", paths: lines.map(str::to_owned).collect() }
    }
}

const XATTRS: [&str; 6] =
    ["user.n", "user.m", "trusted.n", "security.test", "system.posix_acl_access", "system.posix_acl_default"];

impl Call {
    /// A call that changes nothing.
    pub(crate) fn question(random: &mut Random, paths: &[String]) -> Self {
        let follow = !random.one_in(3);
        let reading = Opening {
            write: false,
            create: None,
            exclusive: false,
            truncate: false,
            directory: random.one_in(4),
            stay: !follow,
        };
        let what = match random.below(12) {
            0..=4 => What::Stat(follow),
            5 | 6 => What::Access(random.below(8) as u32),
            7 => What::ReadLink,
            8 | 9 => What::Open(reading),
            10 => What::GetXattr(random.of(&XATTRS), follow),
            _ => What::ListXattr(follow),
        };
        let mut call = Self::by(random, paths, what);
        // Which of several snapshots a walk would be of is not said.
        if random.one_in(30) && !String::from_utf8_lossy(&call.place.path).contains(".snapshots") {
            call.what = What::Walk;
        }
        call
    }

    fn by(random: &mut Random, paths: &[String], what: What) -> Self {
        let mut place = place(random, paths);
        let takes_handle = !matches!(
            what,
            What::GetXattr(..)
                | What::ListXattr(..)
                | What::SetXattr(..)
                | What::RemoveXattr(..)
                | What::Truncate(..)
        );
        place.base = place.base.filter(|_| takes_handle);
        Self { user: random.of(&[0, 0, 0, 1, 2, 3]), place, what }
    }

    /// A call that changes something, or one that looks.
    pub(crate) fn change(random: &mut Random, paths: &[String]) -> Self {
        if random.one_in(5) {
            return Self::question(random, paths);
        }
        let follow = !random.one_in(3);
        let what = match random.below(24) {
            0..=2 => What::MakeDirectory(world::directory_mode(random)),
            3 => What::MakeNode(random.one_in(2), world::file_mode(random)),
            4 | 5 => What::Symlink(place(random, paths).path),
            6 | 7 => What::Link(place(random, paths), follow),
            8 | 9 => What::Unlink,
            10 | 11 => What::RemoveDirectory,
            12..=14 => What::Rename(place(random, paths), random.of(&[0, 0, 0, 1, 2])),
            15 => What::Mode(match random.one_in(2) {
                true => world::file_mode(random),
                false => world::directory_mode(random),
            }),
            16 => {
                let (uid, gid) = world::owner(random);
                let one = random.below(3);
                What::Owner((one != 0).then_some(uid), (one != 1).then_some(gid), follow)
            }
            17 => What::Truncate(random.of(&[0, 1, 5000])),
            18 => {
                let mut time = || random.of(&[None, Some(None), Some(Some(1_000_000_000))]);
                let times = [time(), time()];
                What::Times(times, follow)
            }
            19 | 20 => {
                let name = random.of(&XATTRS);
                let value = if name.starts_with("system") { world::list(random) } else { b"value".to_vec() };
                What::SetXattr(name, value, random.of(&[0, 0, 1, 2]), follow)
            }
            21 => What::RemoveXattr(random.of(&XATTRS), follow),
            _ => What::Open(Opening {
                write: random.one_in(2),
                create: random.one_in(2).then(|| world::file_mode(random)),
                exclusive: random.one_in(3),
                truncate: random.one_in(3),
                directory: random.one_in(8),
                stay: random.one_in(4),
            }),
        };
        Self::by(random, paths, what)
    }
}

/// A path in the tree, or near it, written in one of many ways.
fn place(random: &mut Random, paths: &[String]) -> Place {
    let known = |random: &mut Random| paths[random.below(paths.len() as u64) as usize].as_str();
    let mut path = String::new();
    for part in known(random).split('/').filter(|part| !part.is_empty()) {
        path += random.of(&["/", "/", "/", "/", "/", "/", "//", "/./"]);
        match random.below(200) {
            0 => path += "../",
            1 => path += &format!("{part}/../"),
            2 => path += &format!("{}/", world::name(random)),
            3 => continue,
            _ => {}
        }
        path += part;
    }
    for _ in 0..random.below(5) / 3 {
        path += &match random.below(9) {
            0 => "/..".to_owned(),
            1 => "/.".into(),
            2 => format!("/../{}", world::name(random)),
            3 => known(random).into(),
            4 => format!("/{}", "n".repeat(random.of(&[255, 256, 300]))),
            5 => "/".into(),
            6 => "/.snapshots".into(),
            _ => format!("/{}", world::name(random)),
        };
    }
    if random.one_in(12) {
        path += random.of(&["/", "/.", "//", "/..", "/./"]);
    }
    if random.one_in(60) {
        path.clear();
    } else if path.is_empty() {
        path += "/";
    }
    let base = random.one_in(5).then(|| random.below(BASES.len() as u64) as usize);
    if base.is_some() || random.one_in(4) {
        path = path.trim_start_matches('/').to_owned();
    }
    Place { base, path: path.into_bytes() }
}
