//! The mount options in one table, from which help, manual pages and completion are made.

/// One line of the table.
pub(crate) struct MountOption {
    /// The option, or several that belong together, separated by commas.
    pub(crate) names: &'static str,
    pub(crate) meaning: &'static str,
}

const fn option(names: &'static str, meaning: &'static str) -> MountOption {
    MountOption { names, meaning }
}

/// Every option of Espalier's own, and what those of mount(8) mean here.
pub(crate) const MOUNT_OPTIONS: &[MountOption] = &[
    option("ro, rw", "read-only, or for reading and writing (default)"),
    option("cache=SIZE", "memory for everything the server holds (default 2G); the same as --cache"),
    option(
        "writeback, nowriteback",
        "let the kernel gather writes: faster small writes, but what write() returned reaches the server later, \
         and that the disk is full only close or fsync tell, maybe minutes after the write",
    ),
    option("allow_other, noallow_other", "let other users in, or not (default: in mounts by root)"),
    option("discard, nodiscard", "tell the device about space as soon as it is free"),
    option(
        "noatime, relatime, strictatime",
        "when reading changes the time of last access (default relatime); reads that the kernel answers from its \
         cache change nothing",
    ),
    option(
        "inode32, inode64",
        "give new files and clones inode numbers with 32 bits, for 32-bit programs; a clone then takes longer the \
         more it holds (default inode64)",
    ),
    option(
        "handles, nohandles",
        "let file handles outlive the kernel's caches, for programs that work by handles; overlayfs on such a mount \
         fails with ESTALE when caches are dropped (default nohandles)",
    ),
    option(
        "nfs_export, nonfs_export",
        "as handles, and let them outlive the mount, for NFS servers; costs a record for each file in use (default \
         nonfs_export)",
    ),
    option(
        "logfile=FILE, nologfile",
        "log there instead of to the journal, syslog, or a file that doctor names",
    ),
    option("loglevel=LEVEL", "log error, warn (default), info (as -v) or debug (-vv); RUST_LOG wins"),
    option(
        "metrics=ADDRESS, nometrics",
        "metrics for Prometheus there: unix:PATH or 127.0.0.1:PORT; public:ADDRESS:PORT lets other machines in",
    ),
    option(
        "disk_cache=DIR, nodisk_cache, disk_cache_size=SIZE",
        "of an object store: keep what is read and written in this directory, so that it is not got again, also after \
         a restart (default size 10G); it may be deleted at any time",
    ),
    option(
        "journal=FILE, nojournal, journal_size=SIZE",
        "of an object store: fsync makes durable in this file, and the store has it seconds later (default size \
         256M); what only the file has is lost with the machine, and is stored by the next mount with it",
    ),
    option(
        "follow, nofollow",
        "of an object store, with ro: show what another machine writes, some seconds later; what is open stays as it \
         was for nine minutes, and gives ESTALE then; without .snapshots and commands on trees",
    ),
    option(
        "offline=WHICH",
        "while an object store is away: eio (errors after a minute; default), or wait (until it is there again)",
    ),
    option("nofail, fail", "an image that is not there is no failure"),
    option(
        "remount",
        "change ro, rw, nosuid, nodev, noexec, nosymfollow and the times of last access of a mount that is there \
         (root only)",
    ),
    option("commit=SECONDS", "how often everything is made durable unasked (default 5; 0: never)"),
    option("nonempty, nononempty", "mount over a directory that is not empty"),
    option(
        "snapshot=NAME",
        "this snapshot instead of the volume, with the original file numbers; read-only unless it was made writable",
    ),
    option("noxattr, xattr", "no extended attributes and ACLs, and no answer to espalier info"),
    option(
        "transport=WHICH",
        "auto (io_uring where it works), io_uring, or classic (/dev/fuse); root's mounts switch io_uring on in the \
         kernel unless this is classic",
    ),
    option("readahead=KIB", "how far the kernel reads ahead (default 2048; root only)"),
    option("noprefetch, prefetch", "give the kernel no files before it asks for them"),
    option("noclients, clients", "let no program talk to the server past the kernel (docs/protocol.md)"),
    option("threads=N", "server threads per CPU, 1 to 16, or auto"),
    option("readdirplus=WHEN", "list directories with attributes: auto, or always"),
    option("auto_unmount, noauto_unmount", "unmount when the server dies"),
    option(
        "nosuid, suid, nodev, dev, noexec, exec, nosymfollow, symfollow, sync, async, dirsync, nodirsync, user, users, \
         owner, group, context=LABEL",
        "as for mount(8); context and nosymfollow are for root only",
    ),
    option("x-*, _netdev, noauto, comment=TEXT", "for systemd, mount(8) and people; ignored"),
];

/// Where the meanings begin, in columns.
const INDENT: usize = 22;
/// Where they end.
const WIDTH: usize = 98;

/// The table as text for help.
pub(crate) fn as_text() -> String {
    let mut text = String::new();
    for MountOption { names, meaning } in MOUNT_OPTIONS {
        let mut line = format!("  {names}");
        if line.len() + 2 > INDENT {
            text += &line;
            text.push('\n');
            line.clear();
        }
        for word in meaning.split(' ') {
            if line.len() + 1 + word.len() > WIDTH {
                text += &line;
                text.push('\n');
                line.clear();
            }
            if line.len() < INDENT {
                line += &" ".repeat(INDENT - line.len());
            } else {
                line.push(' ');
            }
            line += word;
        }
        text += &line;
        text.push('\n');
    }
    text
}
