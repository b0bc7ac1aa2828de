//! An image, a mount point and the program, for tests of the command line. A test that cannot mount
//! fails.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test file uses a part of it")]

pub mod pool;
pub mod traced;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a killed server may take to go before its connection is ended.
const PATIENCE_WITH_THE_DYING: Duration = Duration::from_secs(20);

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Fails the test unless the command succeeded; gives its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Fails the test unless the command failed with `code`, one message, and every word of `words`
    /// in it.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let said = format!("{}{}", self.stdout, self.stderr);
        for word in words {
            assert!(said.contains(word), "'{word}' is not in the message: {self:?}");
        }
        assert!(!said.contains("panicked"), "{self:?}");
    }
}

impl From<Output> for Ran {
    fn from(out: Output) -> Self {
        Self {
            code: out.status.code(),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }
}

/// Runs the espalier program.
pub fn espalier<A: AsRef<OsStr>>(arguments: &[A]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(arguments).stdin(Stdio::null()).output().expect("the program runs").into()
}

/// A program, run by a user: by that of the test, or by one without groups.
pub fn as_user(user: Option<u32>, program: impl AsRef<OsStr>) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(program);
    command
}

/// Runs another program, which must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let out = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{shown}: {e}"));
    assert!(
        out.status.success(),
        "{shown}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A directory of its own with room for an image and a mount point; unmounted at the end whatever
/// happens.
pub struct Place {
    pub base: TempDir,
    pub image: PathBuf,
    pub dir: PathBuf,
}

impl Place {
    /// An empty place. It lies beside the build, not in /tmp, which may not do direct I/O.
    pub fn new() -> Self {
        let base = tempfile::Builder::new().prefix("cli-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, dir) = (base.path().join("a.img"), base.path().join("mnt"));
        fs::create_dir(&dir).unwrap();
        Self { base, image, dir }
    }

    /// A place with a file system of `size`.
    pub fn with_image(size: &str) -> Self {
        let place = Self::new();
        place.mkfs(&["--size", size]).ok();
        place
    }

    /// A place with a file system of `size`, mounted.
    pub fn mounted(size: &str) -> Self {
        let place = Self::with_image(size);
        place.mount(&[]).ok();
        place
    }

    pub fn mkfs(&self, options: &[&str]) -> Ran {
        let mut words: Vec<&OsStr> = vec!["mkfs".as_ref()];
        words.extend(options.iter().map(OsStr::new));
        words.push(self.image.as_ref());
        espalier(&words)
    }

    pub fn mount(&self, options: &[&str]) -> Ran {
        let mut words: Vec<&OsStr> = vec!["mount".as_ref(), self.image.as_ref(), self.dir.as_ref()];
        words.extend(["--cache", "256M"].map(OsStr::new));
        words.extend(options.iter().map(OsStr::new));
        espalier(&words)
    }

    pub fn umount(&self) -> Ran {
        espalier(&["umount".as_ref(), self.dir.as_os_str()])
    }

    pub fn fsck(&self) -> Ran {
        espalier(&["fsck".as_ref(), self.image.as_os_str()])
    }

    /// Unmounts, checks, and mounts again.
    #[track_caller]
    pub fn remount(&self) {
        self.umount().ok();
        self.fsck().ok();
        self.mount(&[]).ok();
    }

    /// Checks, and mounts again what is not mounted.
    #[track_caller]
    pub fn remount_after_nothing(&self) {
        self.fsck().ok();
        self.mount(&[]).ok();
    }

    /// The server's process id.
    #[track_caller]
    pub fn server(&self) -> i32 {
        let text = espalier(&["info".as_ref(), "--json".as_ref(), self.dir.as_os_str()]).ok();
        let info: serde_json::Value = serde_json::from_str(&text).expect("info prints JSON");
        info["mount"]["pid"].as_i64().expect("info names the process") as i32
    }

    /// Kills the server as a crash would, waits until it is gone, and takes the dead mount down.
    #[track_caller]
    pub fn kill_server(&self) {
        self.kill_process(self.server());
        self.take_down();
    }

    /// Kills a process, and waits until it is gone.
    #[track_caller]
    pub fn kill_process(&self, pid: i32) {
        run(Command::new("kill").args(["-KILL", &pid.to_string()]));
        let mut patience = Instant::now() + PATIENCE_WITH_THE_DYING;
        while Path::new(&format!("/proc/{pid}")).exists() {
            if Instant::now() > patience {
                self.end_connection();
                patience += PATIENCE_WITH_THE_DYING;
            }
            std::thread::yield_now();
        }
    }

    /// Ends the connection of the mount, for which nothing in the mount is asked. A server that
    /// was killed may wait in the kernel for a lock of a program that waits for the server.
    #[track_caller]
    fn end_connection(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let dir = self.dir.to_string_lossy();
        let of_mount = |line: &str| {
            let mut fields = line.split(' ').skip(2);
            let device = fields.next()?;
            (fields.nth(1)? == dir).then(|| device.strip_prefix("0:").map(str::to_owned))?
        };
        let Some(number) = mounts.lines().find_map(of_mount) else { return };
        let connections = Path::new("/sys/fs/fuse/connections");
        if !connections.join(&number).exists() {
            run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(connections));
        }
        fs::write(connections.join(number).join("abort"), "1").unwrap();
    }

    /// Takes the mount of a server down that was killed.
    #[track_caller]
    pub fn take_down(&self) {
        // What the kernel has cached still answers; this is never cached.
        assert!(rustix::fs::statfs(&self.dir).is_err(), "a dead server answers");
        // What still works in the mount ends with errors, sooner or later.
        while self.umount().code != Some(0) {
            std::thread::yield_now();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_mounted = || {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let dir = self.dir.to_string_lossy();
            mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*dir))
        };
        if is_mounted() {
            let _ = self.umount();
            let lazy = espalier(&["umount".as_ref(), "--lazy".as_ref(), self.dir.as_os_str()]);
            if is_mounted() && !std::thread::panicking() {
                panic!("{} stays mounted: {lazy:?}", self.dir.display());
            }
        }
    }
}

