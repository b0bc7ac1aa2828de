//! Open files, and walks that go on.

use crate::values::{Entry, Stat, raised};
use espalier_tree::{Entry as TreeEntry, File as TreeFile, Result, Walk as TreeWalk};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
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
pub(crate) struct Walk(Mutex<Going>);

struct Going {
    /// `None` at the end.
    walk: Option<TreeWalk>,
    ready: VecDeque<Result<TreeEntry>>,
}

impl Walk {
    pub(crate) fn new(walk: TreeWalk) -> Self {
        Self(Mutex::new(Going { walk: Some(walk), ready: VecDeque::new() }))
    }
}

#[pymethods]
impl Walk {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Entry>> {
        let next = py.detach(|| {
            let mut going = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Going { walk, ready } = &mut *going;
            if let Some(from) = walk.as_mut().filter(|_| ready.is_empty()) {
                ready.extend(from.take(BATCH));
                if ready.len() < BATCH {
                    *walk = None;
                }
            }
            ready.pop_front()
        });
        match next.transpose().map_err(raised)? {
            Some(entry) => Entry::of(py, &entry).map(Some),
            None => Ok(None),
        }
    }

    /// Ends the walk.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let mut going = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *going = Going { walk: None, ready: VecDeque::new() };
        });
    }
}
