//! Open files, and walks and watches that go on.

use crate::values::{Entry, Stat, duration, raised, shown};
use espalier_tree::{
    Change, Changes as TreeChanges, Diff as TreeDiff, Entry as TreeEntry, File as TreeFile, Result,
    Walk as TreeWalk, Watch as TreeWatch,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// Entries that are taken from a walk while other Python threads may run.
const BATCH: usize = 256;

/// Position, whether everything may have changed, and paths.
pub(crate) type Changes<'py> = (Bound<'py, PyBytes>, bool, Vec<Bound<'py, PyString>>);

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

/// A watch of a directory, which one thread waits for at a time.
#[pyclass(frozen, module = "espalier._espalier")]
pub(crate) struct Watch {
    watched: Mutex<Watched>,
    /// Where the watch has come to.
    position: Mutex<Vec<u8>>,
    is_closed: AtomicBool,
}

struct Watched {
    /// `None` after the end.
    watch: Option<TreeWatch>,
    /// What a wait was told that ended with an exception.
    untold: Option<TreeChanges>,
}

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

/// What was changed, for Python.
pub(crate) fn changes<'py>(py: Python<'py>, found: &TreeChanges) -> PyResult<Changes<'py>> {
    let paths = found.paths.iter().map(|path| shown(py, path)).collect::<PyResult<_>>()?;
    Ok((PyBytes::new(py, &found.position), found.everything, paths))
}

impl Watch {
    pub(crate) fn new(watch: TreeWatch) -> Self {
        let position = Mutex::new(watch.position().to_vec());
        let watched = Mutex::new(Watched { watch: Some(watch), untold: None });
        Self { watched, position, is_closed: AtomicBool::new(false) }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Waits until something is changed, the time is over, the watch is closed, or a handler of a
    /// signal raises, which `raised_by_signal` gets.
    fn told(&self, limit: Duration, raised_by_signal: &mut Option<PyErr>) -> PyResult<TreeChanges> {
        let found = {
            let mut watched = match self.watched.try_lock() {
                Ok(watched) => watched,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // It may be one of this thread, if this is called from the handler of a signal, and
                // then it ends when the handler does.
                Err(TryLockError::WouldBlock) => {
                    return Err(PyRuntimeError::new_err("another call waits for this watch already"));
                }
            };
            watched.told(self, limit, raised_by_signal)
        };
        self.let_go_if_closed();
        found
    }

    /// Gives back what a closed watch holds, unless a wait is under way: that does it at its end.
    fn let_go_if_closed(&self) {
        if self.is_closed()
            && let Ok(mut watched) = self.watched.try_lock()
        {
            *watched = Watched { watch: None, untold: None };
        }
    }
}

impl Watched {
    fn told(
        &mut self,
        of: &Watch,
        limit: Duration,
        raised_by_signal: &mut Option<PyErr>,
    ) -> PyResult<TreeChanges> {
        let ended = || PyValueError::new_err("the watch was closed");
        let watch = self.watch.as_mut().ok_or_else(ended)?;
        let mut goes_on = || {
            if raised_by_signal.is_none() {
                *raised_by_signal = Python::attach(|py| py.check_signals()).err();
            }
            raised_by_signal.is_none() && !of.is_closed()
        };
        let found = match self.untold.take() {
            Some(untold) => untold,
            None => watch.wait_while(limit, &mut goes_on).map_err(raised)?,
        };
        let position = watch.position().to_vec();
        match found.everything || !found.paths.is_empty() {
            // A position behind what was not told would have it left out.
            true if raised_by_signal.is_some() => {
                self.untold = Some(found.clone());
                return Ok(found);
            }
            false if of.is_closed() => return Err(ended()),
            _ => {}
        }
        *of.position.lock().unwrap_or_else(PoisonError::into_inner) = position;
        Ok(found)
    }
}

#[pymethods]
impl Watch {
    /// Waits up to `timeout` seconds, or without end, for a change, or for a signal whose handler
    /// raises. One call at a time: another one, of the handler of a signal too, raises
    /// `RuntimeError`.
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Changes<'py>> {
        let limit = timeout.map_or(Ok(Duration::MAX), duration)?;
        let mut raised_by_signal = None;
        let found = py.detach(|| self.told(limit, &mut raised_by_signal));
        match raised_by_signal {
            Some(error) => Err(error),
            None => changes(py, &found?),
        }
    }

    /// Where the watch has come to.
    #[getter]
    fn position<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.position.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the watch, and a wait of another thread.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, Ordering::SeqCst);
        py.detach(|| self.let_go_if_closed());
    }
}
