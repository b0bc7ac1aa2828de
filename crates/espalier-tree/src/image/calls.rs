//! Calls on the files of an image: the path API of the file system layer, as a client of a mount
//! would have them.

use crate::calls::{Attribute, BelowChange, Calls, Subtree, Xattrs};
use crate::error::{Error, Result};
use crate::file::{File, OpenHow, write_all};
use crate::image::opened::Opened;
use crate::image::walk::{ImageStream, diff, walk};
use crate::image::watch::{ImageWatch, now};
use crate::walk::{Diff, Walk};
use crate::watch::Watch;
use espalier_bridge::{CAPABILITY, NewFile, is_capability, mode_change, set_time, stat_of};
use espalier_client::wire::{NewItem, WriteItem};
use espalier_client::{Changes, Links, Listing, Piece, Rename, SetXattr, Stat, Write, WriteFlags};
use espalier_fs::{
    At, FileSystem, FsErrorKind, Links as FsLinks, MAX_NEW_FILE_BYTES, Open, OwnerChange, PathCaller,
    ReadRequest, RenameHow, SetTime, WriteHow, XattrMode,
};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// A longer file is read in parts of so many bytes.
const READ_BYTES: u64 = 16 << 20;

/// The calls on an image that is open in this process.
pub(crate) struct ImageCalls {
    opened: Arc<RwLock<Opened>>,
    /// Where paths begin.
    beginning: Beginning,
}

/// Where paths begin.
enum Beginning {
    /// Where the image was opened, and closing ends it.
    Place,
    /// At a directory of another tree of it; `None` after [`Calls::close`].
    Directory(RwLock<Option<PathCaller>>),
}

/// An image for the time of a call.
struct ForCall<'c> {
    opened: RwLockReadGuard<'c, Opened>,
    caller: Option<PathCaller>,
}

impl ForCall<'_> {
    fn fs(&self) -> Result<&Arc<FileSystem>> {
        self.opened.fs()
    }

    /// On whose behalf the call is made, and from where its path begins.
    fn caller(&self) -> Result<&PathCaller> {
        let of_place = self.opened.caller()?;
        Ok(self.caller.as_ref().unwrap_or(of_place))
    }
}

impl ImageCalls {
    pub(crate) fn new(opened: Opened) -> Self {
        Self { opened: Arc::new(RwLock::new(opened)), beginning: Beginning::Place }
    }

    fn for_call(&self) -> Result<ForCall<'_>> {
        let caller = match &self.beginning {
            Beginning::Place => None,
            Beginning::Directory(caller) => {
                let caller = caller.read().unwrap_or_else(PoisonError::into_inner).clone();
                Some(caller.ok_or_else(|| Error::new(libc::EBADF, "the tree was closed"))?)
            }
        };
        Ok(ForCall { opened: self.opened.read().unwrap_or_else(PoisonError::into_inner), caller })
    }

    fn with<T>(&self, call: impl FnOnce(&PathCaller) -> espalier_fs::Result<T>) -> Result<T> {
        Ok(call(self.for_call()?.caller()?)?)
    }

    fn begin_watch(&self, path: &[u8], position: &[u8]) -> Result<ImageWatch> {
        let opened = self.for_call()?;
        ImageWatch::begin(opened.caller()?, path, position)
    }
}

fn links(links: Links) -> FsLinks {
    match links {
        Links::Follow => FsLinks::Follow,
        Links::Stay => FsLinks::Stay,
    }
}

impl Calls for ImageCalls {
    fn stat_many(&self, paths: &[&[u8]], follow: Links) -> Result<Vec<Result<Stat>>> {
        let paths: Vec<At<'_>> = paths.iter().map(At::from).collect();
        let found = self.with(|caller| Ok(caller.stat_many(&paths, links(follow))))?;
        Ok(found.into_iter().map(|attr| Ok(stat_of(&attr?))).collect())
    }

