//! The class `Tree`, as the package's own files use it.

use crate::handles::{Changes, Diff, File, Walk, Watch, changes};
use crate::values::{AnyPath, Entry, Stat, duration, raised, shown};
use espalier_tree::{
    ImageOptions, Links, Listing, ModeBits, OpenHow, Owner, Piece, Rename, Result, SetXattr, Time,
    Tree as InnerTree, Write, WriteFlags, Xattrs,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Path, content, whether it is a link; mode, owner, group, time of the last change; and names and
/// values of extended attributes.
type NewFile = (
    AnyPath,
    PyBackedBytes,
    bool,
    Option<u32>,
    Option<u32>,
    Option<u32>,
    Option<i64>,
    Vec<(AnyPath, PyBackedBytes)>,
);
/// A pattern, bits of kinds, and ranges of sizes and of times.
type Filter = (Option<AnyPath>, u16, Option<(u64, u64)>, Option<(i64, i64)>);

/// What lies below a directory of a mount or of an image.
#[pyclass(frozen, module = "espalier._espalier")]
pub(crate) struct Tree(InnerTree);

/// Makes an empty file system in a new image file of so many bytes.
#[pyfunction]
pub(crate) fn format_image(py: Python<'_>, path: AnyPath, size: u64) -> PyResult<()> {
    let path = &path.0;
    let made = py.detach(|| espalier_tree::format_image(OsStr::from_bytes(path), size));
    made.map_err(|error| raised(error.of(path)))
}

fn links(follow: bool) -> Links {
    if follow { Links::Follow } else { Links::Stay }
}

fn listing((pattern, kinds, size, modified): Filter) -> Listing {
    Listing {
        pattern: pattern.map(|pattern| pattern.0),
        kinds,
        size: size.map(|(least, most)| least..=most),
        modified: modified.map(|(first, last)| first..=last),
    }
}

/// A list of values, and of exceptions where there are none.
fn results<'py, T>(
    py: Python<'py>,
    found: Vec<Result<T>>,
    as_object: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in found {
        match result {
            Ok(value) => list.append(as_object(value)?)?,
            Err(error) => list.append(raised(error).into_value(py))?,
        }
    }
    Ok(list)
}

impl Tree {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&InnerTree) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&self.0)).map_err(raised)
    }
}

#[pymethods]
impl Tree {
    #[new]
    fn new(
        py: Python<'_>,
        place: AnyPath,
        read_only: bool,
        memory: u64,
        wait: f64,
        as_root: bool,
    ) -> PyResult<Self> {
        let owner = if as_root { Owner::Root } else { Owner::Process };
        let options = ImageOptions { read_only, memory_bytes: memory, owner, wait: duration(wait)? };
        let open = || InnerTree::open(OsStr::from_bytes(place.as_ref()), &options);
        py.detach(open).map(Self).map_err(raised)
    }

    fn subtree(&self, py: Python<'_>, path: AnyPath) -> PyResult<Self> {
        self.with(py, |tree| tree.subtree(path)).map(Self)
    }

    fn stat(&self, py: Python<'_>, path: AnyPath, follow: bool) -> PyResult<Stat> {
        self.with(py, |tree| tree.stat(path, links(follow))).map(Stat)
    }

