//! An image that is open: its lock, its store, its file system, and the thread that makes it
//! durable every few seconds, as the server of a mount does.

use crate::error::{Error, Result};
use espalier_engine::Store;
use espalier_fs::{Credentials, FileSystem, Open, PathCaller, Paths};
use espalier_storage::{Environment, FileDevice, FileOptions, OpenMode, SystemEnvironment};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Background threads of a store.
const THREADS: usize = 2;
/// How often what was done becomes durable by itself.
const TICK_INTERVAL: Duration = Duration::from_secs(5);

/// With whose rights the calls on an image are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owner {
    /// Those of this process: its effective user and group, and its groups, as on a mount.
    #[default]
    Process,
    /// Those of root: a program that may write an image may do anything in it.
    Root,
}

/// How an image that is not mounted is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageOptions {
    /// To read only. Several processes may read an image at the same time; one that writes has it
    /// alone.
    pub read_only: bool,
    /// Memory of the store, bytes.
    pub memory_bytes: u64,
    /// Whose rights count.
    pub owner: Owner,
    /// How long another process that has the image open is waited for, as a server that is just
    /// ending.
    pub wait: Duration,
}

impl Default for ImageOptions {
    fn default() -> Self {
        let (memory_bytes, wait) = (256 << 20, Duration::from_secs(5));
        Self { read_only: false, memory_bytes, owner: Owner::Process, wait }
    }
}

/// Makes an empty file system in a new image file (or an empty one) of `bytes` bytes, whose root
/// directory belongs to this process's user.
///
/// # Errors
/// EEXIST if a file with content, or something that is no file, has the path; ENOSPC if `bytes` are
/// too few; EIO.
pub fn format_image(path: impl AsRef<Path>, bytes: u64) -> Result<()> {
    let path = path.as_ref();
    if path.symlink_metadata().is_ok_and(|found| !found.is_file() || found.len() > 0) {
        return Err(Error::new(libc::EEXIST, "something is there already, and was left as it is"));
    }
    let device = Arc::new(FileDevice::create(path, bytes)?);
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(THREADS));
    Store::format(device.clone(), environment.clone(), &espalier_engine::FormatOptions::default())?;
    let merge = espalier_fs::merge_functions();
    let options = espalier_engine::OpenOptions { merge, ..Default::default() };
    let store = Store::open(device, environment.clone(), options)?;
    let root = espalier_fs::FormatOptions {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        now: i64::try_from(environment.now().as_nanos()).unwrap_or_default(),
        ..Default::default()
    };
    FileSystem::format(&store, &root)?;
    Ok(store.close()?)
}

/// An image that is open. Dropping it closes it; [`Opened::close`] says whether all was stored.
pub(crate) struct Opened {
    /// `None` after [`Opened::close`].
    using: Option<Using>,
}

struct Using {
    fs: Arc<FileSystem>,
    store: Arc<Store>,
    caller: PathCaller,
    /// Of an image that may be changed.
    ticker: Option<Ticker>,
}

/// The thread that makes the image durable, until it is told to stop.
struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Opened {
    /// Opens an image; paths begin at `inside`, a directory in it.
    ///
    /// # Errors
    /// ENOENT, EACCES; EBUSY if another process has it open, as the server of a mount has; EIO if
    /// it is no image or a damaged one; of the path.
    pub(crate) fn open(path: &Path, inside: &[u8], options: &ImageOptions) -> Result<Self> {
        let read_only = options.read_only;
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device = FileDevice::open_with(path, &FileOptions::new(mode).wait(options.wait));
        let device = device.map_err(|error| match error.kind {
            espalier_storage::ErrorKind::Busy => {
                let message = "another process has this image open; name a directory of its mount";
                Error::new(libc::EBUSY, message)
            }
            _ => error.into(),
        })?;
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(THREADS));
        let opening = espalier_engine::OpenOptions {
            memory: options.memory_bytes,
            read_only,
            merge: espalier_fs::merge_functions(),
            ..Default::default()
        };
        let store = Store::open(Arc::new(device), environment.clone(), opening)?;
        let opening = espalier_fs::OpenOptions { read_only, ..Default::default() };
        let fs = FileSystem::open(store.clone(), environment, opening)?;
        let root = Paths::new(fs.clone())?.caller(Credentials::default());
        let root = root.with_umask(espalier_client::current_umask()).in_root(inside)?;
        let caller = match options.owner {
            Owner::Process => root.with_credentials(of_process()?),
            Owner::Root => root,
        };
        let ticker = if read_only { None } else { Some(Ticker::start(fs.clone())?) };
        Ok(Self { using: Some(Using { fs, store, caller, ticker }) })
    }

    fn using(&self) -> Result<&Using> {
        self.using.as_ref().ok_or_else(|| Error::new(libc::EBADF, "the image was closed"))
    }

    /// The file system.
    ///
    /// # Errors
    /// EBADF after the image was closed.
    pub(crate) fn fs(&self) -> Result<&Arc<FileSystem>> {
        Ok(&self.using()?.fs)
    }

    /// On whose behalf calls are made, and from where paths begin.
    ///
    /// # Errors
    /// EBADF after the image was closed.
    pub(crate) fn caller(&self) -> Result<&PathCaller> {
        Ok(&self.using()?.caller)
    }

    /// The same caller with its paths beginning at a directory, which it may list and search, as it
    /// needs to begin there on a mount.
    ///
    /// # Errors
    /// Those of `open` and `chdir`; EBADF after the image was closed.
    pub(crate) fn caller_in(&self, caller: &PathCaller, path: &[u8]) -> Result<PathCaller> {
        self.using()?;
        let directory = caller.open(path, &Open { directory: true, ..Open::read() })?;
        let credentials = caller.credentials().clone();
        let searching = caller.clone().in_directory(directory.itself())?;
        // Where paths begin is no right: what the caller may do there is judged by its own.
        let root = searching.with_credentials(Credentials::default()).in_root(directory.itself())?;
        Ok(root.with_credentials(credentials))
    }

    /// Makes everything durable and lets go of the image, which stays locked while files and walks
    /// of it are used. The second time it does nothing.
    ///
    /// # Errors
    /// EIO if the device fails: what was not synced before may be lost.
    pub(crate) fn close(&mut self) -> Result<()> {
        let Some(Using { fs, store, caller, ticker }) = self.using.take() else { return Ok(()) };
        drop(caller);
        if let Some(ticker) = ticker {
            ticker.stop();
            fs.close()?;
        }
        Ok(store.close()?)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A caller that wants to know has closed it; recovery finds what was synced.
        let _ = self.close();
    }
}

impl Ticker {
    fn start(fs: Arc<FileSystem>) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let told = stop.clone();
        let body = move || {
            let (stopped, changed) = &*told;
            let mut state = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            while !*state {
                let waited = changed.wait_timeout(state, TICK_INTERVAL);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if *state {
                    return;
                }
                drop(state);
                // A failure latches in the store: the next change and the closing report it.
                let _ = fs.background_tick();
                state = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            }
        };
        let thread = std::thread::Builder::new().name("espalier-tick".into()).spawn(body)?;
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        // A panic there has been reported by the panic itself.
        let _ = self.thread.join();
    }
}

/// The rights that this process has over files.
fn of_process() -> Result<Credentials> {
    let groups = rustix::process::getgroups().map_err(std::io::Error::from)?;
    Ok(Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    })
}
