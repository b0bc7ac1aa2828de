//! Many files written by one call, in the order of their keys: those of one directory together, in
//! batches of which each takes effect as a whole or not at all.

use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::new_file::{Content, NewAttributes, NewFile};
use crate::model::types::NodeId;
use crate::namespace::create_many::ManyMaker;
use crate::path::analyzer::{self, End};
use crate::path::bulk::in_key_order;
use crate::path::caller::{At, PathCaller};
use crate::path::changes::live;
use crate::path::place::PathPlace;
use crate::path::resolver::{Last, check_path};
use crate::snapshot::volume::SNAPSHOTS_NAME;

/// A batch has no more files than this,
const BATCH_MAX_FILES: usize = 256;
/// and ends with the file with which it has so much data, in bytes.
const BATCH_MAX_BYTES: u64 = 1 << 20;

/// A file that [`PathCaller::write_many`] writes.
#[derive(Clone, Copy)]
pub struct WriteRequest<'a> {
    /// Its path. A symbolic link at the end is not followed, but replaced.
    pub at: At<'a>,
    /// What it is.
    pub content: Content<'a>,
    /// Its attributes.
    pub attributes: NewAttributes<'a>,
}

/// How [`PathCaller::write_many`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteHow {
    /// What has the name of a file goes, unless it is a directory; otherwise the file is refused.
    pub replace: bool,
    /// Directories that are missing are made with this mode, less the umask.
    pub directories: Option<u32>,
}

impl Default for WriteHow {
    fn default() -> Self {
        Self { replace: true, directories: Some(0o777) }
    }
}

/// What became of files that were written together.
#[derive(Debug)]
pub struct WrittenBatch<'r> {
    /// Their places among those that were asked for.
    pub files: &'r [usize],
    /// All of them are there, or none; a file that was refused for itself is alone.
    pub result: Result<()>,
    /// The nodes by which a mount knows what lost a name to one of them.
    pub replaced: &'r [NodeId],
}

/// Files of one directory, as places among those that were asked for.
struct Group<'r> {
    directory: PathPlace,
    files: &'r [usize],
}