    fn read_many(
        &self,
        pieces: &[Piece<'_>],
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) -> Result<()> {
        let opened = self.for_call()?;
        let caller = opened.caller()?;
        let requests: Vec<ReadRequest<'_>> = pieces.iter().map(|piece| first_part(*piece)).collect();
        caller.read_many(&requests, &mut |at, data| {
            let piece = pieces[at];
            match data {
                // The file may have more.
                Ok(data) if data.len() as u64 == READ_BYTES && piece.length > READ_BYTES => {
                    match read_rest(caller, piece, data) {
                        Ok(all) => each(at, Ok(&all)),
                        Err(error) => each(at, Err(error.into())),
                    }
                }
                Ok(data) => each(at, Ok(data)),
                Err(error) => each(at, Err(error.into())),
            }
        });
        Ok(())
    }

    fn walk(&self, path: &[u8], listing: &Listing) -> Result<Walk> {
        let opened = self.for_call()?;
        let (below, listing) = (path.to_vec(), listing.clone());
        let body = move |caller: &PathCaller, to: &_| walk(caller, (&below, &listing), to);
        Ok(Walk::of_image(ImageStream::begin(opened.caller()?, body)?, path))
    }

    fn write_many(&self, files: &[Write<'_>], how: WriteFlags) -> Result<Vec<Result<()>>> {
        let opened = self.for_call()?;
        let caller = opened.caller()?;
        let mut results: Vec<Result<()>> = files.iter().map(|_| Ok(())).collect();
        for (file, result) in files.iter().zip(&mut results) {
            let mut xattrs = file.item().xattrs.iter();
            *result = xattrs.try_for_each(|(name, value)| check_capability(name, value));
        }
        let is_large = |at: &usize| files[*at].item().file.content.len() as u64 > MAX_NEW_FILE_BYTES;
        let good: Vec<usize> = (0..files.len()).filter(|at| results[*at].is_ok()).collect();
        // In the order in which they were given: what is there twice has the later content.
        for run in good.chunk_by(|one, next| !is_large(one) && !is_large(next)) {
            match run {
                [at] if is_large(at) => results[*at] = write_large(caller, files[*at].item(), how),
                small => write_small(caller, (files, small), how, &mut results),
            }
        }
        Ok(results)
    }

    fn open(&self, path: &[u8], how: &OpenHow) -> Result<File> {
        let OpenHow { read, write, create, exclusive, truncate } = *how;
        let how = Open { read, write, create, exclusive, truncate, ..Open::default() };
        let handle = self.with(|caller| caller.open(path, &how))?;
        Ok(File::of_image(handle))
    }

    fn make_directory(&self, path: &[u8], mode: u32, parents: bool) -> Result<()> {
        self.with(|caller| match parents {
            true => caller.mkdir_all(path, mode, &mut |_, _| {}),
            false => caller.mkdir(path, mode),
        })
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.with(|caller| caller.symlink(target, path))
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.with(|caller| caller.link(old, new, FsLinks::Stay))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.with(|caller| caller.unlink(path))
    }

    fn remove_directory(&self, path: &[u8]) -> Result<()> {
        self.with(|caller| caller.rmdir(path))
    }

    fn remove_tree(&self, path: &[u8]) -> Result<()> {
        self.with(|caller| caller.remove_tree(path))
    }

    fn clone_tree(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.with(|caller| caller.clone_tree(old, new))
    }

    fn rename(&self, old: &[u8], new: &[u8], how: Rename) -> Result<()> {
        let how = match how {
            Rename::Replace => RenameHow::Replace,
            Rename::NoReplace => RenameHow::NoReplace,
            Rename::Exchange => RenameHow::Exchange,
        };
        self.with(|caller| caller.rename(old, new, how))
    }

    fn set(&self, path: &[u8], attribute: Attribute) -> Result<()> {
        self.with(|caller| match attribute {
            Attribute::Mode(mode) => caller.chmod(path, mode, FsLinks::Follow),
            Attribute::Owner(uid, gid, follow) => caller.chown(path, OwnerChange { uid, gid }, links(follow)),
            Attribute::Times(read, changed, follow) => {
                caller.set_times(path, (set_time(read), set_time(changed)), links(follow))
            }
            Attribute::Size(size) => caller.truncate(path, size),
        })
    }

    fn set_below(&self, path: &[u8], change: BelowChange) -> Result<()> {
        self.with(|caller| match change {
            BelowChange::Owner(uid, gid) => caller.chown_tree(path, OwnerChange { uid, gid }),
            BelowChange::Modes(bits) => caller.chmod_tree(path, mode_change(bits)),
        })
    }

    fn xattrs(&self, path: &[u8], follow: Links) -> Result<Xattrs> {
        self.with(|caller| {
            // All of it is of one file, whatever has its name meanwhile.
            let open = Open { stay: follow == Links::Stay, ..Open::default() };
            let object = caller.open(path, &open)?;
            let names = caller.list_xattr(object.itself(), FsLinks::Stay)?;
            let mut all = Vec::new();
            for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                match caller.get_xattr(object.itself(), name, FsLinks::Stay) {
                    // It was removed meanwhile.
                    Err(error) if error.kind() == FsErrorKind::NoData && !name.starts_with(b"trusted.") => {}
                    value => all.push((name.to_vec(), value?)),
                }
            }
            Ok(all)
        })
    }

    fn set_xattr(
        &self,
        path: &[u8],
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
        follow: Links,
    ) -> Result<()> {
        let how = match how {
            SetXattr::Set => XattrMode::Set,
            SetXattr::Create => XattrMode::Create,
            SetXattr::Replace => XattrMode::Replace,
        };
        check_capability(name, value)?;
        self.with(|caller| caller.set_xattr(path, name, value, how, links(follow)))
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8], follow: Links) -> Result<()> {
        self.with(|caller| caller.remove_xattr(path, name, links(follow)))
    }

