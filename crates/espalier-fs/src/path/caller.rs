//! Path callers: on whose behalf calls by path are made, and from where paths begin.

use crate::file_system::FileSystem;
use crate::model::access::Credentials;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::*;
use crate::namespace::prefix_cache::{Generation, KnownCredentials};
use crate::path::place::{Hold, OpenSnapshots, PathPlace, PathVolume, PlaceAddress};
use crate::path::resolver::{Ending, Last, Resolved, Resolver, Want};
use espalier_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Sets of credentials that have a number at a time.
const MAX_CREDENTIALS: usize = 4096;

/// A file system whose calls take paths.
///
/// ```
/// # use espalier_fs::*;
/// # use espalier_engine::Store;
/// # use std::sync::Arc;
/// # let env = Arc::new(espalier_storage::SystemEnvironment::new(1));
/// # let device = Arc::new(espalier_storage::MemoryDevice::new(64 << 20));
/// # Store::format(device.clone(), env.clone(), &Default::default()).unwrap();
/// # let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
/// # let store = Store::open(device, env.clone(), options).unwrap();
/// # FileSystem::format(&store, &FormatOptions::default()).unwrap();
/// # let fs = FileSystem::open(store, env, OpenOptions::default()).unwrap();
/// let paths = Paths::new(fs).unwrap();
/// let root = paths.caller(Credentials::default());
/// root.mkdir("/home", 0o755).unwrap();
/// let file = root.open("/home/notes", &Open::create(0o644)).unwrap();
/// file.write_at(0, b"a line\n").unwrap();
/// assert_eq!(root.stat("/home/../home/notes", Links::Follow).unwrap().size, 7);
/// assert_eq!(root.read("/home/notes").unwrap(), b"a line\n");
/// ```
pub struct Paths {
    root: PathPlace,
    pub(crate) snapshots: OpenSnapshots,
    known: Mutex<CredentialTable>,
}

#[derive(Default)]
struct CredentialTable {
    numbers: HashMap<Arc<Credentials>, u64>,
    last: u64,
}

/// Rules beyond permissions by which Linux guards users from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// In a directory with the sticky bit that all may write to, a link at the end of a path is
    /// followed only if it is the caller's, or the directory's owner's (`fs.protected_symlinks`).
    pub guard_symlinks: bool,
    /// Only the owner gives a further name to a file that the caller could not read and write, or
    /// that has set-id bits (`fs.protected_hardlinks`).
    pub guard_hard_links: bool,
    /// In a directory with the sticky bit that all may write to (1), or also its group (2), a file
    /// that belongs neither to the caller nor to the directory's owner is not opened by a call that
    /// could have made it (`fs.protected_regular`); 0: it is.
    pub guard_files: u8,
    /// The same for named pipes (`fs.protected_fifos`).
    pub guard_pipes: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Self { guard_symlinks: true, guard_hard_links: true, guard_files: 1, guard_pipes: 1 }
    }
}

