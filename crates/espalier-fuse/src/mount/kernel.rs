//! Mounting and unmounting by the kernel's own calls, and by `fusermount3` for users that may not
//! make them.

use super::error::MountError;
use super::options::MountOptions;
use crate::transport::Device;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

const HELPER_PROGRAM: &str = "fusermount3";
const SUBTYPE: &str = "espalier";

/// Exists while SELinux is active.
const SELINUX_PATH: &str = "/sys/fs/selinux/enforce";

/// `MS_NOSYMFOLLOW` of Linux 5.10.
const MS_NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// A mount that is not served yet.
pub(super) struct Mounted {
    pub(super) device: Device,
    /// Unmounts if this process dies (`auto_unmount`).
    pub(super) watcher: Option<Watcher>,
    /// The mount is a `fuseblk`.
    pub(super) block: bool,
}

/// Mounts: by the system call, or by the helper if this process may not make it.
pub(super) fn mount(point: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let mut mounted = match mount_directly(point, options) {
        Err(MountError::Refused { source, .. }) if is_permission_denied(&source) => {
            mount_by_helper(point, options)
        }
        Err(MountError::NoFuse { source }) if is_permission_denied(&source) => {
            mount_by_helper(point, options)
        }
        result => result,
    }?;
    if options.auto_unmount {
        match Watcher::start(point) {
            Ok(watcher) => mounted.watcher = Some(watcher),
            Err(source) => {
                // The error says it all; the mount must not stay.
                let _ = unmount(point, true);
                return Err(MountError::NoHelper { source });
            }
        }
    }
    Ok(mounted)
}

/// A process that unmounts when this one dies, however it dies.
///
/// The helper has an option for that, but it tries first whether the mount can be opened, and here
/// that needs no server.
pub(super) struct Watcher {
    /// Open while this process lives.
    pipe: ChildStdin,
    process: Child,
}

impl Watcher {
    /// Watches the mount at `point`.
    pub(super) fn start(point: &Path) -> io::Result<Self> {
        // Ends when it reads a line; at the end of file it looks whether the mount is dead, and
        // takes it down.
        const SCRIPT: &str = "read -r _ && exit 0
            stat -f -- \"$1\" >/dev/null 2>&1 && exit 0
            umount -l -- \"$1\" 2>/dev/null || exec fusermount3 -u -z -- \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "espalier-watcher"]).arg(point);
        // Signals of the terminal are not for it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.current_dir("/").spawn()?;
        let pipe = process.stdin.take().ok_or_else(|| io::Error::other("a watcher without a pipe"))?;
        Ok(Self { pipe, process })
    }
}

impl Drop for Watcher {
    /// The mount has ended in order: there is nothing to watch.
    fn drop(&mut self) {
        // A watcher that is gone already is as good.
        let _ = self.pipe.write_all(b"done\n");
        let _ = self.process.wait();
    }
}

fn is_permission_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// True if this process may mount as it likes.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mount_directly(point: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let refused = |source: io::Error| MountError::Refused { point: point.to_owned(), source };
    let no_fuse = |source| MountError::NoFuse { source };
    let mut device = Device::open().map_err(no_fuse)?;
    if options.block_device && is_root() {
        match mount_call(&device, point, options, true) {
            Ok(()) => return Ok(Mounted { device, watcher: None, block: true }),
            Err(error) => tracing::debug!(%error, "no fuseblk: mounting as plain FUSE"),
        }
        // The failed mount may have taken the device.
        device = Device::open().map_err(no_fuse)?;
    }
    mount_call(&device, point, options, false).map_err(refused)?;
    Ok(Mounted { device, watcher: None, block: false })
}

