//! Failures as the user sees them: one message that says what happened, where, and what to do.

use std::fmt;

/// What the process reports to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// The command failed.
    Failure,
    /// The command line was wrong.
    Usage,
    /// fsck: the store was damaged, and is not any more.
    Repaired,
    /// fsck: the store is damaged.
    Damaged,
    /// fsck: the check could not run.
    NotChecked,
    /// ls: a path of the command line cannot be listed.
    NotListed,
    /// A program that was to be run cannot be.
    ProgramNotRun,
    /// A program that was to be run is not there.
    ProgramNotFound,
}

impl Exit {
    /// The exit status.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure | Self::Repaired => 1,
            Self::Usage | Self::NotListed => 2,
            Self::Damaged => 4,
            Self::NotChecked => 8,
            // As of shells and env(1).
            Self::ProgramNotRun => 126,
            Self::ProgramNotFound => 127,
        }
    }
}

/// Shows an error and its causes, leaving out causes that say what has been said: lower layers
/// repeat their cause's text so that they can stand alone.
pub(crate) struct Shown<'a>(pub(crate) &'a anyhow::Error);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = String::new();
        for cause in self.0.chain() {
            let text = cause.to_string();
            if said.contains(&text) {
                continue;
            }
            if !said.is_empty() {
                said.push_str(": ");
            }
            said.push_str(&text);
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_said_once() {
        let error = anyhow!("read failed").context("a.img: read failed").context("cannot mount");
        assert_eq!(Shown(&error).to_string(), "cannot mount: a.img: read failed");
    }
}
