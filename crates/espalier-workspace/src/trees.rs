//! The primitives that workspaces are made of, and a mounted file system that has them.

use crate::error::{AtPath, Error, Result};
use crate::removal::Removal;
use espalier_fuse::control::{self, TreeBytes};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Content or attributes differ, or times.
    Changed,
}

/// One of the changes that [`Trees::rename_all`] makes. `place` is a path below the target,
/// `staged` a name in the staging directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// What is staged moves to the place, where nothing is.
    Enter {
        /// The path.
        place: Vec<u8>,
        /// The name.
        staged: Vec<u8>,
    },
    /// What is at the place moves to the staging directory.
    Leave {
        /// The path.
        place: Vec<u8>,
        /// The name.
        staged: Vec<u8>,
        /// What was compared.
        expected: Expected,
    },
    /// Both change places.
    Exchange {
        /// The path.
        place: Vec<u8>,
        /// The name.
        staged: Vec<u8>,
        /// What was compared.
        expected: Expected,
    },
    /// The directory at the place gets mode and owner of the staged one.
    Attributes {
        /// The path.
        place: Vec<u8>,
        /// The name.
        staged: Vec<u8>,
        /// What was compared.
        expected: Expected,
    },
}

/// By what a change of an entry shows: its number, and its time of change in nanoseconds since the
/// Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// `st_ino`.
    pub number: u64,
    /// `st_ctime`.
    pub changed: i64,
}

/// Clones, removals and comparisons of whole trees, and many renames at once. Each is one step:
/// done or not done, also after a crash.
pub trait Trees {
    /// Makes `destination` a clone of `source`. Nothing may be there.
    ///
    /// # Errors
    /// [`Error::NotEspalier`], [`Error::NotOwned`], [`Error::Exists`]; of the system.
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()>;

    /// Removes a file, or a directory with everything below. What is mounted below is not removed.
    ///
    /// # Errors
    /// Of the system.
    fn remove_tree(&self, path: &Path) -> Result<()>;

    /// Gives what differs between the directories `old` and `new`, with paths relative to them, in
    /// time that grows with what differs.
    ///
    /// # Errors
    /// As for [`Trees::clone_tree`].
    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()>;

    /// Makes directory `dir` what a snapshot of a directory holds. The snapshot is named
    /// `NUMBER/NAME`, with the directory's `st_ino`.
    ///
    /// # Errors
    /// As for [`Trees::clone_tree`]; of the system.
    fn restore(&self, dir: &Path, snapshot: &str) -> Result<()>;

    /// Carries out all steps between paths below the directory `target` and names in the directory
    /// `staging`, or none.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if something is not what a step expects; of the system.
    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()>;

    /// What [`Trees::differences`] gives, [`Trees::exclusive_bytes`] and [`Trees::limits`] of
    /// `new`, in one question.
    ///
    /// # Errors
    /// As for these.
    fn survey(
        &self,
        old: &Path,
        new: &Path,
        each: &mut dyn FnMut(Change, &[u8]),
    ) -> Result<(Option<u64>, TreeBytes)> {
        self.differences(old, new, each)?;
        Ok((self.exclusive_bytes(new)?, self.limits(new)?))
    }

    /// The bytes that only this tree refers to; `None` if the caller may not ask.
    ///
    /// # Errors
    /// Of the system.
    fn exclusive_bytes(&self, path: &Path) -> Result<Option<u64>>;

    /// How many bytes directory `path` may hold alone, and how many it may refer to.
    ///
    /// # Errors
    /// Of the system.
    fn limits(&self, path: &Path) -> Result<TreeBytes>;

    /// Gives directory `path` these limits.
    ///
    /// # Errors
    /// [`Error::NotOwned`] unless the caller owns the directory and the one above; of the system.
    fn set_limits(&self, path: &Path, limits: TreeBytes) -> Result<()>;
}

/// A mounted file system, through its ioctls (`include/espalier.h`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Mounted;

/// Where the fields of an answer with differences are.
const LENGTH_OFFSET: usize = 16;
const DATA_OFFSET: usize = 24;

