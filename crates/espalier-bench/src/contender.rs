//! A file system on a loop device of its own.

use crate::system::{self, Undo};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The contender that is the other build.
pub(crate) const BEFORE: &str = "espalier@before";

/// The contender that says what any server can reach at most.
pub(crate) const BOUND: &str = "bound";

/// True for the contender that is [`BOUND`], with options or without.
pub(crate) fn is_bound(name: &str) -> bool {
    name.split('+').next() == Some(BOUND)
}

/// The kinds of file system that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Espalier {
        program: PathBuf,
        cache: u64,
    },
    /// A server that does only what none can do without, and cannot read what it wrote.
    Bound {
        program: PathBuf,
    },
}

/// What a device and a server have done.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Counts {
    /// Bytes written to the device.
    pub(crate) written: u64,
    /// Reads of the device.
    pub(crate) reads: u64,
    /// Bytes read from the device.
    pub(crate) read: u64,
    /// Requests of the kernel by kind; empty if there is no server, or one that does not count.
    pub(crate) requests: BTreeMap<String, u64>,
}

impl Counts {
    /// What was done since `before`, on the same mount.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let gone = |kind: &str| before.requests.get(kind).copied().unwrap_or(0);
        let more = self.requests.iter().map(|(kind, now)| (kind.clone(), now.saturating_sub(gone(kind))));
        Self {
            written: self.written - before.written,
            reads: self.reads - before.reads,
            read: self.read - before.read,
            requests: more.filter(|(_, number)| *number > 0).collect(),
        }
    }
}

/// How contenders are made.
pub(crate) struct Setup<'a> {
    /// Where images and mount points lie.
    pub(crate) dir: &'a Path,
    /// Size of each loop device, in bytes.
    pub(crate) device_size: u64,
    /// A device for all of them, one after the other, in place of loop devices.
    pub(crate) device: Option<&'a Path>,
    /// The espalier program, and another build of it.
    pub(crate) espalier: &'a Path,
    pub(crate) before: Option<&'a Path>,
    /// The program that is the bound.
    pub(crate) bound: Option<&'a Path>,
    /// Espalier's memory budget, in bytes.
    pub(crate) cache: u64,
    /// Files and directories that have to have room; 0: as many as each file system has room for.
    pub(crate) entries: u64,
}

/// One contender: its name in the tables, its device, its mount point.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    kind: Kind,
    mount_options: Vec<String>,
    device: PathBuf,
    /// The number of inodes of ext4, where it would choose too few.
    inodes: Option<u64>,
    /// The server that is the bound, while it lives.
    server: Option<Server>,
}

/// A process that says when it has mounted, and when it has been unmounted.
struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// The bytes for which mkfs.ext4 makes an inode unless it is told otherwise.
const EXT4_BYTES_PER_INODE: u64 = 16 << 10;

/// How many inodes ext4 has to be given, if so many entries find no room by its own choice.
fn inodes_for(setup: &Setup<'_>) -> Option<u64> {
    let wanted = setup.entries + setup.entries / 8;
    (wanted > setup.device_size / EXT4_BYTES_PER_INODE).then_some(wanted)
}

impl Server {
    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.split_whitespace().next() == Some(word), "the server that is the bound has not {word}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends when there is nothing more to read.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

impl Contender {
    /// Makes the backing file and the loop device, if it is to have some; `undo` takes them down
    /// again.
    pub(crate) fn new(name: &str, setup: &Setup<'_>, undo: &Undo) -> Result<Self> {
        let mut words = name.split('+').map(str::to_owned);
        let kind = match words.next().as_deref() {
            Some("ext4") => Kind::Ext4,
            Some("xfs") => Kind::Xfs,
            Some("btrfs") => Kind::Btrfs,
            Some("espalier") => {
                Kind::Espalier { program: std::path::absolute(setup.espalier)?, cache: setup.cache }
            }
            Some(BEFORE) => {
                let program = setup.before;
                let program =
                    program.with_context(|| format!("{BEFORE} is the program that --before names"))?;
                Kind::Espalier { program: std::path::absolute(program)?, cache: setup.cache }
            }
            Some(BOUND) => {
                let program = setup.bound;
                let program =
                    program.with_context(|| format!("{BOUND} is the program that --bound names"))?;
                Kind::Bound { program: std::path::absolute(program)? }
            }
            _ => {
                bail!("'{name}' is no contender; there are ext4, xfs, btrfs, espalier, {BEFORE} and {BOUND}")
            }
        };
        if let Kind::Espalier { program, .. } | Kind::Bound { program } = &kind {
            ensure!(
                program.exists(),
                "there is no program {}; name one with --espalier, --before or --bound",
                program.display()
            );
        }
        let base = std::path::absolute(setup.dir)?;
        let dir = base.join("mnt").join(name);
        std::fs::create_dir_all(&dir)?;
        let mount_options = words.collect();
        let device = match setup.device {
            Some(device) => device.to_owned(),
            None => loop_device(&base.join(format!("{name}.img")), setup.device_size, undo)?,
        };
        let inodes = inodes_for(setup);
        let contender = Self { name: name.into(), dir, kind, mount_options, device, inodes, server: None };
        undo.push({
            let (dir, device) = (contender.dir.clone(), contender.device.clone());
            move || take_down(&dir, &device)
        });
        Ok(contender)
    }

