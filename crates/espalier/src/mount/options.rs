//! Mount options, as `-o` and fstab give them: those of the mount itself, and ours for store and
//! file system.

use crate::backing::ObjectOptions;
use crate::config::{self, MountRules};
use crate::logging::LogLevel;
use crate::units::Size;
use crate::watch::address::MetricsAddress;
use anyhow::{Context, Result, anyhow, bail};
use espalier_fs::{Atime, HandleLifetime};
use espalier_fuse::MountOptions;
use std::path::PathBuf;

/// The memory budget if none is asked for.
const DEFAULT_CACHE_BYTES: u64 = 2 << 30;

/// Memory for files and directories in use, beside a share of the budget.
const LEAST_NODE_MEMORY_BYTES: u64 = 16 << 20;

/// The smallest budget that everything fits in.
const MIN_CACHE_BYTES: u64 = 64 << 20;

/// What the options ask for.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The budget for everything the server holds, in bytes.
    cache: u64,
    pub(crate) atime: Atime,
    /// New files and clones get inode numbers with 32 bits.
    pub(crate) narrow_numbers: bool,
    /// How long file handles are good.
    pub(crate) handles: HandleLifetime,
    /// Tell the device about space as soon as it is free.
    pub(crate) discard: bool,
    pub(crate) mount: MountOptions,
    /// The snapshot to mount instead of the volume.
    pub(crate) snapshot: Option<String>,
    /// An image that is not there is no failure.
    pub(crate) no_fail: bool,
    /// The file that a server in the background logs to, instead of the log of the machine.
    pub(crate) log_file: Option<PathBuf>,
    /// How much is logged, if that was asked for.
    pub(crate) log_level: Option<LogLevel>,
    /// Where metrics are to be had.
    pub(crate) metrics: Option<MetricsAddress>,
    /// For object stores only.
    pub(crate) object: ObjectOptions,
    /// A mount that is there changes.
    pub(crate) remount: bool,
    /// The options as they were given.
    pub(crate) words: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cache: DEFAULT_CACHE_BYTES,
            atime: Atime::Relative,
            narrow_numbers: false,
            handles: HandleLifetime::Reference,
            discard: false,
            snapshot: None,
            no_fail: false,
            log_file: None,
            log_level: None,
            metrics: None,
            object: ObjectOptions::default(),
            remount: false,
            mount: MountOptions {
                background: Some(espalier_storage::each_background_thread),
                ..MountOptions::default()
            },
            words: String::new(),
        }
    }
}

impl Settings {
    /// Reads lists of options; later ones win over earlier ones, and `--cache` over all.
    ///
    /// # Errors
    /// An option that is unknown or has a wrong value.
    pub(crate) fn new(lists: &[String], cache: Option<Size>) -> Result<Self> {
        let given: Vec<&str> = lists.iter().map(String::as_str).filter(|list| !list.is_empty()).collect();
        let mut settings = Self { words: given.join(","), ..Self::default() };
        for option in split(&settings.words.clone()) {
            settings.apply(option)?;
        }
        if let Some(Size(cache)) = cache {
            settings.cache = cache;
            settings.add_word(&format!("cache={cache}"));
        }
        if settings.cache < MIN_CACHE_BYTES {
            bail!(
                "a cache of {} is too small; at least {} are needed",
                Size(settings.cache),
                Size(MIN_CACHE_BYTES)
            );
        }
        Ok(settings)
    }

