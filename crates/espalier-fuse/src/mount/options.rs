//! The options of a mount, as fields and as `-o` strings.

use super::forget_hook::ForgetHook;
use crate::dispatch::{Commands, Description};
use crate::metrics::Metrics;
use crate::transport::{Kind, RequestMaker, ThreadLister};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How directories are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListAttributes {
    /// With attributes, while it looks as if they were wanted: a process that lists directories and
    /// looks at none of their files gets the attributes of directories only.
    #[default]
    Auto,
    /// With attributes always.
    Always,
}

/// How a file system is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The path of the image or device, as mount(8) is to show it; any bytes.
    pub source: PathBuf,
    /// `source` is a block device: root's mounts are `fuseblk` where the kernel can, so that
    /// `syncfs` and `umount` wait for the file system.
    pub block_device: bool,
    /// No changes.
    pub read_only: bool,
    /// Set-id bits have no effect. Always so for ordinary users.
    pub no_suid: bool,
    /// Device files cannot be used. Always so for ordinary users.
    pub no_dev: bool,
    /// Nothing can be executed.
    pub no_exec: bool,
    /// No symbolic link is followed (root only).
    pub no_sym_follow: bool,
    /// SELinux options of mount(8), such as `context="system_u:object_r:user_home_t:s0"`, as they
    /// were given (root only).
    pub security: Vec<String>,
    /// Every write is synchronous.
    pub synchronous: bool,
    /// Every change of a directory is synchronous.
    pub directory_synchronous: bool,
    /// Other users than the one that mounts may use the mount. `None`: if root mounts.
    pub allow_other: Option<bool>,
    /// Unmount when this process ends, however it ends; for ordinary users it needs `fusermount3`.
    pub auto_unmount: bool,
    /// The mount point may have content, which is hidden while the mount is there.
    pub nonempty: bool,
    /// The kernel gathers written data and passes it on later. Faster for small writes; but data of
    /// a `write` that returned has no order and no reserved space until the kernel passes it on (at
    /// close, at fsync, or after some seconds).
    pub writeback: bool,
    /// File handles are good after the kernel has dropped a file, as far as the file system finds
    /// files by their ids. Not for a mount on which overlayfs lies: see docs/semantics.md.
    pub handles: bool,
    /// There are extended attributes and ACLs.
    pub xattrs: bool,
    /// How directories are listed.
    pub list_attributes: ListAttributes,
    /// Use this transport or fail. `None`: io_uring where it works.
    pub transport: Option<Kind>,
    /// Threads per CPU with io_uring; `None`: chosen.
    pub threads_per_cpu: Option<usize>,
    /// Lists the background threads of this process; see [`ThreadLister`]. They
    /// keep off CPUs on which many requests come, as long as there are others: with io_uring, and
    /// where the process may use `SCHED_IDLE`. Of several mounts in one process the last that had
    /// something to say decides.
    pub background: Option<ThreadLister>,
    /// Starts this program again to make requests; see [`RequestMaker`]. A mount over io_uring can
    /// be paused only with it.
    pub request_maker: Option<RequestMaker>,
    /// How often everything is made durable unasked; zero: never.
    pub sync_interval: Duration,
    /// The mount shows states of a store that another machine writes, one after the other
    /// ([`Mount::show`](crate::Mount::show)). Only for reading.
    pub follow: bool,
    /// Files are stored in the kernel's pages before an application reads them, if it reads one
    /// after the other. Not with `writeback`, not without `xattrs`, and not with one thread.
    pub prefetch: bool,
    /// Programs may talk to the server past the kernel ([`ClientAccess`](crate::ClientAccess)).
    pub clients: bool,
    /// Read-ahead, KiB (root only).
    pub read_ahead_kib: u32,
    /// The description of the mount: the value of the extended attribute
    /// [`DESCRIPTION_XATTR`](crate::DESCRIPTION_XATTR) of its root, which no listing shows.
    pub description: Option<Description>,
    /// Commands that the server carries out; see [`Commands`].
    pub commands: Option<Commands>,
    /// How the file system asks for pending FORGETs.
    pub forgets: Option<ForgetHook>,
    /// Where the mount counts and measures requests; `None`: where nothing but the description sees
    /// it.
    pub metrics: Option<Arc<Metrics>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "espalier".into(),
            block_device: false,
            read_only: false,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_sym_follow: false,
            security: Vec::new(),
            synchronous: false,
            directory_synchronous: false,
            allow_other: None,
            auto_unmount: false,
            nonempty: false,
            writeback: false,
            handles: false,
            xattrs: true,
            list_attributes: ListAttributes::default(),
            transport: None,
            threads_per_cpu: None,
            background: None,
            request_maker: None,
            sync_interval: Duration::from_secs(5),
            follow: false,
            prefetch: true,
            clients: true,
            read_ahead_kib: 2048,
            description: None,
            commands: None,
            forgets: None,
            metrics: None,
        }
    }
}