    /// Makes a fresh file system.
    pub(crate) fn make(&mut self) -> Result<()> {
        let device = self.device.as_os_str();
        let word = OsStr::new;
        match &self.kind {
            Kind::Ext4 => {
                let lazy = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                let inodes = self.inodes.map(|inodes| ["-N".to_owned(), inodes.to_string()]);
                let mut words = vec![word("-q"), word("-F"), word("-E"), word(lazy)];
                words.extend(inodes.iter().flatten().map(|text| word(text)));
                words.push(device);
                system::run("mkfs.ext4", &words)?
            }
            Kind::Xfs => system::run("mkfs.xfs", &[word("-q"), word("-f"), word("-K"), device])?,
            Kind::Btrfs => system::run("mkfs.btrfs", &[word("-q"), word("-f"), word("-K"), device])?,
            Kind::Espalier { program, .. } => system::run(program, &[word("mkfs"), word("--force"), device])?,
            Kind::Bound { .. } => {
                self.server = None;
                String::new()
            }
        };
        Ok(())
    }

    /// Mounts; returns the seconds it took.
    pub(crate) fn mount(&mut self) -> Result<f64> {
        let started = Instant::now();
        let joined = self.mount_options.join(",");
        let mut arguments = vec![self.device.as_os_str(), self.dir.as_os_str()];
        if !joined.is_empty() {
            arguments.extend([OsStr::new("-o"), OsStr::new(&joined)]);
        }
        match &self.kind {
            Kind::Espalier { program, cache } => {
                let cache = cache.to_string();
                arguments.insert(0, OsStr::new("mount"));
                arguments.extend([OsStr::new("--cache"), OsStr::new(&cache)]);
                system::run(program, &arguments)?;
            }
            Kind::Bound { program } => match &mut self.server {
                Some(server) => {
                    let input = server.process.stdin.as_mut().context("no pipe")?;
                    input.write_all(b"again\n")?;
                    server.expect("mounted")?;
                }
                none => {
                    let mut command = Command::new(program);
                    // The directory comes first here; the options are the rest.
                    command.args([self.dir.as_os_str(), self.device.as_os_str()]).args(&arguments[2..]);
                    command.stdin(Stdio::piped()).stdout(Stdio::piped());
                    let mut process =
                        command.spawn().with_context(|| format!("{} cannot be run", program.display()))?;
                    let output = BufReader::new(process.stdout.take().context("no pipe")?);
                    none.insert(Server { process, output }).expect("mounted")?;
                }
            },
            kind => {
                let name = match kind {
                    Kind::Ext4 => "ext4",
                    Kind::Xfs => "xfs",
                    _ => "btrfs",
                };
                arguments.extend([OsStr::new("-t"), OsStr::new(name)]);
                system::run("mount", &arguments)?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Unmounts and waits until everything is durable.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        let umount = |contender: &Self| match &contender.kind {
            Kind::Espalier { program, .. } => {
                system::run(program, &[OsStr::new("umount"), contender.dir.as_os_str()])
            }
            _ => system::run("umount", &[contender.dir.as_os_str()]),
        };
        // A program that looks at all mounts, as `df` does, holds each for a moment.
        let mut outcome = umount(self);
        for _ in 0..50 {
            match &outcome {
                Err(error) if error.to_string().contains("busy") => {
                    std::thread::sleep(Duration::from_millis(100));
                    outcome = umount(self);
                }
                _ => break,
            }
        }
        outcome?;
        self.server.as_mut().map_or(Ok(()), |server| server.expect("unmounted"))
    }

    /// The server process, for a contender that has one.
    pub(crate) fn daemon(&self) -> Result<Option<i32>> {
        let Kind::Espalier { program, .. } = &self.kind else { return Ok(None) };
        let text = system::run(program, &[OsStr::new("info"), OsStr::new("--json"), self.dir.as_os_str()])?;
        let info: serde_json::Value = serde_json::from_str(&text).context("espalier info --json")?;
        let pid = info["mount"]["pid"].as_i64().context("espalier info names no process")?;
        Ok(Some(i32::try_from(pid)?))
    }

    /// The most memory the server ever held, in bytes; 0 for the kernel's file systems.
    pub(crate) fn peak_resident(&self) -> Result<u64> {
        Ok(self.memory("VmHWM:")?.unwrap_or(0))
    }

    /// The memory that the server holds now, in bytes; `None` for the kernel's file systems.
    pub(crate) fn resident(&self) -> Result<Option<u64>> {
        self.memory("VmRSS:")
    }

    /// A line of the server's `/proc/PID/status`, in bytes.
    fn memory(&self, name: &str) -> Result<Option<u64>> {
        let Some(pid) = self.daemon()? else { return Ok(None) };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|l| l.strip_prefix(name)).context("no such line in the status")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(Some(kib << 10))
    }

    /// Kills the server as a crash would and takes the dead mount down. False if there is none.
    pub(crate) fn kill(&mut self) -> Result<bool> {
        let Some(pid) = self.daemon()? else { return Ok(false) };
        let pid = rustix::process::Pid::from_raw(pid).context("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while rustix::process::test_kill_process(pid).is_ok() {
            ensure!(Instant::now() < deadline, "the server does not die");
            std::thread::sleep(Duration::from_millis(5));
        }
        system::run("umount", &[OsStr::new("-l"), self.dir.as_os_str()])?;
        Ok(true)
    }

    /// Runs `espalier` with these arguments; `None` for the kernel's file systems.
    pub(crate) fn espalier<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Option<String>> {
        let Kind::Espalier { program, .. } = &self.kind else { return Ok(None) };
        system::run(program, arguments).map(Some)
    }

    /// The espalier program; `None` for the kernel's file systems.
    pub(crate) fn program(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Espalier { program, .. } => Some(program),
            _ => None,
        }
    }

