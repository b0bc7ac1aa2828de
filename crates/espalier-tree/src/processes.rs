//! What a tree is reached by, once for each process that has the tree: a child of `fork` has the
//! memory of its parent, but neither its threads nor its turn in its connections.
//!
//! Invariant: only the process that opened a place makes calls to it, and only that process closes
//! it. A child opens the place anew with its first call. The places form a list that only grows, so
//! a call takes no lock that another thread could have held in the parent at the `fork`.

use crate::calls::{Calls, Subtree};
use crate::error::Result;
use crate::located::Located;
use std::sync::{Arc, OnceLock};

/// A place, as each process has opened it.
pub(crate) struct Processes {
    place: Place,
    first: OfProcess,
}

/// What a process opens.
enum Place {
    Located(Located),
    /// A directory of an image, by a path of another tree.
    Below(Arc<Processes>, Vec<u8>),
}

struct OfProcess {
    process: u32,
    /// `None` when it was left to the process that it belongs to.
    calls: Option<Box<dyn Calls>>,
    /// That of a child of this process.
    next: OnceLock<Box<OfProcess>>,
}

impl Processes {
    /// Opens a place for this process.
    ///
    /// # Errors
    /// Of [`Located::open`].
    pub(crate) fn open(located: Located) -> Result<Self> {
        let place = Place::Located(located);
        let first = OfProcess::open(&place, None)?;
        Ok(Self { place, first })
    }

    /// What lies below a directory of a place. In an image a child of `fork` looks it up anew.
    ///
    /// # Errors
    /// Of [`Calls::subtree`]; of [`Located::open`].
    pub(crate) fn below(above: &Arc<Self>, path: &[u8]) -> Result<Self> {
        match above.calls()?.subtree(path)? {
            Subtree::Mount(directory) => Self::open(Located::Mount(directory)),
            Subtree::Image(calls) => {
                let place = Place::Below(Arc::clone(above), path.to_vec());
                let first =
                    OfProcess { process: std::process::id(), calls: Some(calls), next: OnceLock::new() };
                Ok(Self { place, first })
            }
        }
    }

    /// The calls of this process, if it has made any or opened the place.
    pub(crate) fn opened(&self) -> Option<&dyn Calls> {
        let process = std::process::id();
        let mut at = Some(&self.first);
        while let Some(of_process) = at.filter(|of_process| of_process.process != process) {
            at = of_process.next.get().map(|next| &**next);
        }
        at.and_then(|of_process| of_process.calls.as_deref())
    }

    /// The calls of this process.
    ///
    /// # Errors
    /// Of [`Located::open`], in a child of `fork`.
    pub(crate) fn calls(&self) -> Result<&dyn Calls> {
        loop {
            if let Some(calls) = self.opened() {
                return Ok(calls);
            }
            let opened = Box::new(OfProcess::open(&self.place, Some(self.first.process))?);
            let mut last = &self.first;
            while let Some(next) = last.next.get() {
                last = next;
            }
            // Of two threads one keeps the place; both find it.
            let _ = last.next.set(opened);
        }
    }
}

impl OfProcess {
    fn open(place: &Place, parent: Option<u32>) -> Result<Self> {
        let calls = match place {
            Place::Located(located) => located.open(parent)?,
            Place::Below(above, path) => match above.calls()?.subtree(path)? {
                Subtree::Mount(directory) => Located::Mount(directory).open(None)?,
                Subtree::Image(calls) => calls,
            },
        };
        let calls = Some(calls);
        Ok(Self { process: std::process::id(), calls, next: OnceLock::new() })
    }
}

impl Drop for OfProcess {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Its threads are not here, and what it would write is the parent's to write.
            std::mem::forget(self.calls.take());
        }
    }
}
