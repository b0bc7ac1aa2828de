//! The process that makes requests of a mount over io_uring, so that it can be handed over: this
//! program, run by the server.

use crate::problem::Exit;
use crate::ui::complain;
use espalier_fuse::transport::make_requests;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The only word of its command line; not a command for people.
const WORD: &str = "__fill-rings";

/// Starts this program, also if another version lies at its path by now.
pub(super) fn process() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("espalier-fill").arg(WORD);
    command
}

/// If this is that process: does its work.
pub(crate) fn answer(words: &[OsString]) -> Option<ExitCode> {
    (words.get(1)? == WORD).then(|| match make_requests() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("espalier: {error}");
            ExitCode::from(Exit::Failure.code())
        }
    })
}