    fn stat_many<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<AnyPath>,
        follow: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = self.with(py, |tree| tree.stat_many(&paths, links(follow)))?;
        results(py, found, |stat| Ok(Bound::new(py, Stat(stat))?.into_any()))
    }

    /// Parts of files: path, offset, length.
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        pieces: Vec<(AnyPath, u64, u64)>,
    ) -> PyResult<Bound<'py, PyList>> {
        let read = self.with(py, |tree| {
            let pieces: Vec<Piece<'_>> = pieces
                .iter()
                .map(|(path, offset, length)| Piece { path: &path.0, offset: *offset, length: *length })
                .collect();
            let mut found: Vec<Result<Vec<u8>>> = pieces.iter().map(|_| Ok(Vec::new())).collect();
            tree.read_many(&pieces, &mut |at, data| {
                if let Some(place) = found.get_mut(at) {
                    *place = data.map(<[u8]>::to_vec);
                }
                true
            })?;
            Ok(found)
        })?;
        results(py, read, |data| Ok(PyBytes::new(py, &data).into_any()))
    }

    fn write_many<'py>(
        &self,
        py: Python<'py>,
        files: Vec<NewFile>,
        replace: bool,
        directories: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let written = self.with(py, |tree| {
            let xattrs: Vec<Xattrs> = files.iter().map(|file| xattrs_of(&file.7)).collect();
            let writes: Vec<Write<'_>> =
                files.iter().zip(&xattrs).map(|(file, xattrs)| as_write(file).with_xattrs(xattrs)).collect();
            Ok(tree.write_many(&writes, WriteFlags { replace, directories }))
        })?;
        results(py, written, |()| Ok(py.None().into_bound(py)))
    }

    fn walk(&self, py: Python<'_>, path: AnyPath, filter: Filter) -> PyResult<Walk> {
        let listing = listing(filter);
        self.with(py, |tree| tree.walk(path, &listing)).map(Walk::new)
    }

    fn scandir(&self, py: Python<'_>, path: AnyPath, filter: Filter) -> PyResult<Vec<Entry>> {
        let listing = listing(filter);
        let entries: Vec<_> = self.with(py, |tree| tree.entries(path, &listing)?.collect())?;
        entries.iter().map(|entry| Entry::of(py, entry)).collect()
    }

    fn open(
        &self,
        py: Python<'_>,
        path: AnyPath,
        access: (bool, bool),
        create: Option<u32>,
        exclusive: bool,
        truncate: bool,
    ) -> PyResult<File> {
        let (read, write) = access;
        let how = OpenHow { read, write, create, exclusive, truncate };
        self.with(py, |tree| tree.open_file(path, &how)).map(File::new)
    }

    fn mkdir(&self, py: Python<'_>, path: AnyPath, mode: u32, parents: bool) -> PyResult<()> {
        self.with(py, |tree| tree.make_directory(path, mode, parents))
    }

    fn symlink(&self, py: Python<'_>, target: AnyPath, path: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.symlink(target, path))
    }

    fn link(&self, py: Python<'_>, old: AnyPath, new: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.link(old, new))
    }

    fn unlink(&self, py: Python<'_>, path: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.unlink(path))
    }

    fn rmdir(&self, py: Python<'_>, path: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.remove_directory(path))
    }

    fn remove_tree(&self, py: Python<'_>, path: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.remove_tree(path))
    }

    fn clone(&self, py: Python<'_>, old: AnyPath, new: AnyPath) -> PyResult<()> {
        self.with(py, |tree| tree.clone_tree(old, new))
    }

    fn diff(&self, py: Python<'_>, old: AnyPath, new: AnyPath) -> PyResult<Diff> {
        self.with(py, |tree| tree.diff(old, new)).map(Diff::new)
    }

    fn chown_tree(&self, py: Python<'_>, path: AnyPath, uid: Option<u32>, gid: Option<u32>) -> PyResult<()> {
        self.with(py, |tree| tree.own_tree(path, uid, gid))
    }

    fn chmod_tree(&self, py: Python<'_>, path: AnyPath, clear: u32, add: u32, execute: u32) -> PyResult<()> {
        self.with(py, |tree| tree.mode_tree(path, ModeBits { clear, add, execute }))
    }

    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: AnyPath,
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyString>>> {
        let found = self.with(py, |tree| tree.xattrs(path, links(follow)))?;
        found.iter().map(|(name, _)| shown(py, name)).collect()
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: AnyPath,
        name: AnyPath,
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.with(py, |tree| tree.xattr(path, &name.0, links(follow)))?;
        Ok(PyBytes::new(py, &found))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: AnyPath,
        name: AnyPath,
        value: PyBackedBytes,
        how: &str,
        follow: bool,
    ) -> PyResult<()> {
        let how = match how {
            "set" => SetXattr::Set,
            "create" => SetXattr::Create,
            "replace" => SetXattr::Replace,
            _ => return Err(PyValueError::new_err("one of 'set', 'create' and 'replace'")),
        };
        self.with(py, |tree| tree.set_xattr(path, (&name.0, &value), how, links(follow)))
    }

    fn removexattr(&self, py: Python<'_>, path: AnyPath, name: AnyPath, follow: bool) -> PyResult<()> {
        self.with(py, |tree| tree.remove_xattr(path, &name.0, links(follow)))
    }

    fn rename(&self, py: Python<'_>, old: AnyPath, new: AnyPath, how: &str) -> PyResult<()> {
        let how = match how {
            "replace" => Rename::Replace,
            "keep" => Rename::NoReplace,
            "exchange" => Rename::Exchange,
            _ => return Err(PyValueError::new_err("a rename is one of 'replace', 'keep' and 'exchange'")),
        };
        self.with(py, |tree| tree.rename(old, new, how))
    }

    fn chmod(&self, py: Python<'_>, path: AnyPath, mode: u32) -> PyResult<()> {
        self.with(py, |tree| tree.set_mode(path, mode))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: AnyPath,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        self.with(py, |tree| tree.set_owner(path, uid, gid, links(follow)))
    }

    /// Sets both times; `None` is now.
    fn utime(&self, py: Python<'_>, path: AnyPath, ns: Option<(i64, i64)>, follow: bool) -> PyResult<()> {
        let times = ns.map_or((Time::Now, Time::Now), |(read, changed)| (Time::At(read), Time::At(changed)));
        self.with(py, |tree| tree.set_times(path, times, links(follow)))
    }

    fn truncate(&self, py: Python<'_>, path: AnyPath, size: u64) -> PyResult<()> {
        self.with(py, |tree| tree.truncate(path, size))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: AnyPath) -> PyResult<Bound<'py, PyString>> {
        let target = self.with(py, |tree| tree.read_link(path))?;
        shown(py, &target)
    }

    fn changes<'py>(
        &self,
        py: Python<'py>,
        path: AnyPath,
        position: PyBackedBytes,
    ) -> PyResult<Changes<'py>> {
        changes(py, &self.with(py, |tree| tree.changes(path, &position))?)
    }

    /// Watches from a position on.
    fn watch(&self, py: Python<'_>, path: AnyPath, position: PyBackedBytes) -> PyResult<Watch> {
        self.with(py, |tree| tree.watch(path, &position)).map(Watch::new)
    }

    /// Watches from a snapshot on.
    fn watch_since(&self, py: Python<'_>, path: AnyPath, snapshot: AnyPath) -> PyResult<Watch> {
        self.with(py, |tree| tree.watch_since(path, snapshot)).map(Watch::new)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, InnerTree::sync)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, InnerTree::close)
    }
}

fn xattrs_of(given: &[(AnyPath, PyBackedBytes)]) -> Xattrs {
    let mut all = Xattrs::default();
    given.iter().for_each(|(name, value)| all.push(&name.0, value));
    all
}

fn as_write((path, content, is_symlink, mode, uid, gid, mtime, _): &NewFile) -> Write<'_> {
    let content: &[u8] = content;
    let mut write = if *is_symlink { Write::symlink(path, content) } else { Write::file(path, content) };
    if let Some(mode) = mode {
        write = write.with_mode(*mode);
    }
    if let Some(mtime) = mtime {
        write = write.with_mtime(*mtime);
    }
    write.with_owner(*uid, *gid)
}