impl PathCaller {
    /// Makes many files, or replaces what has their names, as if each was made under another name,
    /// written, given its attributes and then renamed. They are written in the order of their keys,
    /// in batches of files of one directory; missing directories are made before. `each` is told of
    /// each batch what became of it, until it returns false: then no more are written. What was
    /// told is visible, and durable after a sync; after a power cut each batch is there as a whole
    /// or not at all, and the later ones only with the earlier ones. Of two files with one path the
    /// later one stays.
    ///
    /// # Errors
    /// None of its own. Of one file: [`FsErrorKind::TooBig`] beyond
    /// [`MAX_NEW_FILE_BYTES`](crate::MAX_NEW_FILE_BYTES) of data, [`FsErrorKind::Exists`],
    /// [`FsErrorKind::IsDirectory`] in the place of a directory, [`FsErrorKind::Permission`] and
    /// those of paths ([`PathCaller`]). Of a batch: [`FsErrorKind::NoSpace`],
    /// [`FsErrorKind::QuotaExceeded`], [`FsErrorKind::ReadOnly`]; of the store.
    pub fn write_many(
        &self,
        requests: &[WriteRequest<'_>],
        how: WriteHow,
        each: &mut dyn FnMut(WrittenBatch<'_>) -> bool,
    ) {
        let order: Vec<usize> = in_key_order(requests.iter().map(|request| request.at)).collect();
        let mut left = &order[..];
        while let Some((first, _)) = left.split_first() {
            let count = group_length(requests, left);
            let files = &left[..count];
            left = &left[count..];
            let goes_on = match self.directory_of(requests[*first].at, how) {
                Ok(directory) => self.write_group(requests, &Group { directory, files }, how, each),
                Err(error) => each(WrittenBatch { files, result: Err(error), replaced: &[] }),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The directory of a file; it is made if it is missing and may be.
    fn directory_of(&self, at: At<'_>, how: WriteHow) -> Result<PathPlace> {
        let found = self.name(at);
        let (directory, last, is_slash) = match (found, how.directories) {
            (Err(error), Some(mode)) if error.kind() == FsErrorKind::NotFound && !at.path.is_empty() => {
                self.make_directories(at, mode)?;
                self.name(at)?
            }
            (found, _) => found?,
        };
        match last {
            Last::Name(_) if !is_slash => Ok(directory),
            _ => fail(FsErrorKind::IsDirectory, "the path is that of a directory"),
        }
    }

    /// Makes the directories on the way to a file that are not there.
    fn make_directories(&self, at: At<'_>, mode: u32) -> Result<()> {
        let mut ends: Vec<_> = analyzer::names(at.path).map(|(_, end)| end).collect();
        ends.pop();
        for end in ends {
            match self.mkdir(at.up_to(end), mode) {
                Err(error) if error.kind() != FsErrorKind::Exists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes files of one directory. Returns whether to go on.
    fn write_group(
        &self,
        requests: &[WriteRequest<'_>],
        group: &Group<'_>,
        how: WriteHow,
        each: &mut dyn FnMut(WrittenBatch<'_>) -> bool,
    ) -> bool {
        let mut left = group.files;
        let mut most = left.len();
        while !left.is_empty() {
            let files = &left[..most.min(left.len())];
            let results = self.write_some(requests, &Group { files, ..group.clone() }, how);
            let results = match results {
                Ok(results) => results,
                // What a large batch may cost need not be free for some of its files.
                Err(error) if is_full(&error) && files.len() > 1 => {
                    most = files.len() / 2;
                    continue;
                }
                Err(error) if is_full(&error) => vec![Err(error)],
                Err(error) => {
                    return each(WrittenBatch { files: left, result: Err(error), replaced: &[] });
                }
            };
            let (done, rest) = left.split_at(results.len().clamp(1, files.len()));
            left = rest;
            let written: Vec<_> =
                done.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(at, _)| *at).collect();
            let replaced: Vec<_> =
                results.iter().filter_map(|result| result.as_ref().ok().copied().flatten()).collect();
            let made = WrittenBatch { files: &written, result: Ok(()), replaced: &replaced };
            if !written.is_empty() && !each(made) {
                return false;
            }
            for (at, result) in done.iter().zip(results) {
                let Err(error) = result else { continue };
                if !each(WrittenBatch { files: &[*at], result: Err(error), replaced: &[] }) {
                    return false;
                }
            }
        }
        true
    }

    /// Writes the first files of a group with one batch; returns how each of them fared.
    fn write_some(
        &self,
        requests: &[WriteRequest<'_>],
        group: &Group<'_>,
        how: WriteHow,
    ) -> Result<Vec<Result<Option<NodeId>>>> {
        let hold = live(&group.directory)?;
        let (node, fs) = (hold.node.id, hold.fs());
        let mut files = Vec::with_capacity(group.files.len());
        for at in group.files {
            let WriteRequest { at, content, attributes } = requests[*at];
            let name = analyzer::last_name(at.path);
            if name == SNAPSHOTS_NAME && (node == NodeId::ROOT || self.is_snapshots(&group.directory)?) {
                break;
            }
            files.push(NewFile { name, content, attributes });
        }
        if files.is_empty() {
            return Ok(vec![fail(FsErrorKind::IsDirectory, "the snapshots are shown there")]);
        }
        let caller = self.owner();
        let maker = ManyMaker { caller: &caller, credentials: self.credentials(), replaces: how.replace };
        fs.write_files(node, &files, &maker)
    }

    /// True if a directory shows its snapshots by their name.
    fn is_snapshots(&self, directory: &PathPlace) -> Result<bool> {
        let child = directory.child(SNAPSHOTS_NAME, &self.paths.snapshots)?;
        Ok(matches!(child, Some(PathPlace::Snapshots(_))))
    }
}

impl Clone for Group<'_> {
    fn clone(&self) -> Self {
        Self { directory: self.directory.clone(), files: self.files }
    }
}

fn is_full(error: &FsError) -> bool {
    matches!(error.kind(), FsErrorKind::NoSpace | FsErrorKind::QuotaExceeded)
}

/// How many of the next files go into one batch: those that have the directory of the first one.
fn group_length(requests: &[WriteRequest<'_>], order: &[usize]) -> usize {
    let path = |at: usize| (requests[at].at, analyzer::first_run(requests[at].at.path));
    let (first, run) = path(order[0]);
    // What is wrong with one path is no error of others.
    let is_plain = |at: At<'_>, run: &analyzer::Run<'_>| {
        run.end == End::Plain && run.count > 0 && check_path(at.path).is_ok()
    };
    if !is_plain(first, &run) {
        return 1;
    }
    let mut bytes = 0;
    let mut last = None;
    let belongs = |at: &&usize| {
        let (other, other_run) = path(**at);
        let is_beside = other.is_beside(&first) && is_plain(other, &other_run);
        let is_full = bytes >= BATCH_MAX_BYTES;
        bytes += requests[**at].content.data_bytes();
        // A path that is there twice is written twice.
        let is_other = last.replace(other_run.last) != Some(other_run.last);
        is_beside && is_other && !is_full && other_run.before_last == run.before_last
    };
    order.iter().take(BATCH_MAX_FILES).take_while(belongs).count().max(1)
}