/// Carries out an ioctl whose argument is `argument`, which then holds what it brings back.
pub(crate) fn ask(file: &File, command: u32, argument: &mut [u8]) -> std::io::Result<()> {
    assert_eq!(argument.len(), control::size(command), "the argument has the size that the number says");
    // SAFETY: the kernel reads and writes as many bytes as the number says, and the slice has that
    // many.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What the failure of an ioctl on `path` means.
pub(crate) fn explain(error: std::io::Error, path: &Path) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => Error::NotEspalier(path.to_owned()),
        Some(libc::EPERM) => Error::NotOwned(path.to_owned()),
        Some(libc::EEXIST) => Error::Exists(path.to_owned()),
        _ => Error::io(path, error),
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).at(path)
}

fn token(file: &File, path: &Path) -> Result<control::Token> {
    let mut token = control::Token::default();
    ask(file, control::TOKEN, &mut token).map_err(|error| explain(error, path))?;
    Ok(token)
}

/// The directory that `path` lies in, and its name.
fn split(path: &Path) -> Result<(&Path, &[u8])> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name.as_bytes())),
        _ => Err(Error::Name(format!("{} does not end with a name", path.display()))),
    }
}

fn remove_in_one_step(dir: &File, name: &OsStr) -> std::io::Result<()> {
    let argument = control::name_argument(0, name.as_bytes());
    let mut argument = argument.ok_or(std::io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
    ask(dir, control::REMOVE_TREE, &mut argument)
}

fn too_long(path: &Path) -> Error {
    Error::io(path, rustix::io::Errno::NAMETOOLONG)
}

impl Trees for Mounted {
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()> {
        let (parent, name) = split(destination)?;
        let (from, dir) = (open(source)?, open(parent)?);
        let token = token(&from, source)?;
        let mut argument = control::clone_argument(&token, name).ok_or_else(|| too_long(destination))?;
        ask(&dir, control::CLONE, &mut argument).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => explain(error, source),
            _ => explain(error, destination),
        })
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        if !path.symlink_metadata().at(path)?.is_dir() {
            return std::fs::remove_file(path).at(path);
        }
        let (parent, name) = split(path)?;
        match remove_in_one_step(&open(parent)?, OsStr::from_bytes(name)) {
            // Entry by entry the kernel decides.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                match Removal::run(path, &remove_in_one_step)?.left.pop() {
                    Some((path, error)) => Err(Error::io(&path, error)),
                    None => Ok(()),
                }
            }
            done => done.map_err(|error| explain(error, path)),
        }
    }

    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()> {
        let (before, after) = (open(old)?, open(new)?);
        let mut begin = token(&before, old)?.to_vec();
        begin.resize(control::size(control::DIFF), 0);
        ask(&after, control::DIFF, &mut begin).map_err(|error| explain(error, new))?;
        take_differences((&after, new), &begin[control::TOKEN_BYTES..], each)
    }

    fn survey(
        &self,
        old: &Path,
        new: &Path,
        each: &mut dyn FnMut(Change, &[u8]),
    ) -> Result<(Option<u64>, TreeBytes)> {
        let (before, after) = (open(old)?, open(new)?);
        let mut argument = token(&before, old)?.to_vec();
        argument.resize(control::size(control::SURVEY), 0);
        ask(&after, control::SURVEY, &mut argument).map_err(|error| explain(error, new))?;
        let found = control::Surveyed::decode(&argument).ok_or_else(|| cut_off(new))?;
        if found.session != 0 {
            take_differences((&after, new), &found.session.to_ne_bytes(), each)?;
        }
        Ok((found.own, found.limits))
    }

    fn restore(&self, dir: &Path, snapshot: &str) -> Result<()> {
        let mut argument = control::name_argument(0, snapshot.as_bytes()).ok_or_else(|| too_long(dir))?;
        ask(&open(dir)?, control::RESTORE, &mut argument).map_err(|error| explain(error, dir))
    }

    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let (dir, top) = (open(staging)?, open(target)?);
        let file = staging.with_file_name("steps");
        std::fs::write(&file, encode(steps, target)?).at(&file)?;
        let steps = open(&file)?;
        let mut argument = [token(&dir, staging)?, token(&steps, &file)?].concat();
        ask(&top, control::RENAME_ALL, &mut argument).map_err(|error| match error.raw_os_error() {
            Some(libc::ESTALE | libc::EEXIST | libc::ENOENT | libc::ENOTDIR) => {
                Error::Meanwhile(target.to_owned())
            }
            Some(libc::E2BIG) => Error::Unsuitable(format!(
                "{}: more changes than one step can make; apply them in parts, by naming paths",
                target.display()
            )),
            Some(libc::EXDEV) => Error::Unsuitable(format!(
                "{}: a file with several names (hard links) would cross the border of a tree with a limit in it \
                 (espalier quota clear takes limits away)",
                target.display()
            )),
            Some(libc::EACCES) => Error::Unsuitable(format!(
                "{}: a directory in which something would change belongs to another user, or may not be written",
                target.display()
            )),
            _ => explain(error, target),
        })
    }

    fn exclusive_bytes(&self, path: &Path) -> Result<Option<u64>> {
        let mut answer = [0; control::size(control::EXCLUSIVE_SPACE)];
        match ask(&open(path)?, control::EXCLUSIVE_SPACE, &mut answer) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(None),
            Err(error) => Err(explain(error, path)),
            Ok(()) => Ok(Some(u64::from_ne_bytes(answer))),
        }
    }

    fn limits(&self, path: &Path) -> Result<TreeBytes> {
        let mut answer = [0; control::LIMITS_BYTES];
        match ask(&open(path)?, control::GET_LIMITS, &mut answer) {
            Err(error) => Err(explain(error, path)),
            Ok(()) => Ok(TreeBytes::decode(answer)),
        }
    }

    fn set_limits(&self, path: &Path, limits: TreeBytes) -> Result<()> {
        let set = ask(&open(path)?, control::SET_LIMITS, &mut limits.encode());
        set.map_err(|error| explain(error, path))
    }
}

