//! Files of an image that is not mounted, by path, as a user that may do anything in it.

use crate::files::tree::{
    Access, Attributes, Data, Files, FilesResult, NewContent, NewFile, OpenFile, TreeEntry, Xattr, join,
    split,
};
use crate::place::{Inside, Opened};
use anyhow::{Context, Result, bail};
use espalier_fs::{
    At, Attr, Content, Credentials, FileKind, Filter, FsErrorKind, Handle, Links, NewAttributes, Open,
    OwnerChange, PathCaller, Paths, RenameHow, Seek, SetTime, WriteHow, WriteRequest, XattrMode,
};
use std::ops::Range;

/// Where a large file lies until it is complete.
const PART_NAME: &[u8] = b".espalier-part";
/// So much of a large file is written between two syncs, in bytes.
const SYNC_BYTES: u64 = 256 << 20;

/// A tree in an image.
pub(crate) struct ImageFiles<'o> {
    opened: &'o Opened,
    /// Its root is the top, if that is a directory.
    caller: PathCaller,
    /// The path of the top, if that is no directory.
    file: Option<Vec<u8>>,
}

impl<'o> ImageFiles<'o> {
    /// The tree at a path of an image.
    pub(crate) fn open(opened: &'o Opened, inside: &Inside, access: Access) -> Result<Self> {
        let shown = || inside.to_string();
        let paths = Paths::new(opened.fs.clone()).with_context(shown)?;
        let caller = paths.caller(Credentials::default());
        let path = path_of(inside);
        if access == Access::Make {
            let mut at = Vec::new();
            for name in &inside.names {
                at.extend([b"/", &name[..]].concat());
                match caller.mkdir(&at, 0o777 & !umask()) {
                    Err(error) if error.kind() != FsErrorKind::Exists => {
                        return Err(error).with_context(shown);
                    }
                    _ => {}
                }
            }
        }
        let attr = caller.stat(&path, Links::Follow).map_err(|error| crate::place::explain(error, inside))?;
        if attr.kind == FileKind::Directory {
            let caller = caller.in_root(&path).with_context(shown)?;
            return Ok(Self { opened, caller, file: None });
        }
        if access != Access::Read {
            bail!("{inside}: a directory is needed");
        }
        Ok(Self { opened, caller, file: Some(path) })
    }

    /// The path of a file as the caller has it.
    fn path(&self, path: &[u8]) -> Vec<u8> {
        match &self.file {
            Some(top) if path.is_empty() => top.clone(),
            Some(top) => [top, &b"/"[..], path].concat(),
            None => [b"/", path].concat(),
        }
    }

    /// The top may be a link that leads to it.
    fn links(&self, path: &[u8]) -> Links {
        if path.is_empty() { Links::Follow } else { Links::Stay }
    }

    fn set_all(&self, path: &[u8], attributes: &Attributes) -> FilesResult<()> {
        let caller = &self.caller;
        if let Some((uid, gid)) = attributes.owner {
            caller.chown(path, OwnerChange { uid: Some(uid), gid: Some(gid) }, Links::Stay)?;
        }
        let is_list = |name: &[u8]| name.starts_with(b"system.");
        let set = |(name, value): &Xattr| {
            let done = caller.set_xattr(path, name, value, XattrMode::Set, Links::Stay);
            done.map_err(|error| error.context(String::from_utf8_lossy(name)))
        };
        attributes.xattrs.iter().filter(|(name, _)| !is_list(name)).try_for_each(set)?;
        caller.chmod(path, attributes.mode, Links::Stay)?;
        attributes.xattrs.iter().filter(|(name, _)| is_list(name)).try_for_each(set)?;
        let times = (attributes.atime.map(SetTime::At), attributes.mtime.map(SetTime::At));
        caller.set_times(path, times, Links::Stay)
    }

    /// Writes the content of a large file.
    fn fill(&self, path: &[u8], size: u64, data: &mut dyn Data) -> Result<()> {
        let file = self.caller.open(path, &Open { exclusive: true, ..Open::create(0o600) })?;
        let (mut buffer, mut unsynced) = (Vec::new(), 0);
        while let Some(offset) = data.next(&mut buffer)? {
            file.write_at(offset, &buffer)?;
            unsynced += buffer.len() as u64;
            if unsynced >= SYNC_BYTES {
                self.opened.fs.syncfs()?;
                unsynced = 0;
            }
        }
        Ok(file.truncate(size)?)
    }
}

