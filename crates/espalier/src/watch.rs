//! Watching a mount: figures that its server gives out, and the commands that show them.
//!
//! All of `espalier stat`, `espalier top` and the metrics for Prometheus show [`Figures`], which
//! the server makes anew for each question ([`server`]); [`Period`] is what happened between two of
//! them. The server answers root and the user that mounted it: the figures name processes, and
//! traces name paths.

pub(crate) mod address;
pub(crate) mod device;
pub(crate) mod endpoint;
mod figures;
mod openmetrics;
mod period;
#[cfg(test)]
mod samples;
pub(crate) mod server;
mod stat;
mod top;
mod trace;

use crate::info;
use anyhow::{Context, Result};
use espalier_fuse::COMMAND_XATTR;
pub(crate) use figures::Figures;
use period::Period;
use serde_json::Value;
pub(crate) use stat::run as stat;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub(crate) use top::run as top;
pub(crate) use trace::run as trace;

/// The longest time between two lines or pictures: a day.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// A mount that is watched.
struct Watched {
    dir: PathBuf,
}

impl Watched {
    /// The mount at or around `dir`.
    ///
    /// # Errors
    /// There is none.
    fn find(dir: &Path) -> Result<Self> {
        Ok(Self { dir: info::mount_around(dir)?.dir })
    }

    /// What the server answers to a command.
    ///
    /// # Errors
    /// The caller may not ask it, or it does not answer.
    fn ask(&self, command: &str) -> Result<Value> {
        info::ask_for(&self.dir, &format!("{COMMAND_XATTR}{command}"), server::MAX_ANSWER_BYTES, "watch it")
    }

    /// Its figures now, with the callers if `callers` says so.
    ///
    /// # Errors
    /// As for [`Watched::ask`].
    fn figures(&self, callers: bool) -> Result<Figures> {
        let nonsense =
            || format!("the server of {} is of another version; use one for both", self.dir.display());
        let first = self.ask(if callers { server::STAT_CALLERS } else { server::STAT })?;
        let mut figures: Figures = serde_json::from_value(first).with_context(nonsense)?;
        while let Some(next) = figures.next_kind {
            let more = self.ask(&format!("{}{next}", server::STAT_KINDS))?;
            let page: figures::KindPage = serde_json::from_value(more).with_context(nonsense)?;
            figures.kinds.extend(page.kinds);
            figures.next_kind = page.next_kind.filter(|after| *after > next);
        }
        Ok(figures)
    }
}
