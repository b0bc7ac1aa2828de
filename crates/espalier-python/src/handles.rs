//! Open files, and walks that go on.

use crate::values::{Entry, Stat, raised, shown};
use espalier_tree::{
    Change, Diff as TreeDiff, Entry as TreeEntry, File as TreeFile, Result, Walk as TreeWalk,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Entries that are taken from a walk while other Python threads may run.
const BATCH: usize = 256;

/// An open file. Positions are the caller's.
#[pyclass(frozen, module = "espalier._espalier")]
pub(crate) struct File(RwLock<Option<Arc<TreeFile>>>);

impl File {
    pub(crate) fn new(file: TreeFile) -> Self {
        Self(RwLock::new(Some(Arc::new(file))))
    }

    fn opened(&self) -> PyResult<Arc<TreeFile>> {
        let file = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn with<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&TreeFile) -> Result<T> + Send) -> PyResult<T> {
        let file = self.opened()?;
        py.detach(|| call(&file)).map_err(raised)
    }
}

#[pymethods]
impl File {
    /// Up to `length` bytes at `offset`.
    fn pread<'py>(&self, py: Python<'py>, length: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let mut read = 0;
        let bytes = PyBytes::new_with(py, length, |out| {
            read = self.with(py, |file| file.read_at(offset, out))?;
            Ok(())
        })?;
        if read == length { Ok(bytes) } else { Ok(PyBytes::new(py, &bytes.as_bytes()[..read])) }
    }

    /// Writes all of `data` at `offset`.
    fn pwrite(&self, py: Python<'_>, data: PyBackedBytes, offset: u64) -> PyResult<()> {
        self.with(py, |file| file.write_at(offset, &data))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.with(py, TreeFile::stat).map(Stat)
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.truncate(size))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, TreeFile::sync)
    }

    /// Closes it when calls that other threads make have ended.
    fn close(&self, py: Python<'_>) {
        let file = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(file));
    }
}

/// Entries of a walk, one after the other.
#[pyclass(frozen, module = "espalier._espalier")]
pub(crate) struct Walk(Going<TreeWalk, TreeEntry>);

/// Differences of two trees, one after the other.
#[pyclass(frozen, module = "espalier._espalier")]
pub(crate) struct Diff(Going<TreeDiff, (Change, Vec<u8>)>);

/// A stream from which elements are taken in batches.
struct Going<S, T>(Mutex<Batches<S, T>>);

struct Batches<S, T> {
    /// `None` at the end.
    stream: Option<S>,
    ready: VecDeque<Result<T>>,
}

impl<S: Iterator<Item = Result<T>> + Send, T: Send> Going<S, T> {
    fn new(stream: S) -> Self {
        Self(Mutex::new(Batches { stream: Some(stream), ready: VecDeque::new() }))
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<T>> {
        let next = py.detach(|| {
            let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Batches { stream, ready } = &mut *batches;
            if let Some(from) = stream.as_mut().filter(|_| ready.is_empty()) {
                ready.extend(from.take(BATCH));
                if ready.len() < BATCH {
                    *stream = None;
                }
            }
            ready.pop_front()
        });
        next.transpose().map_err(raised)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *batches = Batches { stream: None, ready: VecDeque::new() };
        });
    }
}

impl Walk {
    pub(crate) fn new(walk: TreeWalk) -> Self {
        Self(Going::new(walk))
    }
}

impl Diff {
    pub(crate) fn new(diff: TreeDiff) -> Self {
        Self(Going::new(diff))
    }
}

#[pymethods]
impl Walk {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Entry>> {
        self.0.next(py)?.map(|entry| Entry::of(py, &entry)).transpose()
    }

    /// Ends the walk.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }
}

#[pymethods]
impl Diff {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// How a path differs, and the path.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(&'static str, Bound<'py, PyString>)>> {
        let Some((change, path)) = self.0.next(py)? else { return Ok(None) };
        let change = match change {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Changed => "changed",
        };
        Ok(Some((change, shown(py, &path)?)))
    }

    /// Ends the comparison.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }
}