impl Files for ImageFiles<'_> {
    fn stat(&self, path: &[u8]) -> FilesResult<Attr> {
        self.caller.stat(&self.path(path), self.links(path))
    }

    fn list(&self, path: &[u8]) -> FilesResult<Vec<(Vec<u8>, Attr)>> {
        let open = self.caller.open(&self.path(path), &Open { directory: true, ..Open::read() })?;
        let mut names = Vec::new();
        open.list(0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort_unstable();
        let at: Vec<At<'_>> = names.iter().map(|name| open.at(name)).collect();
        let attrs = self.caller.stat_many(&at, Links::Stay);
        drop(at);
        let mut all = Vec::with_capacity(names.len());
        for (name, attr) in names.into_iter().zip(attrs) {
            match attr {
                // It was removed meanwhile.
                Err(error) if error.kind() == FsErrorKind::NotFound => {}
                attr => all.push((name, attr?)),
            }
        }
        Ok(all)
    }

    fn walk(&self, filter: &Filter, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()> {
        self.caller.walk(&self.path(b""), filter, &mut |entry| {
            each(TreeEntry { path: entry.path, attr: entry.attr, is_closed: entry.is_closed })
        })
    }

    fn read_link(&self, path: &[u8]) -> FilesResult<Vec<u8>> {
        self.caller.read_link(&self.path(path))
    }

    fn xattrs(&self, path: &[u8]) -> FilesResult<Vec<Xattr>> {
        let (path, links) = (self.path(path), self.links(path));
        let names = self.caller.list_xattr(&path, links)?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let with_value = |name: &[u8]| Ok((name.to_vec(), self.caller.get_xattr(&path, name, links)?));
        names.map(with_value).collect()
    }

    fn open<'f>(&'f self, path: &[u8]) -> FilesResult<Box<dyn OpenFile + 'f>> {
        let stay = self.links(path) == Links::Stay;
        let handle = self.caller.open(&self.path(path), &Open { stay, ..Open::read() })?;
        let size = handle.stat()?.size;
        Ok(Box::new(ImageFile { handle, size }))
    }

    fn write_many(&self, files: &[NewFile], told: &mut dyn FnMut(usize, FilesResult<()>)) {
        let paths: Vec<_> = files.iter().map(|file| self.path(&file.path)).collect();
        let pieces: Vec<Vec<(u64, &[u8])>> = files
            .iter()
            .map(|file| match &file.content {
                NewContent::Regular(_, pieces) => pieces.iter().map(|(at, data)| (*at, &data[..])).collect(),
                _ => Vec::new(),
            })
            .collect();
        let xattrs: Vec<Vec<(&[u8], &[u8])>> = files
            .iter()
            .map(|file| file.attributes.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect())
            .collect();
        let request = |at: usize| {
            let NewFile { content, attributes, .. } = &files[at];
            let content = match content {
                NewContent::Regular(size, _) => Content::Sparse { size: *size, pieces: &pieces[at] },
                NewContent::Symlink(target) => Content::Symlink(target),
                NewContent::Node(node) => Content::Node(*node),
            };
            let &Attributes { mode, owner, atime, mtime, .. } = attributes;
            let owner = OwnerChange { uid: owner.map(|(uid, _)| uid), gid: owner.map(|(_, gid)| gid) };
            let xattrs = &xattrs[at][..];
            let attributes = NewAttributes { mode: Some(mode), owner, atime, mtime, xattrs };
            WriteRequest { at: (&paths[at]).into(), content, attributes }
        };
        let requests: Vec<_> = (0..files.len()).map(request).collect();
        let how = WriteHow { replace: true, directories: None };
        self.caller.write_many(&requests, how, &mut |batch| {
            batch.files.iter().for_each(|at| told(*at, batch.result.clone()));
            true
        });
    }

    fn write_large(&self, file: &NewFile, size: u64, data: &mut dyn Data) -> Result<()> {
        let (above, _) = split(&file.path);
        let part = self.path(&join(above, PART_NAME));
        let _ = self.caller.unlink(&part);
        let written = self.fill(&part, size, data).and_then(|()| {
            self.set_all(&part, &file.attributes)?;
            Ok(self.caller.rename(&part, &self.path(&file.path), RenameHow::Replace)?)
        });
        if written.is_err() {
            let _ = self.caller.unlink(&part);
        }
        written
    }

    fn make_directory(&self, path: &[u8], mode: u32) -> FilesResult<()> {
        self.caller.mkdir(&self.path(path), mode)
    }

    fn set_attributes(&self, path: &[u8], attributes: &Attributes) -> FilesResult<()> {
        self.set_all(&self.path(path), attributes)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> FilesResult<()> {
        let (old, new) = (self.path(old), self.path(new));
        match self.caller.link(&old, &new, Links::Stay) {
            Err(error) if error.kind() == FsErrorKind::Exists => {}
            done => return done,
        }
        let aside = [&new[..new.len() - split(&new).1.len()], PART_NAME].concat();
        let _ = self.caller.unlink(&aside);
        self.caller.link(&old, &aside, Links::Stay)?;
        let renamed = self.caller.rename(&aside, &new, RenameHow::Replace);
        // A rename between two names of one file leaves both.
        let _ = self.caller.unlink(&aside);
        renamed
    }

    fn sync(&self) -> FilesResult<()> {
        self.opened.fs.syncfs()
    }
}

/// An open file of an image.
struct ImageFile {
    handle: Handle,
    size: u64,
}

impl OpenFile for ImageFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn extents(&self) -> FilesResult<Vec<Range<u64>>> {
        let (mut extents, mut at) = (Vec::new(), 0);
        while at < self.size {
            let begin = match self.handle.seek(at, Seek::Data) {
                Err(error) if error.kind() == FsErrorKind::NoSuchOffset => break,
                begin => begin?,
            };
            at = self.handle.seek(begin, Seek::Hole)?;
            extents.push(begin..at);
        }
        Ok(extents)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> FilesResult<usize> {
        self.handle.read_at(offset, out)
    }
}

/// The path of a place in its image.
fn path_of(inside: &Inside) -> Vec<u8> {
    [b"/", &inside.names.join(&b'/')[..]].concat()
}

/// The attributes of what is at a place; `None` if nothing is.
pub(crate) fn attr(opened: &Opened, inside: &Inside) -> FilesResult<Option<Attr>> {
    let caller = Paths::new(opened.fs.clone())?.caller(Credentials::default());
    match caller.stat(&path_of(inside), Links::Follow) {
        Err(error) if error.kind() == FsErrorKind::NotFound => Ok(None),
        attr => attr.map(Some),
    }
}

/// The permission bits that new files of this process do not get.
fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(old);
    old.as_raw_mode()
}