/// On whose behalf calls by path are made: like a process, it has credentials, a root directory, a
/// working directory and a umask. `docs/design/paths.md` says how paths are resolved.
///
/// The calls give the results and errors of Linux on a mount; each docstring names what is special.
/// All of them fail with [`FsErrorKind::NotFound`], [`FsErrorKind::NotDirectory`],
/// [`FsErrorKind::AccessDenied`], [`FsErrorKind::Loop`] or [`FsErrorKind::NameTooLong`] if the path
/// does not resolve, with [`FsErrorKind::Invalid`] for a path with a NUL, and with the errors of
/// the store.
///
/// ```
/// # use espalier_fs::*;
/// # use espalier_engine::Store;
/// # use std::sync::Arc;
/// # let env = Arc::new(espalier_storage::SystemEnvironment::new(1));
/// # let device = Arc::new(espalier_storage::MemoryDevice::new(64 << 20));
/// # Store::format(device.clone(), env.clone(), &Default::default()).unwrap();
/// # let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
/// # let store = Store::open(device, env.clone(), options).unwrap();
/// # FileSystem::format(&store, &FormatOptions::default()).unwrap();
/// # let fs = FileSystem::open(store, env, OpenOptions::default()).unwrap();
/// let root = Paths::new(fs).unwrap().caller(Credentials::default());
/// let file = |path, content| WriteRequest {
///     at: At::from(path),
///     content: Content::Data(content),
///     attributes: NewAttributes { mode: Some(0o600), ..Default::default() },
/// };
/// // Many files with one call; missing directories are made.
/// let files = [file("/data/one", b"1"), file("/data/two", b"22")];
/// root.write_many(&files, WriteHow::default(), &mut |batch| batch.result.is_ok());
/// // Whole trees in one step each, and everything below a directory as one stream.
/// root.clone_tree("/data", "/copy").unwrap();
/// let mut found = Vec::new();
/// root.walk("/copy", &Filter::default(), &mut |entry| {
///     found.push((entry.path.to_vec(), entry.attr.size));
///     true
/// })
/// .unwrap();
/// assert_eq!(found, [(b"one".to_vec(), 1), (b"two".to_vec(), 2)]);
/// // Rights are those of the caller.
/// let other = root.with_credentials(Credentials { uid: 1000, gid: 1000, groups: vec![] });
/// assert_eq!(other.read("/data/one").unwrap_err().kind(), FsErrorKind::AccessDenied);
/// ```
#[derive(Clone)]
pub struct PathCaller {
    pub(crate) paths: Arc<Paths>,
    pub(crate) known: KnownCredentials,
    root: PathPlace,
    working: PathPlace,
    umask: u32,
    pub(crate) policy: Policy,
}

/// A path, and where it begins if it does not begin with a slash.
#[derive(Clone, Copy)]
pub struct At<'a> {
    base: Option<&'a PathPlace>,
    pub(crate) path: &'a [u8],
    /// What is meant is where the path begins (`AT_EMPTY_PATH`).
    is_itself: bool,
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// It is followed.
    Follow,
    /// The call is on the link (`AT_SYMLINK_NOFOLLOW`). Links before the end are followed, and one
    /// before a slash.
    Stay,
}

impl<'a> At<'a> {
    pub(crate) fn below(base: &'a PathPlace, path: &'a [u8]) -> Self {
        Self { base: Some(base), path, is_itself: false }
    }

    pub(crate) fn itself(base: &'a PathPlace) -> Self {
        Self { base: Some(base), path: b"", is_itself: true }
    }

    /// The first `end` bytes of the path.
    pub(crate) fn up_to(self, end: usize) -> Self {
        Self { path: &self.path[..end], ..self }
    }

    /// True if both begin at the same directory, or begin with a slash.
    pub(crate) fn is_beside(&self, other: &At<'_>) -> bool {
        self.beginning() == other.beginning()
    }

    /// Names where the path begins among those that are in use; `None`: with a slash.
    pub(crate) fn beginning(&self) -> Option<PlaceAddress> {
        self.base.filter(|_| self.path.first() != Some(&b'/')).map(PathPlace::address)
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for At<'a> {
    fn from(path: &'a T) -> Self {
        Self { base: None, path: path.as_ref(), is_itself: false }
    }
}

impl Paths {
    /// Makes the calls of `fs` available by path.
    ///
    /// # Errors
    /// Of the store.
    pub fn new(fs: Arc<FileSystem>) -> Result<Arc<Self>> {
        let root = PathVolume::live(fs).root()?;
        Ok(Arc::new(Self { root, snapshots: OpenSnapshots::default(), known: Mutex::default() }))
    }

    /// A caller with these credentials, whose root and working directory are the root of the
    /// volume, with a umask of 0 and the default policy.
    pub fn caller(self: &Arc<Self>, credentials: Credentials) -> PathCaller {
        PathCaller {
            known: self.known.lock().number(credentials),
            root: self.root.clone(),
            working: self.root.clone(),
            umask: 0,
            policy: Policy::default(),
            paths: self.clone(),
        }
    }