impl MountOptions {
    /// Applies one option as it stands in `-o` or in fstab. `Ok(false)`: it is not an option of the
    /// mount itself (the caller may know it).
    ///
    /// # Errors
    /// An option with a value that makes no sense; the text says which and what it may be.
    pub fn apply(&mut self, option: &str) -> Result<bool, String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("suid", None) => self.no_suid = false,
            ("nosuid", None) => self.no_suid = true,
            ("dev", None) => self.no_dev = false,
            ("nodev", None) => self.no_dev = true,
            ("exec", None) => self.no_exec = false,
            ("noexec", None) => self.no_exec = true,
            ("symfollow", None) => self.no_sym_follow = false,
            ("nosymfollow", None) => self.no_sym_follow = true,
            // As mount(8) says: what users may mount has no set-id bits, devices and, except for
            // the owner's and the group's mounts, programs.
            ("user" | "users", _) => {
                (self.no_suid, self.no_dev, self.no_exec) = (true, true, true);
            }
            ("owner" | "group", None) => (self.no_suid, self.no_dev) = (true, true),
            ("context" | "fscontext" | "defcontext" | "rootcontext", Some(_)) => {
                self.security.push(option.to_owned());
            }
            ("sync", None) => self.synchronous = true,
            ("async", None) => self.synchronous = false,
            ("dirsync", None) => self.directory_synchronous = true,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("auto_unmount", None) => self.auto_unmount = true,
            ("nonempty", None) => self.nonempty = true,
            ("writeback", None) => self.writeback = true,
            ("nowriteback", None) => self.writeback = false,
            ("handles", None) => self.handles = true,
            ("nohandles", None) => self.handles = false,
            ("prefetch", None) => self.prefetch = true,
            ("noprefetch", None) => self.prefetch = false,
            ("clients", None) => self.clients = true,
            ("noclients", None) => self.clients = false,
            ("user_xattr" | "acl", None) => self.xattrs = true,
            ("nouser_xattr" | "noxattr", None) => self.xattrs = false,
            ("transport", Some("auto")) => self.transport = None,
            ("transport", Some("io_uring" | "uring")) => self.transport = Some(Kind::Uring),
            ("transport", Some("classic")) => self.transport = Some(Kind::Classic),
            ("transport", _) => return Err(format!("{option}: use auto, io_uring or classic")),
            ("threads", value) => self.threads_per_cpu = Some(number(option, value, 1, 16)? as usize),
            ("commit", value) => {
                self.sync_interval = Duration::from_secs(number(option, value, 0, 86_400)?.into());
            }
            ("readahead", value) => self.read_ahead_kib = number(option, value, 0, 1 << 20)?,
            ("readdirplus", Some("auto")) => self.list_attributes = ListAttributes::Auto,
            ("readdirplus", Some("always")) => self.list_attributes = ListAttributes::Always,
            ("readdirplus", _) => return Err(format!("{option}: use auto or always")),
            // Permissions are always checked by the kernel.
            ("default_permissions", None) => {}
            _ => return Ok(ignored(name)),
        }
        Ok(true)
    }
}

/// What fstab and mount(8) pass on, and what has no meaning here: the file system has no inode
/// versions, Linux has no mandatory locks any more, and all times are written lazily in any case.
fn ignored(name: &str) -> bool {
    const FOR_MOUNT: [&str; 22] = [
        "defaults",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "_netdev",
        "comment",
        "loud",
        "silent",
        "iversion",
        "noiversion",
        "mand",
        "nomand",
        "lazytime",
        "nolazytime",
        "bg",
        "seclabel",
        "subtype",
        "fsname",
        "rootmode",
    ];
    FOR_MOUNT.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn number(option: &str, value: Option<&str>, least: u32, most: u32) -> Result<u32, String> {
    value
        .and_then(|value| value.parse().ok())
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{option}: a number from {least} to {most} is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_their_names() {
        let mut options = MountOptions::default();
        // What docs/durability.md says of mounts without options.
        assert_eq!(options.sync_interval, Duration::from_secs(5));
        for option in ["ro", "nosuid", "commit=30", "transport=classic", "writeback", "x-systemd.automount"] {
            assert_eq!(options.apply(option), Ok(true), "{option}");
        }
        for option in ["lazytime", "iversion", "mand", "_netdev", "comment=a disk", "nosymfollow"] {
            assert_eq!(options.apply(option), Ok(true), "{option}");
        }
        assert!(options.no_sym_follow && !options.no_exec);
        assert_eq!(options.apply("user=ann"), Ok(true));
        assert!(options.no_exec && options.no_dev);
        assert!(options.read_only && options.no_suid && options.writeback);
        assert_eq!(options.sync_interval, Duration::from_secs(30));
        assert_eq!(options.transport, Some(Kind::Classic));
        assert_eq!(options.apply("volume=main"), Ok(false));
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for option in ["commit", "commit=x", "commit=-1", "threads=0", "transport=pigeon", "readdirplus"] {
            assert!(MountOptions::default().apply(option).is_err(), "{option}");
        }
    }
}
