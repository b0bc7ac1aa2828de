//! Progress on a terminal, and logging.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// A bar on stderr that counts bytes; invisible if stderr is no terminal.
pub(crate) fn byte_bar(what: &str, total: u64) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let template = "{msg} [{bar:32}] {bytes} of {total_bytes}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// A sign of life for work of unknown length; invisible if stderr is no terminal.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let spinner =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level))
}

/// Logs to stderr.
pub(crate) fn log_to_stderr(verbose: u8) {
    let format = tracing_subscriber::fmt().with_env_filter(filter(verbose)).with_writer(std::io::stderr);
    // Fails only if logging was set up before, and then there is nothing to do.
    let _ = format.with_ansi(std::io::stderr().is_terminal()).try_init();
}

/// Logs to syslog, for a server without a terminal.
pub(crate) fn log_to_syslog(verbose: u8) {
    let format = tracing_subscriber::fmt().with_env_filter(filter(verbose)).with_ansi(false).without_time();
    let _ = format.with_writer(|| Syslog).try_init();
}

/// One message of syslog(3) per write; tracing writes an event at a time.
struct Syslog;

impl std::io::Write for Syslog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let printable: Vec<u8> = bytes.trim_ascii_end().iter().copied().filter(|&b| b != 0).collect();
        if let Ok(message) = std::ffi::CString::new(printable) {
            let priority = libc::LOG_DAEMON | severity(bytes);
            // SAFETY: the format takes one string, and both strings end with NUL and outlive the call.
            unsafe { libc::syslog(priority, c"%s".as_ptr(), message.as_ptr()) };
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
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
