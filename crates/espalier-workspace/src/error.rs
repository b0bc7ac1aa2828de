//! Failures, by what the caller must do.

use crate::process::Process;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused a call on a path.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path lies in no mounted Espalier file system, or in one that does not know the call.
    #[error("{} does not lie in a mounted Espalier file system", .0.display())]
    NotEspalier(PathBuf),
    /// Something there belongs to another user.
    #[error(
        "{}: something there belongs to another user, or may run as another user; only root may do that",
        .0.display()
    )]
    NotOwned(PathBuf),
    /// There is something at the place already.
    #[error("{} exists already; a workspace is never merged into what is there", .0.display())]
    Exists(PathBuf),
    /// There is no such workspace.
    #[error("there is no workspace '{name}' (espalier workspace list shows all, from {})", at.display())]
    NotFound {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        at: PathBuf,
    },
    /// It was there when it was looked for, and is not any more.
    #[error("workspace '{0}' is gone: it was discarded, removed or moved meanwhile")]
    Gone(String),
    /// Several workspaces have the name.
    #[error("several workspaces are called '{0}'; name one by its path")]
    Ambiguous(String),
    /// A name is in use, or is none.
    #[error("{0}")]
    Name(String),
    /// Processes work in the workspace.
    #[error("{}", in_use(.name, .processes))]
    InUse {
        /// The workspace.
        name: String,
        /// They.
        processes: Vec<Process>,
    },
    /// The workspace has changes that were never applied.
    #[error(
        "workspace '{name}' has {changed} changed paths that were not applied (espalier workspace diff {name}); \
         --force goes on"
    )]
    Unapplied {
        /// The workspace.
        name: String,
        /// How many.
        changed: usize,
    },
    /// An undo has set aside changes that were never applied.
    #[error(
        "workspace '{name}' has {changed} changed paths that an undo set aside as checkpoint {number}, and that \
         were not applied (espalier workspace undo {name} {number} brings them back); --force goes on"
    )]
    SetAside {
        /// The workspace.
        name: String,
        /// The number of the checkpoint.
        number: u64,
        /// How many.
        changed: usize,
    },
    /// Commits of the workspace are nowhere else.
    #[error("{}", lonely(.name, .commits, .place, .original))]
    Commits {
        /// The workspace.
        name: String,
        /// Hashes with subjects, newest first.
        commits: Vec<String>,
        /// The repository in the workspace.
        place: PathBuf,
        /// The one in its original.
        original: PathBuf,
    },
    /// Whether commits of the workspace are nowhere else cannot be told.
    #[error("workspace '{name}' may have commits that are nowhere else: {why}; --force goes on")]
    MayHaveCommits {
        /// The workspace.
        name: String,
        /// Why that cannot be told.
        why: String,
    },
    /// Linked worktrees of git that lie elsewhere have their repository in the workspace.
    #[error(
        "workspace '{name}' has the repository of linked worktrees that lie elsewhere: {}; remove them \
         (git worktree remove), or --force goes on",
        .worktrees.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Worktrees {
        /// The workspace.
        name: String,
        /// They.
        worktrees: Vec<PathBuf>,
    },
    /// A crash has interrupted a promotion, and it cannot be completed.
    #[error(
        "workspace '{name}': a crash interrupted its promotion, and since then {} or {} was moved or \
         replaced; nothing is changed until the workspace is back at {} (espalier workspace gc \
         --missing forgets it)",
        place.display(), original.display(), place.display()
    )]
    Interrupted {
        /// The workspace.
        name: String,
        /// Where it was.
        place: PathBuf,
        /// Where its original was.
        original: PathBuf,
    },
    /// Proc(5) is not mounted, so it cannot be known which processes run and what they use.
    #[error(
        "/proc is not mounted, so it cannot be told which processes run, and directories cannot be held \
         (mount -t proc proc /proc); nothing was changed"
    )]
    NoProc,
    /// Something is mounted on or below what would be changed, moved or removed.
    #[error(
        "{}: something is mounted on {}, and changes would come under it or take it along; nothing was changed; \
         unmount it (apply also takes paths beside it)",
        target.display(), at.display()
    )]
    MountPoint {
        /// The directory that changes were to be applied to, or that was to be moved or removed.
        target: PathBuf,
        /// Where something is mounted.
        at: PathBuf,
    },
    /// The target changed while it was compared.
    #[error("{}: something was changed there meanwhile; nothing was applied, try again", .0.display())]
    Meanwhile(PathBuf),
    /// Something was taken away and could not be put back; it is kept.
    #[error("{}: {why}; what was there before is kept in {}", place.display(), kept.display())]
    NotPutBack {
        /// Where it was.
        place: PathBuf,
        /// Where it is.
        kept: PathBuf,
        /// Why it could not be put back.
        why: String,
    },
    /// The place cannot hold a workspace, or the directory cannot be made one of.
    #[error("{0}")]
    Unsuitable(String),
    /// What is known of workspaces cannot be read.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A program that is needed cannot be run or failed.
    #[error("{program}: {what}")]
    Program {
        /// The program.
        program: String,
        /// What it said.
        what: String,
    },
}

