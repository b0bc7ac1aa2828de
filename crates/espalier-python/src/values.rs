//! What goes in and out: paths, attributes, entries, errors.

use espalier_tree::{Entry as TreeEntry, Error, Stat as TreeStat};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

const FILE_TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

/// A path as Python has it: `str`, `bytes`, or an object with `__fspath__`.
pub(crate) struct AnyPath(pub(crate) Vec<u8>);

impl AsRef<[u8]> for AnyPath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for AnyPath {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().to_vec()));
        }
        Ok(Self(object.extract::<PathBuf>()?.into_os_string().into_vec()))
    }
}

/// A path for Python: bytes that are no UTF-8 become surrogates, as in all of Python.
pub(crate) fn shown<'py>(py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyString>> {
    Ok(OsStr::from_bytes(path).into_pyobject(py)?)
}

/// An error for Python.
pub(crate) fn raised(error: Error) -> PyErr {
    let path = error.path().map(|path| OsString::from_vec(path.to_vec()));
    PyOSError::new_err((error.errno(), error.message().to_owned(), path))
}

/// A time to wait, in seconds; less than 0 is none.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds.max(0.0))
        .map_err(|error| PyValueError::new_err(format!("no time to wait: {error}")))
}

/// The attributes of a file, named as `os.stat_result` names them.
#[pyclass(frozen, module = "espalier")]
#[derive(Clone, Copy)]
pub(crate) struct Stat(pub(crate) TreeStat);

#[pymethods]
impl Stat {
    /// The number.
    #[getter]
    fn st_ino(&self) -> u64 {
        self.0.ino
    }

    /// Type and permissions.
    #[getter]
    fn st_mode(&self) -> u32 {
        self.0.mode
    }

    /// Number of names.
    #[getter]
    fn st_nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Owner.
    #[getter]
    fn st_uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[getter]
    fn st_gid(&self) -> u32 {
        self.0.gid
    }

    /// Device number of a device file.
    #[getter]
    fn st_rdev(&self) -> u64 {
        self.0.rdev
    }

    /// Bytes; of a directory, entries.
    #[getter]
    fn st_size(&self) -> u64 {
        self.0.size
    }

    /// Space that the data takes, in units of 512 bytes.
    #[getter]
    fn st_blocks(&self) -> u64 {
        self.0.blocks
    }

    /// The unit of data that is efficient to write, in bytes.
    #[getter]
    fn st_blksize(&self) -> u32 {
        self.0.blksize
    }

    /// Last read, nanoseconds since the Unix epoch.
    #[getter]
    fn st_atime_ns(&self) -> i64 {
        self.0.atime
    }

    /// Last change of the content, nanoseconds since the Unix epoch.
    #[getter]
    fn st_mtime_ns(&self) -> i64 {
        self.0.mtime
    }

    /// Last change of content or attributes, nanoseconds since the Unix epoch.
    #[getter]
    fn st_ctime_ns(&self) -> i64 {
        self.0.ctime
    }

    /// Creation, nanoseconds since the Unix epoch.
    #[getter]
    fn st_birthtime_ns(&self) -> i64 {
        self.0.btime
    }

    /// Last change of the content, seconds since the Unix epoch.
    #[getter]
    fn st_mtime(&self) -> f64 {
        self.0.mtime as f64 / 1e9
    }

    fn is_dir(&self) -> bool {
        self.0.mode & FILE_TYPE == DIRECTORY
    }

    fn is_file(&self) -> bool {
        self.0.mode & FILE_TYPE == REGULAR
    }

    fn is_symlink(&self) -> bool {
        self.0.mode & FILE_TYPE == SYMBOLIC_LINK
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().0 == self.0)
    }

    fn __repr__(&self) -> String {
        let TreeStat { ino, mode, uid, gid, size, mtime, .. } = self.0;
        format!(
            "Stat(st_ino={ino}, st_mode=0o{mode:o}, st_uid={uid}, st_gid={gid}, st_size={size}, \
             st_mtime_ns={mtime})"
        )
    }
}

/// An entry of a listing or a walk.
#[pyclass(frozen, get_all, module = "espalier")]
pub(crate) struct Entry {
    /// The name, or the path below the directory of the walk.
    path: Py<PyString>,
    /// The attributes.
    stat: Stat,
    /// A directory that the caller may not list or search.
    is_closed: bool,
}

impl Entry {
    pub(crate) fn of(py: Python<'_>, entry: &TreeEntry) -> PyResult<Self> {
        let path = shown(py, &entry.path)?.unbind();
        Ok(Self { path, stat: Stat(entry.stat), is_closed: entry.is_closed })
    }
}

#[pymethods]
impl Entry {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = self.path.bind(py).repr()?;
        Ok(format!("Entry(path={path}, stat={}, is_closed={})", self.stat.__repr__(), self.is_closed))
    }
}