    /// Reads the options of the configuration files and those of the command, in this order; what
    /// is enforced comes last. A remount takes none of the files but what is enforced.
    ///
    /// # Errors
    /// As for [`Settings::new`], with the line of the file; an option of the command or of the
    /// user's file that the machine does not allow.
    pub(crate) fn by_rules(lists: &[String], cache: Option<Size>, rules: &MountRules) -> Result<Self> {
        let read = |list: &String| Self::new(std::slice::from_ref(list), None);
        for rule in [&rules.system, &rules.user, &rules.enforce].into_iter().flatten() {
            let of_file = read(&rule.text).and_then(|settings| match settings.remount {
                true => bail!("remount is for one command, and not for all mounts"),
                false => Ok(()),
            });
            config::at(rule, of_file)?;
        }
        let command = Self::new(lists, cache)?;
        let (system, user) = match command.remount {
            true => (None, None),
            false => (rules.system.as_ref(), rules.user.as_ref()),
        };
        let own: Vec<String> =
            user.map(|rule| rule.text.clone()).into_iter().chain([command.words]).collect();
        let system = system.map(|rule| rule.text.clone());
        let all: Vec<String> = system.into_iter().chain(own.iter().cloned()).collect();
        let asked = Self::new(&all, None)?;
        let Some(enforce) = &rules.enforce else { return Ok(asked) };
        let settings = Self::new(&[asked.words.clone(), enforce.text.clone()], None)?;
        let own = own.join(",");
        let refused = differing(&own, &settings.words).into_iter().find(|option| {
            // Of two that contradict each other the first means nothing.
            let mut changed = asked.clone();
            changed.apply(option).is_ok() && format!("{changed:?}") == format!("{asked:?}")
        });
        match refused {
            None => Ok(settings),
            Some(option) => {
                bail!("{}: '{option}' is not allowed here (enforce = \"{}\")", enforce.place, enforce.text)
            }
        }
    }

    fn set_handles(&mut self, lifetime: HandleLifetime) {
        self.handles = lifetime;
        self.mount.handles = lifetime > HandleLifetime::Reference;
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        match option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value))) {
            ("cache", Some(value)) => {
                let size: Result<Size, String> = value.parse();
                self.cache = size.map_err(|e| anyhow!("mount option cache: {e}"))?.0;
            }
            ("snapshot", Some(name)) => self.snapshot = Some(name.to_owned()),
            ("inode32" | "inode64", None) => self.narrow_numbers = option == "inode32",
            ("handles", None) => self.set_handles(HandleLifetime::Open),
            ("nfs_export", None) => self.set_handles(HandleLifetime::Stored),
            ("nohandles" | "nonfs_export", None) => self.set_handles(HandleLifetime::Reference),
            ("discard" | "nodiscard", None) => self.discard = option == "discard",
            ("noatime", None) => self.atime = Atime::Never,
            ("strictatime", None) => self.atime = Atime::Strict,
            // `norelatime` asks for the kernel's default, which is relatime.
            ("atime" | "relatime" | "norelatime" | "nostrictatime", None) => {
                self.atime = Atime::Relative;
            }
            // Listings never change the time of a directory's last access.
            ("diratime" | "nodiratime", None) => {}
            ("nofail", None) => self.no_fail = true,
            ("fail", None) => self.no_fail = false,
            ("logfile", Some(path)) => {
                // The server changes its directory before it opens the file.
                self.log_file = Some(std::path::absolute(path).context("mount option logfile")?);
            }
            ("loglevel", Some(name)) => {
                let level =
                    LogLevel::parse(name).map_err(|error| anyhow!("mount option loglevel: {error}"))?;
                self.log_level = Some(level);
            }
            ("metrics", Some(address)) => {
                let address: Result<MetricsAddress, String> = address.parse();
                self.metrics = Some(address.map_err(|error| anyhow!("mount option metrics: {error}"))?);
            }
            ("nometrics", None) => self.metrics = None,
            ("nologfile", None) => self.log_file = None,
            ("remount", None) => self.remount = true,
            // What a file sets a command can take back.
            ("noauto_unmount", None) => self.mount.auto_unmount = false,
            ("nononempty", None) => self.mount.nonempty = false,
            ("nodirsync", None) => self.mount.directory_synchronous = false,
            ("xattr", None) => self.mount.xattrs = true,
            ("threads", Some("auto")) => self.mount.threads_per_cpu = None,
            (name, value) if self.object.apply(name, value)? => {}
            _ => match self.mount.apply(option) {
                Ok(true) => {}
                Ok(false) => {
                    bail!("'{option}' is no mount option of Espalier; espalier mount --help lists them")
                }
                Err(message) => bail!("mount option {message}"),
            },
        }
        Ok(())
    }

    /// Has more logged than is asked for by options, if the command has `-v` so often. A server
    /// that replaces this one logs as much.
    pub(crate) fn log_more(&mut self, verbose: u8) {
        if verbose > 0 {
            let level = LogLevel::of_verbose(verbose);
            self.log_level = Some(level);
            self.add_word(&format!("loglevel={}", level.name()));
        }
    }

    fn add_word(&mut self, word: &str) {
        let lead = if self.words.is_empty() { "" } else { "," };
        self.words += &format!("{lead}{word}");
    }

    /// The part of the budget that knows names.
    pub(crate) fn name_memory(&self) -> u64 {
        (self.cache / 16).clamp(4 << 20, 256 << 20)
    }

    /// Memory for files and directories in use, beside the budget: each is in use in the kernel as
    /// well, which asks for it.
    pub(crate) fn node_memory(&self) -> u64 {
        LEAST_NODE_MEMORY_BYTES + self.cache / 8
    }

    /// The part of the budget for the store.
    pub(crate) fn store_memory(&self) -> u64 {
        self.cache - self.name_memory()
    }
}