/// Takes the differences of a session.
pub(crate) fn take_differences(
    (file, path): (&File, &Path),
    session: &[u8],
    each: &mut dyn FnMut(Change, &[u8]),
) -> Result<()> {
    loop {
        let mut answer = vec![0; control::size(control::DIFF_NEXT)];
        answer[..session.len()].copy_from_slice(session);
        ask(file, control::DIFF_NEXT, &mut answer).map_err(|error| explain(error, path))?;
        let mut rest = answer_data(&answer).ok_or_else(|| cut_off(path))?;
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((&[kind, low, high], behind)) = rest.split_first_chunk::<3>() {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let (found, behind) = behind.split_at_checked(length).ok_or_else(|| cut_off(path))?;
            each(
                match kind {
                    b'+' => Change::Added,
                    b'-' => Change::Removed,
                    _ => Change::Changed,
                },
                found,
            );
            rest = behind;
        }
    }
}

/// Steps as the server reads them.
fn encode(steps: &[Step], target: &Path) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let none = Expected { number: 0, changed: 0 };
    for step in steps {
        let (action, place, staged, expected) = match step {
            Step::Enter { place, staged } => (control::ENTER, place, staged, &none),
            Step::Leave { place, staged, expected } => (control::LEAVE, place, staged, expected),
            Step::Exchange { place, staged, expected } => (control::EXCHANGE, place, staged, expected),
            Step::Attributes { place, staged, expected } => (control::ATTRIBUTES, place, staged, expected),
        };
        let expected = (expected.number, expected.changed);
        let step = control::RawStep { action, place, staged, expected };
        step.push_to(&mut out).ok_or_else(|| too_long(target))?;
    }
    Ok(out)
}

/// The differences in an answer; `None` if its length is none.
fn answer_data(answer: &[u8]) -> Option<&[u8]> {
    let length = answer.get(LENGTH_OFFSET..LENGTH_OFFSET + 4)?.try_into().ok()?;
    answer.get(DATA_OFFSET..)?.get(..u32::from_ne_bytes(length) as usize)
}

pub(crate) fn cut_off(path: &Path) -> Error {
    Error::Damaged { path: path.to_owned(), what: "the server's answer is cut off".into() }
}
