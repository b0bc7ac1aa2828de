//! Where log lines go: to standard error (a service of systemd writes to the journal itself, with
//! fields), or, from a server in the background, to the journal, the system log, or a file where
//! the machine has neither.
//!
//! What cannot be logged is dropped: a full disk below the log must not stop a file system.
//!
//! Several servers write to one log. So each line of a server has its mount as a field.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The socket of systemd's journal.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The socket of the system log.
const SYSLOG_SOCKET: &str = "/dev/log";

/// The journal's field for the directory that a server serves.
const MOUNT_FIELD: &str = "F_MOUNT";

/// The log file of root's servers on a machine without journal and system log.
const ROOT_LOG_PATH: &str = "/var/log/espalier.log";

/// The log file of a user's servers there, below the home directory.
const USER_LOG_PATH: &str = ".local/state/espalier/log";

/// Where a server in the background logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sink {
    Journal,
    Syslog,
    File(PathBuf),
    /// There is no place for a log.
    Nowhere,
}

impl Sink {
    /// What this machine has, for the user of this process.
    pub(crate) fn of_machine() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let is_root = rustix::process::geteuid().is_root();
        Self::choose(&|path| path.exists(), is_root, home)
    }

    fn choose(exists: &dyn Fn(&Path) -> bool, is_root: bool, home: Option<PathBuf>) -> Self {
        if exists(Path::new(JOURNAL_SOCKET)) {
            return Self::Journal;
        }
        if exists(Path::new(SYSLOG_SOCKET)) {
            return Self::Syslog;
        }
        match home {
            _ if is_root => Self::File(ROOT_LOG_PATH.into()),
            Some(home) => Self::File(home.join(USER_LOG_PATH)),
            None => Self::Nowhere,
        }
    }
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LogLevel {
    Error,
    #[default]
    Warn,
    Info,
    Debug,
}

impl LogLevel {
    /// All, with their names.
    const NAMES: [(Self, &'static str); 4] =
        [(Self::Error, "error"), (Self::Warn, "warn"), (Self::Info, "info"), (Self::Debug, "debug")];

    /// What a command line asks for that has `-v` so often.
    pub(crate) fn of_verbose(verbose: u8) -> Self {
        match verbose {
            0 => Self::Warn,
            1 => Self::Info,
            _ => Self::Debug,
        }
    }

    /// The level with this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(level, _)| level).ok_or_else(|| {
            format!(
                "'{name}' is no level of the log; there are {}",
                Self::NAMES.map(|(_, name)| name).join(", ")
            )
        })
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// What is logged: `RUST_LOG` says it (`debug`, or `espalier_engine=debug,warn`), or else the
/// level.
fn filter(level: LogLevel) -> Targets {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let asked = asked.and_then(|text| text.parse().ok());
    asked.unwrap_or_else(|| Targets::new().with_default(level.filter()))
}

/// Logs to standard error; to the journal with its fields where standard error leads to it. `mount`
/// is the directory that this process serves, if it is a server.
pub(crate) fn to_stderr(level: LogLevel, mount: Option<&Path>) {
    let given = std::env::var("JOURNAL_STREAM").ok();
    if is_stream(io::stderr(), given.as_deref()) && to_sink(&Sink::Journal, level, mount).is_ok() {
        return;
    }
    let format = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let format = format.with_ansi(io::stderr().is_terminal());
    // Fails only if logging was set up before, and then there is nothing to do.
    let _ = tracing_subscriber::registry().with(filter(level)).with(format).try_init();
}

/// True if `stream` is the one that systemd has `given` a service to write to the journal with, by
/// device and number: a descriptor may have been led elsewhere since.
fn is_stream(stream: impl AsFd, given: Option<&str>) -> bool {
    let found = rustix::fs::fstat(stream).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    given.zip(found.ok()).is_some_and(|(given, found)| given == found)
}

/// Logs to `sink`, for a server without a terminal; of the directory `mount`, if it has one.
///
/// # Errors
/// If the file of the sink cannot be written, or the journal does not answer.
pub(crate) fn to_sink(sink: &Sink, level: LogLevel, mount: Option<&Path>) -> io::Result<()> {
    let registry = tracing_subscriber::registry().with(filter(level));
    let format = fmt::layer().with_ansi(false).fmt_fields(WithMount::of(mount));
    // Setting logging up fails only if it was set up before, and then there is nothing to do.
    match sink {
        Sink::Journal => {
            let field = mount.map(|dir| (MOUNT_FIELD, dir.as_os_str().as_bytes()));
            let journal = tracing_journald::layer()?.with_syslog_identifier("espalier".into());
            let journal = journal.with_custom_fields(field);
            let _ = registry.with(journal).try_init();
        }
        Sink::Syslog => {
            let _ = registry.with(format.without_time().with_writer(|| Syslog)).try_init();
        }
        Sink::File(path) => {
            let file = open(path)?;
            let format = format.log_internal_errors(false).with_writer(file);
            let _ = registry.with(format).try_init();
        }
        Sink::Nowhere => {}
    }
    Ok(())
}

/// Formats the fields of a line, and the mount behind them.
struct WithMount {
    fields: DefaultFields,
    /// What is put behind them.
    mount: String,
}

impl WithMount {
    fn of(mount: Option<&Path>) -> Self {
        let mount = mount.map(|dir| format!(" mount={dir:?}")).unwrap_or_default();
        Self { fields: DefaultFields::new(), mount }
    }
}

impl<'writer> FormatFields<'writer> for WithMount {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> std::fmt::Result {
        self.fields.format_fields(writer.by_ref(), fields)?;
        write!(writer, "{}", self.mount)
    }
}

/// Opens a log file to append to it. Only its owner may read it: it names paths.
fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// One message of syslog(3) per write; tracing writes an event at a time.
struct Syslog;

impl Write for Syslog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let printable: Vec<u8> = bytes.trim_ascii_end().iter().copied().filter(|&b| b != 0).collect();
        if let Ok(message) = std::ffi::CString::new(printable) {
            let priority = libc::LOG_DAEMON | severity(bytes);
            // SAFETY: the format takes one string, and both strings end with NUL and outlive the
            // call.
            unsafe { libc::syslog(priority, c"%s".as_ptr(), message.as_ptr()) };
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// tracing's formatter begins a line with the level.
fn severity(line: &[u8]) -> libc::c_int {
    match line.trim_ascii_start() {
        l if l.starts_with(b"ERROR") => libc::LOG_ERR,
        l if l.starts_with(b"WARN") => libc::LOG_WARNING,
        l if l.starts_with(b"INFO") => libc::LOG_INFO,
        _ => libc::LOG_DEBUG,
    }
}

#[cfg(test)]
mod tests;
