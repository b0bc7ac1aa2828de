//! The checks of `espalier doctor`.

use super::finding::Finding;
use crate::logging::Sink;
use crate::scheduling::{NICE_LIMIT, nice_limit};
use crate::units::Size;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first kernel with FUSE over io_uring.
const FIRST_KERNEL_WITH_IO_URING: (u32, u32) = (6, 14);

/// The first kernel whose protocol the server speaks (7.31).
const FIRST_SUPPORTED_KERNEL: (u32, u32) = (5, 4);

/// What a mount takes by default, with the kernel's share.
const COMFORTABLE_MEMORY_BYTES: u64 = 4 << 30;

/// Open files that a server with many snapshots may need.
const COMFORTABLE_OPEN_FILES: u64 = 1024;

/// The system that the checks look at.
pub(super) struct System {
    /// What the paths of the system begin with: `/`, or a directory of a test.
    root: PathBuf,
    release: String,
    is_root: bool,
    /// Directories with programs.
    programs: Vec<PathBuf>,
    open_files: u64,
    /// See [`nice_limit`].
    nice: u64,
    /// Where servers in the background log.
    sink: Sink,
}

impl System {
    /// The system that this process runs on, for its user.
    pub(super) fn here() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let limit = |of| getrlimit(of).current.unwrap_or(u64::MAX);
        Self {
            root: "/".into(),
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            is_root: rustix::process::geteuid().is_root(),
            programs: std::env::split_paths(&path).collect(),
            open_files: limit(Resource::Nofile),
            nice: nice_limit(),
            sink: Sink::of_machine(),
        }
    }

    /// All findings, the most basic first.
    pub(super) fn examine(&self) -> Vec<Finding> {
        let mut findings = vec![self.kernel(), self.device(), self.io_uring()];
        if !self.is_root {
            findings.push(self.fusermount());
            findings.push(self.allow_other());
            findings.push(self.scheduling());
        }
        findings.extend([self.mount_helpers(), self.memory(), self.open_files(), self.log()]);
        findings.push(self.user_namespaces());
        findings
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    fn version(&self) -> (u32, u32) {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    fn kernel(&self) -> Finding {
        const WHAT: &str = "kernel";
        let found = format!("Linux {}", self.release);
        if self.version() < FIRST_SUPPORTED_KERNEL {
            return Finding::broken(WHAT, found, "Linux 5.4 or later is needed");
        }
        if self.version() < FIRST_KERNEL_WITH_IO_URING {
            return Finding::advice(
                WHAT,
                found,
                "Linux 6.14 and later serve FUSE over io_uring, which is faster",
            );
        }
        Finding::good(WHAT, found)
    }

    fn device(&self) -> Finding {
        const WHAT: &str = "/dev/fuse";
        let path = self.at(WHAT);
        match fs::OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => Finding::good(WHAT, "can be opened"),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Finding::broken(
                WHAT,
                error.to_string(),
                "chmod 666 /dev/fuse as root; a container needs --device /dev/fuse",
            ),
            Err(error) => Finding::broken(
                WHAT,
                error.to_string(),
                "load the kernel module (modprobe fuse as root); a container needs --device /dev/fuse",
            ),
        }
    }

    fn io_uring(&self) -> Finding {
        const WHAT: &str = "FUSE over io_uring";
        const PARAMETER_PATH: &str = "/sys/module/fuse/parameters/enable_uring";
        if self
            .read("/proc/sys/kernel/io_uring_disabled")
            .is_some_and(|value| value == "2" || (value == "1" && !self.is_root))
        {
            return Finding::advice(
                WHAT,
                "the kernel keeps io_uring from this user",
                "kernel.io_uring_disabled=0 in /etc/sysctl.d makes mounts faster",
            );
        }
        match self.read(PARAMETER_PATH).as_deref() {
            Some("Y") => Finding::good(WHAT, "on"),
            Some(_) if self.is_root => Finding::good(WHAT, "off; the next mount by root turns it on"),
            Some(_) => Finding::advice(
                WHAT,
                "off",
                format!(
                    "echo Y > {PARAMETER_PATH} as root makes mounts faster; options fuse enable_uring=1 \
                     in /etc/modprobe.d (fuse.enable_uring=1 for the kernel where FUSE is built in) \
                     keeps that"
                ),
            ),
            None => Finding::advice(WHAT, "not in this kernel", "Linux 6.14 and later have it"),
        }
    }

    fn fusermount(&self) -> Finding {
        const WHAT: &str = "fusermount3";
        let found = self.programs.iter().map(|dir| dir.join(WHAT)).find(|path| path.exists());
        let Some(path) = found else {
            return Finding::broken(
                WHAT,
                "not found",
                "install the package fuse3, by which ordinary users mount",
            );
        };
        let is_set_id = path.metadata().is_ok_and(|m| m.permissions().mode() & 0o4000 != 0);
        if is_set_id {
            Finding::good(WHAT, path.display().to_string())
        } else {
            let found = format!("{} is not set-user-id", path.display());
            Finding::broken(WHAT, found, format!("chmod u+s {} as root", path.display()))
        }
    }

    fn allow_other(&self) -> Finding {
        const WHAT: &str = "allow_other";
        let allows = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
        if self.read("/etc/fuse.conf").is_some_and(allows) {
            Finding::good(WHAT, "may be asked for by users")
        } else {
            Finding::advice(
                WHAT,
                "is for root only: only you see into your mounts",
                "to share them, root writes user_allow_other into /etc/fuse.conf",
            )
        }
    }

    fn mount_helpers(&self) -> Finding {
        const WHAT: &str = "mount(8), fstab";
        let missing: Vec<&str> =
            ["mkfs.espalier", "fsck.espalier", "mount.fuse.espalier", "umount.fuse.espalier"]
                .into_iter()
                .filter(|name| !["/sbin", "/usr/sbin"].iter().any(|dir| self.at(dir).join(name).exists()))
                .collect();
        if missing.is_empty() {
            Finding::good(WHAT, "the helpers are installed")
        } else {
            Finding::advice(
                WHAT,
                format!("{} not found in /sbin", missing.join(", ")),
                "make install puts them there; espalier mount works without them",
            )
        }
    }

    fn memory(&self) -> Finding {
        const WHAT: &str = "memory";
        let total = self.read("/proc/meminfo").as_deref().and_then(total_memory);
        let Some(total) = total else {
            return Finding::advice(WHAT, "unknown", "mount /proc");
        };
        let limit = self.memory_limit().filter(|limit| *limit < total);
        let found = match limit {
            Some(limit) => format!("{}, of which this control group may take {}", Size(total), Size(limit)),
            None => Size(total).to_string(),
        };
        if limit.unwrap_or(total) >= COMFORTABLE_MEMORY_BYTES {
            Finding::good(WHAT, found)
        } else {
            Finding::advice(WHAT, found, "mount with --cache 256M: a mount takes up to 2 GiB by default")
        }
    }

    /// The least limit on memory of the control groups that this process is in, in bytes, as a
    /// container or a unit of systemd has one. A server that it starts is in them, too.
    fn memory_limit(&self) -> Option<u64> {
        let groups = self.read("/proc/self/cgroup")?;
        let of_group = |line: &str| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            // The one hierarchy of today has no name, the older one for memory is called so.
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            let above = Path::new(group).ancestors();
            let files = above.map(|group| format!("{root}{}/{file}", group.display()));
            files.filter_map(|file| self.read(&file)?.parse::<u64>().ok()).min()
        };
        groups.lines().filter_map(of_group).min()
    }

    fn scheduling(&self) -> Finding {
        const WHAT: &str = "scheduling";
        if self.nice >= NICE_LIMIT {
            Finding::good(WHAT, "servers may use SCHED_IDLE")
        } else {
            Finding::advice(
                WHAT,
                "servers may not use SCHED_IDLE, so programs change CPUs with many calls",
                "a line '* - nice 0' in /etc/security/limits.d/espalier.conf makes mounts of users faster, \
                 most where FUSE has no io_uring (a unit of systemd: LimitNICE=20)",
            )
        }
    }

    fn open_files(&self) -> Finding {
        const WHAT: &str = "open files";
        let found = match self.open_files {
            u64::MAX => "unlimited".to_owned(),
            limit => format!("at most {limit}"),
        };
        if self.open_files >= COMFORTABLE_OPEN_FILES {
            Finding::good(WHAT, found)
        } else {
            Finding::advice(WHAT, found, "ulimit -n 1024 before mounting")
        }
    }

    fn log(&self) -> Finding {
        const WHAT: &str = "log of servers";
        match &self.sink {
            Sink::Journal => Finding::good(WHAT, "the journal (journalctl -t espalier)"),
            Sink::Syslog => Finding::good(WHAT, "the system log"),
            Sink::File(path) if is_creatable(path) => Finding::good(WHAT, path.display().to_string()),
            Sink::File(path) => Finding::advice(
                WHAT,
                format!("lost: {} cannot be written", path.display()),
                "mount with -o logfile=FILE",
            ),
            Sink::Nowhere => Finding::advice(
                WHAT,
                "lost: there is no journal, no system log and no home directory",
                "mount with -o logfile=FILE",
            ),
        }
    }

    fn user_namespaces(&self) -> Finding {
        const WHAT: &str = "user namespaces";
        let most = self.read("/proc/sys/user/max_user_namespaces").and_then(|text| text.parse::<u64>().ok());
        let refused =
            self.read("/proc/sys/kernel/unprivileged_userns_clone").is_some_and(|value| value == "0");
        if most.is_none_or(|most| most == 0) || (refused && !self.is_root) {
            Finding::advice(
                WHAT,
                "not for this user",
                "containers of ordinary users need them: sysctl user.max_user_namespaces=10000 as root",
            )
        } else {
            Finding::good(WHAT, "can be made")
        }
    }
}

/// True if this user may write the file, or make it with the directories above.
fn is_creatable(path: &Path) -> bool {
    let Some(there) = path.ancestors().find(|path| path.exists()) else { return false };
    let fits = there.is_dir() != (there == path);
    fits && rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Bytes of memory that a table of proc(5) `/proc/meminfo` tells.
fn total_memory(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests;