/// The system call.
fn mount_call(device: &Device, point: &Path, options: &MountOptions, block: bool) -> io::Result<()> {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.raw(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.allow_other.unwrap_or_else(is_root) {
        data.push_str(",allow_other");
    }
    if block {
        data.push_str(",blksize=4096");
    }
    // Where SELinux is not active the kernel knows none of its options; mount(8) drops them then.
    for option in options.security.iter().filter(|_| Path::new(SELINUX_PATH).exists()) {
        data.push(',');
        data.push_str(option);
    }
    let kind = if block { "fuseblk" } else { "fuse" };
    let flags = mount_flags(options);
    let data = CString::new(data)?;
    rustix::mount::mount(&*options.source, point, format!("{kind}.{SUBTYPE}"), flags, &*data)?;
    Ok(())
}

/// The flags of the mount(2) call that the options ask for.
fn mount_flags(options: &MountOptions) -> MountFlags {
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (options.no_suid, MountFlags::NOSUID),
        (options.no_dev, MountFlags::NODEV),
        (options.no_exec, MountFlags::NOEXEC),
        (options.synchronous, MountFlags::SYNCHRONOUS),
        (options.directory_synchronous, MountFlags::DIRSYNC),
        (options.no_sym_follow, MS_NOSYMFOLLOW),
    ];
    flags.iter().filter(|(set, _)| *set).fold(MountFlags::empty(), |all, (_, flag)| all | *flag)
}

/// Changes the flags of a mount that exists to those that the options ask for, as `mount -o
/// remount` does. The server is not asked.
pub(super) fn remount(point: &Path, options: &MountOptions) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(point, mount_flags(options), c"")?)
}

/// Makes the mount at `from` appear at `to` as well, with the flags that the options ask for.
pub(super) fn bind(from: &Path, to: &Path, options: &MountOptions) -> io::Result<()> {
    rustix::mount::mount_bind(from, to)?;
    let flags = mount_flags(options) & per_mount_flags();
    if flags.is_empty() {
        return Ok(());
    }
    let bound = rustix::mount::mount_remount(to, flags | MountFlags::BIND, c"");
    bound.inspect_err(|_| {
        // The first error is the one that matters; the mount must not stay without its flags.
        let _ = unmount(to, true);
    })?;
    Ok(())
}

/// Flags that the kernel keeps for each place where a file system appears.
fn per_mount_flags() -> MountFlags {
    MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MS_NOSYMFOLLOW
}

/// Mounts through `fusermount3`, which opens the device, mounts, and passes the descriptor over a
/// socket whose number it finds in its environment. The socket is its standard input, so that
/// nothing else is inherited.
fn mount_by_helper(point: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let no_helper = |source| MountError::NoHelper { source };
    let (ours, theirs) = UnixStream::pair().map_err(no_helper)?;
    let mut helper = Command::new(HELPER_PROGRAM)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(point)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    let received = receive(&ours);
    let failed = |helper: &mut std::process::Child| {
        let mut said = String::new();
        if let Some(stderr) = &mut helper.stderr {
            // What cannot be read is left out of a message.
            let _ = stderr.read_to_string(&mut said);
        }
        let _ = helper.wait();
        MountError::Helper { point: point.to_owned(), said: said.trim().to_owned() }
    };
    let Some(descriptor) = received.map_err(no_helper)? else { return Err(failed(&mut helper)) };
    if !helper.wait().map_err(no_helper)?.success() {
        return Err(failed(&mut helper));
    }
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC).map_err(|e| no_helper(e.into()))?;
    Ok(Mounted { device: Device::from_descriptor(descriptor), watcher: None, block: false })
}

fn helper_options(options: &MountOptions) -> OsString {
    let mut list = vec![
        format!("subtype={SUBTYPE}"),
        "default_permissions".to_owned(),
        if options.read_only { "ro" } else { "rw" }.to_owned(),
    ];
    let flags = [
        (options.no_suid, "nosuid"),
        (options.no_dev, "nodev"),
        (options.no_exec, "noexec"),
        (options.no_sym_follow, "nosymfollow"),
        (options.synchronous, "sync"),
        (options.directory_synchronous, "dirsync"),
        (options.allow_other.unwrap_or_else(is_root), "allow_other"),
    ];
    list.extend(flags.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()));
    let mut bytes = b"fsname=".to_vec();
    for &byte in options.source.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b',') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    bytes.push(b',');
    bytes.extend(list.join(",").into_bytes());
    OsString::from_vec(bytes)
}