/// Lets every user into a place; what was changed for that.
pub fn open_way_to(place: &Place) -> Vec<(PathBuf, u32)> {
    let mut up = place.base.path().to_owned();
    let mut opened = Vec::new();
    while let Ok(metadata) = fs::metadata(&up) {
        let mode = metadata.permissions().mode();
        if mode & 0o001 == 0 {
            fs::set_permissions(&up, fs::Permissions::from_mode(mode | 0o011)).unwrap();
            opened.push((up.clone(), mode));
        }
        if !up.pop() {
            break;
        }
    }
    opened
}

/// Takes back what [`open_way_to`] changed.
pub fn close_way(opened: Vec<(PathBuf, u32)>) {
    for (path, mode) in opened {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// A loop device on an image; detached at the end whatever happens.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn on(image: &Path) -> Self {
        Self(run(Command::new("losetup").args(["--find", "--show"]).arg(image)).trim().into())
    }

    /// Mounts it.
    pub fn mount(&self, dir: &Path, options: &[&str]) -> Ran {
        let words = ["mount".as_ref(), self.0.as_os_str(), dir.as_os_str()];
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        espalier(&[&words[..], &options[..]].concat())
    }

    /// Says that the image has grown.
    pub fn follow(&self) {
        run(Command::new("losetup").arg("--set-capacity").arg(&self.0));
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// All bytes of a file, to see later that nothing changed them.
pub fn content(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// Overwrites bytes of a file.
pub fn poke(path: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// A small reproducible generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(length).collect()
    }
}

/// Fills `root` with a tree of directories, files of all sizes, links and odd names.
pub fn make_tree(root: &Path, seed: u64, files: usize) {
    let mut random = Random(seed);
    let mut dirs = vec![root.to_owned()];
    fs::create_dir_all(root).unwrap();
    for number in 0..files {
        let parent = dirs[random.below(dirs.len() as u64) as usize].clone();
        let odd = ["", " with blanks", "-ünïcödé", "\u{1}\u{2}", ".", "\\"][random.below(6) as usize];
        let path = parent.join(format!("n{number}{odd}"));
        match random.below(10) {
            0 | 1 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path);
            }
            2 => std::os::unix::fs::symlink(format!("../somewhere/{number}"), &path).unwrap(),
            3 => {
                // A hole, and something behind it.
                let file = fs::File::create(&path).unwrap();
                file.write_all_at(&random.bytes(100), random.below(1 << 20)).unwrap();
            }
            _ => {
                let length = [0, 1, 200, 4096, 5000, 70_000, 300_000][random.below(7) as usize];
                fs::write(&path, random.bytes(length)).unwrap();
                if random.below(8) == 0 {
                    fs::hard_link(&path, parent.join(format!("l{number}"))).unwrap();
                }
            }
        }
    }
}

/// Compares two trees by content and attributes with rsync, which lists what differs.
#[track_caller]
pub fn assert_same_tree(a: &Path, b: &Path) {
    let options = ["-aHAXSnic", "--delete", "--no-inc-recursive"];
    // A directory's time changes while the tree is made; its entries are what counts.
    let differences = run(Command::new("rsync").args(options).arg("-O").arg(a.join(".")).arg(b.join(".")));
    assert_eq!(differences, "", "{} and {} differ", a.display(), b.display());
}
