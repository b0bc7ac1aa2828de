//! Extended attributes of the mount's root that the server answers itself: the description of the
//! mount, and commands for the server. No listing shows them.

use super::caller;
use super::errno::Errno;
use super::small_reply::put_xattr;
use crate::metrics::Metrics;
use crate::protocol::Header;
use crate::protocol::reply;
use espalier_fs::MAX_XATTR;
use std::sync::Arc;

/// The extended attribute of the root under which a mount describes itself.
pub const DESCRIPTION_XATTR: &str = "espalier.info";

/// By how much the description may grow between the question for its length and the one for its
/// value, bytes.
const DESCRIPTION_SLACK_BYTES: usize = 4096;

/// Describes the mounted file system, in any form. The argument has the requests served so far.
#[derive(Clone)]
pub struct Description(pub Arc<dyn Fn(&Metrics) -> String + Send + Sync>);

impl std::fmt::Debug for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Description")
    }
}

/// Extended attributes of the root whose names begin so are commands for the server; see
/// [`Commands`].
pub const COMMAND_XATTR: &str = "espalier.do.";

/// Carries out commands. A command is given by reading an extended attribute of the root whose name
/// is [`COMMAND_XATTR`] and the command; the value is the result. Root and the user of the server
/// may give commands; every user may give those that begin with [`LIST_COMMAND`], which change
/// nothing. `None`: there is no such command.
#[derive(Clone)]
pub struct Commands(pub Arc<CommandHandler>);

/// Prefix of the commands that change nothing; see [`Commands`].
pub const LIST_COMMAND: &str = "list.";

/// See [`Commands`].
type CommandHandler = dyn Fn(&str) -> Option<String> + Send + Sync;

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Commands")
    }
}

/// The description and the commands of a mount.
pub(super) struct RootXattrs {
    description: Option<Description>,
    commands: Option<Commands>,
}

/// A question that the server answers itself. It borrows nothing from the request, whose name lies
/// in the buffer that the reply overwrites.
pub(super) enum RootXattr {
    Description,
    /// A command, without the prefix.
    Command(Vec<u8>),
}

impl RootXattrs {
    pub(super) fn new(description: Option<Description>, commands: Option<Commands>) -> Self {
        Self { description, commands }
    }

    /// What the attribute `name` of the root asks the server; `None` if it is one of the file
    /// system's.
    pub(super) fn find(&self, name: &[u8]) -> Option<RootXattr> {
        if self.description.is_some() && name == DESCRIPTION_XATTR.as_bytes() {
            return Some(RootXattr::Description);
        }
        name.strip_prefix(COMMAND_XATTR.as_bytes()).map(|command| RootXattr::Command(command.to_vec()))
    }

    /// Answers GETXATTR for `asked`, which came with `header`. `size` is the room that the caller
    /// has, in bytes; 0 asks for the length.
    pub(super) fn answer(
        &self,
        asked: &RootXattr,
        header: &Header,
        size: u32,
        metrics: &Metrics,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        match asked {
            RootXattr::Description => self.describe(size, metrics, out),
            RootXattr::Command(command) => self.command(command, caller::user(header), size, out),
        }
    }

    fn describe(&self, size: u32, metrics: &Metrics, out: &mut [u8]) -> Result<usize, Errno> {
        let text = self.description.as_ref().map(|description| description.0(metrics)).unwrap_or_default();
        match size {
            0 => Ok(reply::xattr_size(out, (text.len() + DESCRIPTION_SLACK_BYTES) as u32)),
            _ => put_xattr(out, text.as_bytes(), size),
        }
    }

    fn command(&self, name: &[u8], uid: u32, size: u32, out: &mut [u8]) -> Result<usize, Errno> {
        let Some(commands) = &self.commands else { return Err(Errno(libc::ENODATA)) };
        let trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        if !trusted && !name.starts_with(LIST_COMMAND.as_bytes()) {
            return Err(Errno(libc::EPERM));
        }
        if size == 0 {
            // The command must not be carried out twice, so the answer is the longest length that a
            // value can have.
            return Ok(reply::xattr_size(out, MAX_XATTR as u32));
        }
        let answer = std::str::from_utf8(name).ok().and_then(|name| commands.0(name));
        put_xattr(out, answer.ok_or(Errno(libc::ENODATA))?.as_bytes(), size)
    }
}
