//! Making and replacing many files.

use crate::changes::{Changer, before_change};
use crate::details::check_xattrs;
use crate::failure::{Failure, Outcome};
use espalier_bridge::NewFile;
use espalier_client::wire::{NewItem, WriteFlags, Writer};
use espalier_fs::{Handle, NodeId, WriteHow, WriteRequest};
use espalier_fuse::ChangedCaches;
use std::collections::HashMap;

/// A file that is to be made in a directory that is there.
struct Placed<'f> {
    /// The place of the file among those that were asked for.
    at: usize,
    /// The place of its directory among those that are open.
    directory: usize,
    name: Vec<u8>,
    file: NewFile<'f>,
}

impl<'f> Placed<'f> {
    fn new(at: usize, directory: usize, name: Vec<u8>, file: &NewItem<'f>) -> Self {
        Self { at, directory, name, file: NewFile::of(file) }
    }

    fn as_request<'r>(&'r self, directory: &'r Handle) -> WriteRequest<'r>
    where
        'f: 'r,
    {
        self.file.as_request(directory.at(&self.name))
    }
}

/// Directories that are open, each once.
#[derive(Default)]
struct Directories<'f> {
    open: Vec<Handle>,
    by_node: HashMap<NodeId, usize>,
    /// The directory of the last file, as its path has it with a slash behind, which the next file
    /// may share.
    last: Option<(&'f [u8], usize)>,
}

impl<'f> Directories<'f> {
    /// The directory of a path that ends with a plain name, if it is that of the last one.
    fn nearby(&self, above: &[u8], name: &[u8]) -> Option<usize> {
        let is_plain = !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        self.last.filter(|(last, _)| is_plain && *last == above).map(|(_, directory)| directory)
    }

    fn add(&mut self, directory: Handle) -> usize {
        let node = directory.node();
        if let Some(known) = node.and_then(|node| self.by_node.get(&node)) {
            return *known;
        }
        self.open.push(directory);
        let at = self.open.len() - 1;
        self.by_node.extend(node.map(|node| (node, at)));
        at
    }
}

impl Changer<'_> {
    /// Makes or replaces files. The answer has for each of them an error number, or 0, and a
    /// message.
    pub(crate) fn write_many(&self, files: &[NewItem<'_>], how: WriteFlags) -> Outcome<Vec<u8>> {
        let mut directories = Directories::default();
        let mut results: Vec<Outcome<()>> = files.iter().map(|_| Ok(())).collect();
        let mut placed = Vec::with_capacity(files.len());
        for (at, file) in files.iter().enumerate() {
            match self.place(at, file, how, &mut directories) {
                Ok(file) => placed.push(file),
                Err(error) => results[at] = Err(error),
            }
        }
        self.write_placed(&placed, &directories.open, how, &mut results);
        if results.iter().any(|result| matches!(result, Err(error) if error.errno == libc::ENOSPC))
            && self.access.fs().release_unlinked()
        {
            placed.retain(|file| matches!(&results[file.at], Err(error) if error.errno == libc::ENOSPC));
            self.write_placed(&placed, &directories.open, how, &mut results);
        }
        let mut out = Writer::default();
        for result in &results {
            let (errno, message) = match result {
                Ok(()) => (0, &b""[..]),
                Err(failure) => (failure.errno.cast_unsigned(), failure.shown()),
            };
            out.u32(errno);
            out.bytes(message);
        }
        Ok(out.0)
    }

    /// Finds, or makes, the directory of a file.
    fn place<'f>(
        &self,
        at: usize,
        file: &NewItem<'f>,
        how: WriteFlags,
        directories: &mut Directories<'f>,
    ) -> Outcome<Placed<'f>> {
        self.check_new(file)?;
        let path = file.file.path;
        let end = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(end);
        if let Some(directory) = directories.nearby(above, name) {
            return Ok(Placed::new(at, directory, name.to_vec(), file));
        }
        let named = match (self.named(path), how.directories) {
            (Err(error), Some(mode)) if error.errno == libc::ENOENT => {
                let end = path.iter().rposition(|byte| *byte == b'/').ok_or(error)?;
                self.make_directory(&path[..end], mode, true)?;
                self.named(path)?
            }
            (named, _) => named?,
        };
        let is_directory = || Failure::new(libc::EISDIR, "the path is that of a directory");
        let named = named.filter(|named| named.plain_name() == named.name).ok_or_else(is_directory)?;
        let directory = directories.add(named.directory);
        // A name that is no link's: where the path before it leads.
        directories.last = (named.name == name).then_some((above, directory));
        Ok(Placed::new(at, directory, named.name, file))
    }

    /// Refuses what only the kernel can judge.
    fn check_new(&self, file: &NewItem<'_>) -> Outcome<()> {
        let is_device = match file.node {
            Some((libc::S_IFCHR, device)) => device != 0,
            Some((kind, _)) => kind == libc::S_IFBLK,
            None => false,
        };
        if is_device && !self.powers.devices {
            return Err(Failure::new(libc::EPERM, "the process may not make devices"));
        }
        check_xattrs(file.xattrs, self.powers)
    }

    /// Makes files of open directories, and tells the kernel of those that were made.
    fn write_placed(
        &self,
        placed: &[Placed<'_>],
        directories: &[Handle],
        how: WriteFlags,
        results: &mut [Outcome<()>],
    ) {
        let requests: Vec<WriteRequest<'_>> =
            placed.iter().map(|file| file.as_request(&directories[file.directory])).collect();
        let how = WriteHow { replace: how.replace, directories: None };
        let mut changed = ChangedCaches::default();
        before_change();
        self.caller.write_many(&requests, how, &mut |batch| {
            for at in batch.files {
                let file = &placed[*at];
                results[file.at] = batch.result.clone().map_err(Failure::from);
                if batch.result.is_ok() {
                    let directory = directories[file.directory].node();
                    directory.into_iter().for_each(|node| changed.name(node, &file.name));
                }
            }
            batch.replaced.iter().for_each(|node| changed.attributes(*node));
            true
        });
        if let Err(error) = self.tell(changed) {
            placed.iter().for_each(|file| results[file.at] = Err(error.clone()));
        }
    }
}