    /// The device on which it lies.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    /// True if it has subvolumes, of which snapshots can be made.
    pub(crate) fn has_subvolumes(&self) -> bool {
        matches!(self.kind, Kind::Btrfs)
    }

    /// Adds a mount option, for the mounts to come.
    pub(crate) fn add_option(&mut self, option: &str) {
        self.mount_options.push(option.into());
    }

    /// Changes Espalier's memory budget, in bytes, for the mounts to come.
    pub(crate) fn set_cache(&mut self, bytes: u64) {
        if let Kind::Espalier { cache, .. } = &mut self.kind {
            *cache = bytes;
        }
    }

    /// True if it keeps what is written: the bound cannot read what it was given.
    pub(crate) fn keeps_data(&self) -> bool {
        !matches!(self.kind, Kind::Bound { .. })
    }

    /// True for Espalier.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Espalier { .. })
    }

    /// True if `cp --reflink=always` works.
    pub(crate) fn has_reflinks(&self) -> bool {
        matches!(self.kind, Kind::Xfs | Kind::Btrfs)
    }

    /// Unmounts, drops every cache and mounts again.
    pub(crate) fn remount_cold(&mut self) -> Result<f64> {
        self.unmount()?;
        system::drop_caches()?;
        self.mount()
    }

    /// Bytes in use as `df` tells them.
    pub(crate) fn used_bytes(&self) -> Result<u64> {
        let told = rustix::fs::statvfs(&self.dir)?;
        Ok((told.f_blocks - told.f_bfree) * told.f_frsize)
    }

    /// Bytes written to the device since it was made.
    pub(crate) fn written_bytes(&self) -> Result<u64> {
        Ok(self.device_count(6)? * 512)
    }

    /// What the device and the server have done since they are there.
    pub(crate) fn counts(&self) -> Result<Counts> {
        Ok(Counts {
            written: self.written_bytes()?,
            reads: self.device_count(0)?,
            read: self.device_count(2)? * 512,
            requests: self.requests()?,
        })
    }

    /// A field of the device's statistics, counted from 0 (Documentation/block/stat.rst).
    fn device_count(&self, field: usize) -> Result<u64> {
        let path = self.sysfs("stat");
        let text = std::fs::read_to_string(&path)?;
        let text = text.split_whitespace().nth(field);
        Ok(text.with_context(|| format!("{} has too few fields", path.display()))?.parse()?)
    }