    fn diff(&self, old: &[u8], new: &[u8]) -> Result<Diff> {
        let opened = self.for_call()?;
        let (before, after) = (old.to_vec(), new.to_vec());
        let body = move |caller: &PathCaller, to: &_| diff(caller, (&before, &after), to);
        Ok(Diff::of_image(ImageStream::begin(opened.caller()?, body)?, new))
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.with(|caller| caller.read_link(path))
    }

    fn changes(&self, path: &[u8], position: &[u8]) -> Result<Changes> {
        let opened = self.for_call()?;
        Ok(now(opened.caller()?, (path, position), None)?.1)
    }

    fn watch(&self, path: &[u8], position: &[u8]) -> Result<Watch> {
        Ok(Watch::of_image(self.begin_watch(path, position)?, path))
    }

    fn watch_since(&self, path: &[u8], snapshot: &[u8]) -> Result<Watch> {
        let mut watch = self.begin_watch(path, b"")?;
        // The watch begins before the comparison, so that a change in between is told twice.
        watch.wait(Duration::ZERO, None)?;
        let paths = self.diff(snapshot, path)?.map(|found| found.map(|(_, path)| path));
        watch.tell_first(paths.collect::<Result<_>>()?);
        Ok(Watch::of_image(watch, path))
    }

    fn subtree(&self, path: &[u8]) -> Result<Subtree> {
        let image = self.for_call()?;
        let caller = image.opened.caller_in(image.caller()?, path)?;
        let beginning = Beginning::Directory(RwLock::new(Some(caller)));
        Ok(Subtree::Image(Box::new(Self { opened: Arc::clone(&self.opened), beginning })))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.for_call()?.fs()?.syncfs()?)
    }

    fn close(&self) -> Result<()> {
        match &self.beginning {
            Beginning::Place => self.opened.write().unwrap_or_else(PoisonError::into_inner).close(),
            Beginning::Directory(caller) => {
                *caller.write().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(())
            }
        }
    }
}

/// Refuses what the kernel would not take for the capabilities of a program.
fn check_capability(name: &[u8], value: &[u8]) -> Result<()> {
    match name == CAPABILITY && !is_capability(value) {
        true => Err(Error::new(libc::EINVAL, "the capabilities of a program have another form")),
        false => Ok(()),
    }
}