impl Error {
    /// The same about another path.
    pub(crate) fn map_path(self, map: impl FnOnce(&Path) -> PathBuf) -> Self {
        match self {
            Self::Io { path, source } => Self::Io { path: map(&path), source },
            Self::NotEspalier(path) => Self::NotEspalier(map(&path)),
            Self::NotOwned(path) => Self::NotOwned(map(&path)),
            Self::Exists(path) => Self::Exists(map(&path)),
            Self::Meanwhile(path) => Self::Meanwhile(map(&path)),
            error => error,
        }
    }

    /// An error of the system about a path.
    pub(crate) fn io(path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.to_owned(), source: source.into() }
    }
}

/// Gives a failure of the system the path that it is about.
pub(crate) trait AtPath<T> {
    /// The result with the path.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> AtPath<T> for std::result::Result<T, E> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|error| Error::io(path, error))
    }
}

/// Why git could not be started, and what to do about it.
pub(crate) fn no_git(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            "git is not installed; patches, merges and a look at commits are made with it (apt-get install git)".into()
        }
        _ => error.to_string(),
    }
}

/// So many commits are named in a message.
const NAMED_COMMITS: usize = 3;
/// So much of a hash is shown.
const HASH_DIGITS: usize = 10;

fn lonely(name: &str, commits: &[String], place: &Path, original: &Path) -> String {
    let shown = commits.iter().take(NAMED_COMMITS).map(|commit| {
        let (hash, subject) = commit.split_once(' ').unwrap_or((commit, ""));
        format!("{} {subject}", hash.get(..HASH_DIGITS).unwrap_or(hash))
    });
    let mut text = format!("workspace '{name}' has {} commits that are nowhere else: ", commits.len());
    text += &shown.collect::<Vec<_>>().join("; ");
    if commits.len() > NAMED_COMMITS {
        text += "; ...";
    }
    // Writing to a string does not fail.
    let _ = write!(
        text,
        " (git -C {} fetch {} BRANCH takes them); --force goes on",
        original.display(),
        place.display()
    );
    text
}

/// So many processes are named in a message.
const NAMED_PROCESSES: usize = 5;

fn in_use(name: &str, processes: &[Process]) -> String {
    let mut text = format!("workspace '{name}' is in use by");
    for (at, process) in processes.iter().take(NAMED_PROCESSES).enumerate() {
        let comma = if at > 0 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma} {} ({})", process.command, process.pid);
    }
    if processes.len() > NAMED_PROCESSES {
        let _ = write!(text, " and {} more", processes.len() - NAMED_PROCESSES);
    }
    text + "; --force goes on"
}