    /// A caller with these credentials whose root and working directory are the directory of the
    /// live volume that a mount knows as `node`: no path of it leads out, and absolute links lead
    /// there.
    ///
    /// # Errors
    /// [`FsErrorKind::Stale`] if the node is not in use, [`FsErrorKind::NotDirectory`];
    /// [`FsErrorKind::AccessDenied`] if the caller may not search the directory.
    pub fn caller_in(self: &Arc<Self>, credentials: Credentials, node: NodeId) -> Result<PathCaller> {
        let PathPlace::Node(Hold { volume, .. }) = &self.root else {
            return fail(FsErrorKind::Invalid, "the root of a volume is a directory");
        };
        let held = Hold::held(volume, node)?;
        let mut caller = self.caller(credentials);
        (caller.root, caller.working) = (held.clone(), held);
        caller.working = caller.directory(At::itself(&caller.working))?;
        Ok(caller)
    }
}

impl CredentialTable {
    fn number(&mut self, credentials: Credentials) -> KnownCredentials {
        if let Some((credentials, number)) = self.numbers.get_key_value(&credentials) {
            return KnownCredentials { credentials: credentials.clone(), number: *number };
        }
        if self.numbers.len() >= MAX_CREDENTIALS {
            self.numbers.clear();
        }
        self.last += 1;
        let credentials = Arc::new(credentials);
        self.numbers.insert(credentials.clone(), self.last);
        KnownCredentials { credentials, number: self.last }
    }
}

impl PathCaller {
    /// The same caller with another umask, which holds for what it makes where the directory has no
    /// default access control list.
    #[must_use]
    pub fn with_umask(mut self, umask: u32) -> Self {
        self.umask = umask & 0o777;
        self
    }

    /// The same caller under another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The same caller with another working directory, which needs search permission (`chdir`).
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`], [`FsErrorKind::AccessDenied`].
    pub fn in_directory<'a>(mut self, path: impl Into<At<'a>>) -> Result<Self> {
        self.working = self.directory(path.into())?;
        Ok(self)
    }

    /// The same caller with this root and working directory (`chroot` and `chdir`): no path of it
    /// leads out, and absolute links lead there.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] unless the caller is root; as for [`PathCaller::in_directory`].
    pub fn in_root<'a>(mut self, path: impl Into<At<'a>>) -> Result<Self> {
        let directory = self.directory(path.into())?;
        if !self.credentials().is_privileged() {
            return fail(FsErrorKind::Permission, "only root changes the root directory");
        }
        (self.root, self.working) = (directory.clone(), directory);
        Ok(self)
    }

    /// The same root and working directory for other credentials, as when a process sets its user.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.known = self.paths.known.lock().number(credentials);
        self
    }

    /// Whose rights count.
    pub fn credentials(&self) -> &Credentials {
        &self.known.credentials
    }

    /// What becomes the owner of what the caller makes.
    pub(crate) fn owner(&self) -> Caller {
        Caller { uid: self.credentials().uid, gid: self.credentials().gid, pid: 0, umask: self.umask }
    }

    /// What its rights on directories depend on, and where these lie. Those of snapshots stay.
    pub(crate) fn generation(&self) -> Generation {
        let (PathPlace::Node(top) | PathPlace::Snapshots(top)) = &self.paths.root;
        Generation::of(&top.node, top.fs().names.tree.epoch())
    }

    fn directory(&self, at: At<'_>) -> Result<PathPlace> {
        let place = self.object(at, Links::Follow)?;
        if !place.is_directory() {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        place.check_search(self.credentials())?;
        Ok(place)
    }

    pub(crate) fn resolve(&self, at: At<'_>, want: Want) -> Result<Resolved> {
        let start = at.base.unwrap_or(&self.working);
        if at.is_itself {
            return Ok(Resolved::new(start.clone(), Ending::Object(Last::Here)));
        }
        let guard_links = self.policy.guard_symlinks;
        Resolver::new(&self.known, &self.root, &self.paths.snapshots, guard_links)
            .resolve(start, at.path, want)
    }

    /// What a path names.
    pub(crate) fn object(&self, at: At<'_>, links: Links) -> Result<PathPlace> {
        let want = Want::Object { follow: links == Links::Follow };
        Ok(self.resolve(at, want)?.place)
    }

    /// The directory of a path, and what the path ends with: its last name, and whether a slash
    /// follows.
    pub(crate) fn name(&self, at: At<'_>) -> Result<(PathPlace, Last, bool)> {
        let Resolved { place, end, .. } = self.resolve(at, Want::Name)?;
        match end {
            Ending::Name(last, is_slash) => Ok((place, last, is_slash)),
            Ending::Object(last) => Ok((place, last, false)),
        }
    }
}