fn first_part(piece: Piece<'_>) -> ReadRequest<'_> {
    let end = piece.offset.saturating_add(piece.length.min(READ_BYTES));
    ReadRequest { at: At::from(piece.path), range: Some(piece.offset..end) }
}

/// All of a part of which `first` was read.
fn read_rest(caller: &PathCaller, piece: Piece<'_>, first: &[u8]) -> espalier_fs::Result<Vec<u8>> {
    let file = caller.open(piece.path, &Open::read())?;
    let end = piece.offset.saturating_add(piece.length).min(file.stat()?.size);
    let mut all = first.to_vec();
    loop {
        let at = piece.offset.saturating_add(all.len() as u64);
        let length = end.saturating_sub(at).min(READ_BYTES) as usize;
        let begin = all.len();
        all.resize(begin + length, 0);
        let read = file.read_at(at, &mut all[begin..])?;
        all.truncate(begin + read);
        if read == 0 {
            return Ok(all);
        }
    }
}

/// Writes those files that fit into batches.
fn write_small(
    caller: &PathCaller,
    (files, small): (&[Write<'_>], &[usize]),
    how: WriteFlags,
    results: &mut [Result<()>],
) {
    let new: Vec<_> = small.iter().map(|at| NewFile::of(files[*at].item())).collect();
    let paths = small.iter().map(|at| files[*at].item().file.path);
    let requests: Vec<_> = new.iter().zip(paths).map(|(new, path)| new.as_request(path.into())).collect();
    let how = WriteHow { replace: how.replace, directories: how.directories };
    caller.write_many(&requests, how, &mut |batch| {
        for at in batch.files {
            results[small[*at]] = batch.result.clone().map_err(Error::from);
        }
        true
    });
}

/// Writes a file that does not fit into a batch beside its place, and renames it.
fn write_large(caller: &PathCaller, new: &NewItem<'_>, how: WriteFlags) -> Result<()> {
    let file = &new.file;
    if file.is_symlink {
        return Err(Error::new(libc::ENAMETOOLONG, "the target of a link is too long"));
    }
    let above = &file.path[..file.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)];
    let mut random = [0; 8];
    // Without a random number the name may be that of another attempt, which it replaces.
    let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
    let name = format!(".espalier-{:016x}", u64::from_ne_bytes(random));
    let beside = [above, name.as_bytes()].concat();
    // It gets a mode of its own at the end, when all of it is there: by then its owner may write.
    let mode = file.mode.map(|_| 0o600);
    let first = WriteItem { path: &beside, content: b"", mode, ..*file };
    let none = espalier_client::Xattrs::default();
    let empty = NewItem { file: first, sparse: None, xattrs: none.list(), ..*new };
    let mut made = Ok(());
    let fs_how = WriteHow { replace: true, directories: how.directories };
    let first = NewFile::of(&empty);
    caller.write_many(&[first.as_request(At::from(&beside))], fs_how, &mut |batch| {
        made = batch.result;
        true
    });
    made?;
    let written = fill(caller, &beside, new).and_then(|()| {
        let how = if how.replace { RenameHow::Replace } else { RenameHow::NoReplace };
        caller.rename(&beside, file.path, how)
    });
    if written.is_err() {
        // The first error is the one that matters.
        let _ = caller.unlink(&beside);
    }
    Ok(written?)
}

fn fill(caller: &PathCaller, beside: &[u8], new: &NewItem<'_>) -> espalier_fs::Result<()> {
    let file = &new.file;
    let open = caller.open(beside, &Open { write: true, ..Open::default() })?;
    match new.sparse {
        None => write_all(&open, 0, file.content)?,
        Some((size, _)) => {
            new.pieces().into_iter().try_for_each(|(at, piece)| write_all(&open, at, piece))?;
            caller.truncate(open.itself(), size)?;
        }
    }
    // Writing has taken set-id bits and capabilities away. Lists follow the mode, of which they
    // change a part.
    let is_list = |name: &[u8]| name.starts_with(b"system.");
    let set = |(name, value): (&[u8], &[u8])| {
        caller.set_xattr(open.itself(), name, value, XattrMode::Set, FsLinks::Stay)
    };
    new.xattrs.iter().filter(|(name, _)| !is_list(name)).try_for_each(set)?;
    if let Some(mode) = file.mode {
        caller.chmod(open.itself(), mode, FsLinks::Stay)?;
    }
    new.xattrs.iter().filter(|(name, _)| is_list(name)).try_for_each(set)?;
    let times = (new.atime.map(SetTime::At), file.mtime.map(SetTime::At));
    if times.0.is_some() || times.1.is_some() {
        caller.set_times(open.itself(), times, FsLinks::Stay)?;
    }
    Ok(())
}