    /// The requests that the kernel made since the mount, by kind; none for its own file systems,
    /// and for a build that is older than `espalier stat`.
    fn requests(&self) -> Result<BTreeMap<String, u64>> {
        let Kind::Espalier { program, .. } = &self.kind else { return Ok(BTreeMap::new()) };
        if Command::new(program).args(["stat", "--help"]).output()?.status.code() == Some(2) {
            return Ok(BTreeMap::new());
        }
        let asked = self.espalier(&[OsStr::new("stat"), OsStr::new("--json"), self.dir.as_os_str()])?;
        let Some(text) = asked else { return Ok(BTreeMap::new()) };
        let told: serde_json::Value = serde_json::from_str(&text).context("espalier stat --json")?;
        let kinds = told["kinds"].as_array().context("espalier stat names no kinds")?;
        let of = |kind: &serde_json::Value| Some((kind["kind"].as_str()?.into(), kind["requests"].as_u64()?));
        kinds.iter().map(|kind| of(kind).context("a kind of espalier stat has no name or number")).collect()
    }

    fn sysfs(&self, leaf: &str) -> PathBuf {
        let name = self.device.file_name().unwrap_or_default();
        Path::new("/sys/class/block").join(name).join(leaf)
    }
}

/// Unmounts whatever is left, as gently as it lets us.
fn take_down(dir: &Path, device: &Path) {
    for attempt in 0..50 {
        if !system::is_mounted(dir) {
            break;
        }
        let arguments: &[&OsStr] =
            if attempt < 40 { &[dir.as_os_str()] } else { &[OsStr::new("-l"), dir.as_os_str()] };
        let _ = system::run("umount", arguments);
        std::thread::sleep(Duration::from_millis(100));
    }
    // A plain umount does not wait for a FUSE server: give it time to let go of the device.
    for _ in 0..100 {
        let open = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
        if open.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A loop device on a file of its own.
fn loop_device(image: &Path, size: u64, undo: &Undo) -> Result<PathBuf> {
    undo.push({
        let image = image.to_owned();
        move || drop(std::fs::remove_file(image))
    });
    fill(image, size)?;
    let device = attach(image)?;
    undo.push({
        let device = device.clone();
        move || drop(system::run("losetup", &[OsStr::new("-d"), device.as_os_str()]))
    });
    // Discards would punch holes into the backing file, for some and not for others.
    let name = device.file_name().unwrap_or_default();
    let limit = Path::new("/sys/class/block").join(name).join("queue/discard_max_bytes");
    std::fs::write(&limit, "0").with_context(|| format!("{} cannot be written", limit.display()))?;
    Ok(device)
}

/// Writes the backing file once, so that no step pays for allocating it.
fn fill(image: &Path, size: u64) -> Result<()> {
    eprintln!("writing {} ({} MiB)", image.display(), size >> 20);
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(image)?;
    let chunk = vec![0u8; 4 << 20];
    let mut left = size;
    while left > 0 {
        let now = left.min(chunk.len() as u64);
        file.write_all(&chunk[..now as usize])
            .with_context(|| format!("{} cannot be filled; is the disk full?", image.display()))?;
        left -= now;
    }
    file.sync_all()?;
    Ok(())
}

fn attach(image: &Path) -> Result<PathBuf> {
    let words = ["--direct-io=on", "--show", "--find"].map(OsStr::new);
    let shown = system::run("losetup", &[words[0], words[1], words[2], image.as_os_str()])?;
    let device = PathBuf::from(shown.trim());
    let state = system::run("losetup", &[OsStr::new("-nO"), OsStr::new("DIO"), device.as_os_str()])?;
    ensure!(state.trim() == "1", "{} does not do direct I/O on {}", device.display(), image.display());
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_has_an_inode_for_each_entry() {
        let setup = |device_size, entries| Setup {
            dir: Path::new("."),
            device_size,
            device: None,
            espalier: Path::new("."),
            before: None,
            bound: None,
            cache: 0,
            entries,
        };
        assert_eq!(inodes_for(&setup(10 << 30, 0)), None);
        assert_eq!(inodes_for(&setup(2 << 30, 30_000)), None);
        assert_eq!(inodes_for(&setup(10 << 30, 1_002_032)), Some(1_127_286));
        assert_eq!(inodes_for(&setup(20 << 30, 1_002_032)), None);
    }
}