/// Takes a descriptor from a socket; `None` if the other side closes it without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => {
                result?;
                break;
            }
        }
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// Unmounts; with `lazily`, it leaves the tree at once, and ends when it is not in use any more.
pub(super) fn unmount(point: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(point, flags) {
        Err(rustix::io::Errno::PERM) => {}
        result => return Ok(result?),
    }
    let mut helper = Command::new(HELPER_PROGRAM);
    helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(point);
    let output = helper.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let busy = said.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said.trim().to_owned()))
}

/// Raises limits of the kernel for a FUSE mount (read-ahead, dirty pages) whose defaults are too
/// small. A failure only costs speed.
pub(super) fn set_bdi_limits(point: &Path, options: &MountOptions) {
    let Ok(status) = rustix::fs::stat(point) else { return };
    let (major, minor) = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
    // On a block device the name without more is that of the device itself.
    let own = format!("/sys/class/bdi/{major}:{minor}-fuseblk");
    let directory = if Path::new(&own).exists() { own } else { format!("/sys/class/bdi/{major}:{minor}") };
    let set = |name: &str, value: &str| {
        if let Err(error) = std::fs::write(format!("{directory}/{name}"), value) {
            tracing::debug!(name, value, %error, "the kernel's defaults stay");
        }
    };
    set("read_ahead_kb", &options.read_ahead_kib.to_string());
    if options.writeback {
        // A single FUSE mount may otherwise hold one hundredth of what may be dirty, and is
        // throttled below that.
        set("strict_limit", "0");
        set("max_ratio", "100");
    }
}

/// The number of a mount's device: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl DeviceNumber {
    /// That of the mount at `point`; `None` if the kernel's table does not show it.
    pub(super) fn of(point: &Path) -> Option<Self> {
        Self::in_table(&std::fs::read("/proc/self/mountinfo").ok()?, point)
    }

    /// The number of the connection, its name in the control file system of FUSE: the device as the
    /// kernel writes it as one number.
    pub(super) fn connection(self) -> u32 {
        self.major << 20 | self.minor
    }

    fn in_table(table: &[u8], point: &Path) -> Option<Self> {
        // Blanks and the like are escaped in the table, and in nothing else.
        let mut wanted = Vec::new();
        for &byte in point.as_os_str().as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => wanted.extend(format!("\\{byte:03o}").into_bytes()),
                _ => wanted.push(byte),
            }
        }
        // The last one is the topmost.
        let line = table.split(|byte| *byte == b'\n').rev().find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let device = fields.next()?;
            (fields.nth(1)? == wanted.as_slice()).then_some(device)
        });
        let (major, minor) = std::str::from_utf8(line?).ok()?.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

/// Ends a connection even if the mount is in use: all pending requests fail. It uses the control
/// file system of FUSE, so it works also for a mount that is no longer in the tree. Root need not
/// have the control file system mounted.
pub(super) fn abort(point: &Path, device: Option<DeviceNumber>) -> io::Result<()> {
    let Some(device) = device else {
        return Ok(rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH)?);
    };
    let leaf = format!("{}/abort", device.connection());
    if let Ok(mut file) = File::options().write(true).open(Path::new("/sys/fs/fuse/connections").join(&leaf))
    {
        return file.write_all(b"1");
    }
    ControlFileSystem::mount()?.open(&leaf, OFlags::WRONLY)?.write_all(b"1")
}

/// The control file system of FUSE, mounted for this process alone. It has a directory for each
/// connection.
pub(super) struct ControlFileSystem(OwnedFd);

impl ControlFileSystem {
    /// Mounts it; for root.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn mount() -> io::Result<Self> {
        let made = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(made.as_fd())?;
        let root = fsmount(made.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(Self(root))
    }

    /// How many requests the kernel holds for the connection of the mount with this device.
    pub(super) fn waiting(&self, device: DeviceNumber) -> Option<u64> {
        // The kernel tells the same number to every read of a file that is open.
        let leaf = format!("{}/waiting", device.connection());
        let mut file = self.open(&leaf, OFlags::RDONLY).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn open(&self, leaf: &str, flags: OFlags) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.0, leaf, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted")
            .field("device", &self.device.raw().as_raw_fd())
            .field("block", &self.block)
            .finish()
    }
}

#[cfg(test)]
mod tests;