/// The options of a list. A comma between quotes belongs to its option, as in the contexts of
/// SELinux.
pub(super) fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    list.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .filter(|option| !option.is_empty())
}

/// The options in `asked` by which a server started with `running` would differ. Those that the
/// kernel keeps with the mount are not among them.
pub(super) fn differing<'a>(asked: &'a str, running: &str) -> Vec<&'a str> {
    const KEPT_BY_KERNEL: [&str; 15] = [
        "ro",
        "rw",
        "suid",
        "nosuid",
        "dev",
        "nodev",
        "exec",
        "noexec",
        "symfollow",
        "nosymfollow",
        "remount",
        "nofail",
        "fail",
        "nonempty",
        "nononempty",
    ];
    let mut server = Settings::default();
    for option in split(running) {
        // The server has read them before.
        let _ = server.apply(option);
    }
    let mut all = server.clone();
    if split(asked).all(|option| all.apply(option).is_ok()) && format!("{all:?}") == format!("{server:?}") {
        return Vec::new();
    }
    let differs = |option: &&str| {
        let mut changed = server.clone();
        changed.apply(option).is_err() || format!("{changed:?}") != format!("{server:?}")
    };
    split(asked).filter(|option| !KEPT_BY_KERNEL.contains(option)).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::mount_options::MOUNT_OPTIONS;
    use std::collections::BTreeSet;

    fn parse(text: &str) -> Result<Settings> {
        Settings::new(&[text.to_owned()], None)
    }

    #[test]
    fn options_are_read_and_the_last_wins() -> Result<()> {
        let settings = parse("defaults,ro,noatime,cache=1.5G,x-systemd.automount,rw,writeback,")?;
        assert_eq!(settings.store_memory() + settings.name_memory(), 3 << 29);
        assert!(!settings.mount.read_only && settings.mount.writeback);
        assert_eq!(settings.atime, Atime::Never);
        let over = Settings::new(&["cache=1G".into()], Some(Size(2 << 30)))?;
        assert_eq!(over.cache, 2 << 30);
        Ok(())
    }

    #[test]
    fn options_of_mount_are_understood() -> Result<()> {
        let settings = parse("nofail,_netdev,strictatime,lazytime,nosymfollow,users,x-a=\"b,c\",iversion")?;
        assert!(settings.no_fail && settings.mount.no_sym_follow && settings.mount.no_exec);
        assert_eq!(settings.atime, Atime::Strict);
        let settings = parse("context=\"a:b:c:s0:c1,c2\",nostrictatime,noiversion")?;
        assert_eq!(settings.mount.security, ["context=\"a:b:c:s0:c1,c2\""]);
        assert_eq!(settings.atime, Atime::Relative);
        Ok(())
    }

    #[test]
    fn options_that_a_running_server_does_not_follow_are_named() {
        let running = "cache=1G,writeback";
        assert!(
            differing("ro,nosuid,cache=1G,remount,relatime,nofail,x-y,noprefetch,prefetch", running)
                .iter()
                .eq(&["noprefetch"])
        );
        assert_eq!(differing("commit=1,cache=2G,transport=auto", running), ["commit=1", "cache=2G"]);
        assert_eq!(differing("threads=4,cache=1G,writeback,threads=auto", running), [""; 0]);
    }

    #[test]
    fn how_much_is_logged_stays_with_the_options() -> Result<()> {
        let mut settings = parse("loglevel=debug,noatime")?;
        settings.log_more(0);
        assert_eq!(
            (settings.log_level, settings.words.as_str()),
            (Some(LogLevel::Debug), "loglevel=debug,noatime")
        );
        settings.log_more(1);
        assert_eq!(settings.log_level, Some(LogLevel::Info));
        let again = parse(&settings.words)?;
        assert_eq!(again.log_level, Some(LogLevel::Info), "a server that takes the mount over");
        let said = parse("loglevel=loud").unwrap_err().to_string();
        assert!(said.ends_with("there are error, warn, info, debug"), "{said}");
        Ok(())
    }

    fn rules(system: &str, user: &str, enforce: &str) -> MountRules {
        let placed = |place: &str, text: &str| {
            (!text.is_empty()).then(|| config::Placed { place: place.into(), text: text.into() })
        };
        MountRules {
            system: placed("sys:1", system),
            user: placed("user:2", user),
            enforce: placed("sys:3", enforce),
        }
    }

    #[test]
    fn options_of_files_come_before_those_of_the_command() -> Result<()> {
        let files = rules("writeback,commit=9", "commit=8,noatime", "");
        let settings = Settings::by_rules(&["commit=7".into()], Some(Size(1 << 30)), &files)?;
        assert!(settings.mount.writeback && settings.cache == 1 << 30);
        assert_eq!(settings.mount.sync_interval.as_secs(), 7);
        assert_eq!(settings.atime, Atime::Never);
        assert_eq!(settings.words, "writeback,commit=9,commit=8,noatime,commit=7,cache=1073741824");
        let none = Settings::by_rules(&[String::new()], None, &files)?;
        assert_eq!(none.words, "writeback,commit=9,commit=8,noatime");
        let remount = Settings::by_rules(&["remount,ro".into()], None, &files)?;
        assert!(!remount.mount.writeback, "a remount asks for what the files say");
        Ok(())
    }

    #[test]
    fn what_is_enforced_cannot_be_contradicted() -> Result<()> {
        let files = rules("writeback", "", "transport=classic,nosuid,nowriteback");
        let settings = Settings::by_rules(&["suid,rw".into()], None, &files)?;
        assert!(settings.mount.no_suid && !settings.mount.writeback);
        assert_eq!(settings.mount.transport, Some(espalier_fuse::transport::Kind::Classic));
        for (command, user) in [("transport=io_uring", ""), ("", "transport=io_uring"), ("writeback", "")] {
            let files = MountRules { user: rules("", user, "").user, ..files.clone() };
            let said = Settings::by_rules(&[command.into()], None, &files).unwrap_err().to_string();
            assert!(said.starts_with("sys:3: '") && said.contains("not allowed"), "{said}");
        }
        // What the command takes back was never asked for.
        let files = MountRules { user: rules("", "writeback", "").user, ..files };
        assert!(Settings::by_rules(&["nowriteback".into()], None, &files).is_ok());
        Ok(())
    }

    #[test]
    fn wrong_options_of_a_file_name_their_line() {
        let said = Settings::by_rules(&[], None, &rules("", "colour=red", "")).unwrap_err();
        assert!(format!("{said:#}").starts_with("user:2: 'colour=red'"), "{said:#}");
    }

    #[test]
    fn a_file_cannot_make_every_mount_a_remount() {
        for files in [rules("remount,ro", "", ""), rules("", "remount", ""), rules("", "", "remount")] {
            let said = format!("{:#}", Settings::by_rules(&[], None, &files).unwrap_err());
            assert!(said.contains(": remount is for one command"), "{said}");
        }
    }

    /// The names of the table of options.
    fn names() -> BTreeSet<&'static str> {
        MOUNT_OPTIONS.iter().flat_map(|option| option.names.split(", ")).collect()
    }

    #[test]
    fn what_an_option_sets_another_one_takes_back() {
        // Those that count once, those whose contraries are their neighbours in the table, and
        // those for other programs.
        const ALONE: [&str; 15] = [
            "ro",
            "rw",
            "noatime",
            "relatime",
            "strictatime",
            "inode32",
            "inode64",
            "remount",
            "sync",
            "async",
            "user",
            "users",
            "owner",
            "group",
            "_netdev",
        ];
        let names = names();
        for name in names.iter().filter(|name| !name.contains(['=', '*'])) {
            let is_there = |contrary: &str| names.iter().any(|it| it.split('=').next() == Some(contrary));
            let has_contrary =
                is_there(&format!("no{name}")) || name.strip_prefix("no").is_some_and(is_there);
            assert!(ALONE.contains(name) || *name == "noauto" || has_contrary, "{name}");
        }
        let set = "auto_unmount,nonempty,dirsync,logfile=/x,threads=3,noxattr,writeback,discard,nofail,handles,\
                   metrics=unix:/x,noprefetch,noclients,nosuid,nodev,noexec,nosymfollow,sync,allow_other";
        let unset = "noauto_unmount,nononempty,nodirsync,nologfile,threads=auto,xattr,nowriteback,nodiscard,fail,\
                     nohandles,nometrics,prefetch,clients,suid,dev,exec,symfollow,async,noallow_other";
        let mut settings = parse(&format!("{set},{unset}")).unwrap();
        (settings.words, settings.mount.allow_other) = (String::new(), None);
        assert_eq!(format!("{settings:?}"), format!("{:?}", Settings::default()));
    }

    #[test]
    fn the_table_has_every_option_that_is_read() {
        // Other names of options in the table, and what mount(8) passes and means nothing here.
        const OTHERS: [&str; 18] = [
            "atime",
            "norelatime",
            "nostrictatime",
            "diratime",
            "nodiratime",
            "fscontext",
            "defcontext",
            "rootcontext",
            "acl",
            "user_xattr",
            "nouser_xattr",
            "default_permissions",
            "auto",
            "io_uring",
            "uring",
            "classic",
            "always",
            "eio",
        ];
        let mut read = BTreeSet::new();
        for source in [
            include_str!("options.rs"),
            include_str!("../backing/object_options.rs"),
            include_str!("../../../espalier-fuse/src/mount/options.rs"),
        ] {
            let apply = source.split("fn apply(").nth(1).unwrap().split("\n    }\n").next().unwrap();
            let arms = apply.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split(" =>").next());
            read.extend(arms.flat_map(|arm| arm.split('"').step_by(2)));
        }
        assert!(read.len() > 70, "{read:?}");
        let table: BTreeSet<&str> =
            names().iter().map(|name| name.split('=').next().unwrap_or_default()).collect();
        for name in read {
            assert!(table.contains(name) || OTHERS.contains(&name) || name == "wait", "{name}");
        }
        for name in names().iter().filter(|name| !name.contains(['=', '*'])) {
            assert!(parse(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn wrong_options_are_named() {
        for (text, named) in
            [("colour=red", "colour=red"), ("ro=1", "ro=1"), ("cache=x", "'x'"), ("cache=1K", "1 KiB")]
        {
            let message = parse(text).map_or_else(|e| e.to_string(), |s| format!("accepted: {s:?}"));
            assert!(message.contains(named), "{text}: {message}");
        }
    }
}
