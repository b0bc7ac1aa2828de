//! Which files a listing gives to the kernel with their attributes.
//!
//! A program that looks at the files which it lists is served best by listings with attributes: it
//! makes no request for them then. For a program that wants names only they are in vain, and take
//! the kernel an inode and the server a node for each name, several times what the name takes. No
//! request tells the two apart: the kernel asks for attributes in any case, and answers from what
//! it was given. So some listings of each process leave out one file, a *probe*: a program that
//! looks at files asks for it by its name. After some probes that no program asked for, the files
//! of further directories are left out; directories are always given, as a walk goes on with those
//! below. The first file that is asked for ends that.
//!
//! A process is a thread of a program, as requests tell it.

use espalier_fs::ListedNodes;
use espalier_sync::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Listings of a process before the first probe: most programs list one directory.
const LISTINGS_BEFORE_PROBES: u32 = 1;

/// Listings of a process that has asked for a file before the next probe.
const LISTINGS_AFTER_ANSWER: u32 = 256;

/// Probes in a row that no program asked for, after which files are left out.
const MIN_UNANSWERED_PROBES: u32 = 3;

/// Processes that are remembered.
const MAX_PROCESSES: usize = 16;

/// Directories that are remembered with the process to which they were listed without some file:
/// another thread may be the one that looks at the files.
const MAX_DIRECTORIES: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct ListingStyles {
    table: Mutex<Table>,
    /// Some file was left out and not asked for yet.
    waits: AtomicBool,
    /// Nothing is ever left out.
    always_all: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// The one that listed last comes last.
    processes: VecDeque<Lister>,
    /// Directories of which files were left out, and the process that listed them; newest last.
    directories: VecDeque<(u64, u32)>,
}

#[derive(Debug)]
struct Lister {
    process: u32,
    /// Listings that are left before the next probe.
    rest: u32,
    /// Probes that no program asked for.
    unanswered: u32,
}

impl ListingStyles {
    /// All listings have all attributes from now on (`-o readdirplus=always`).
    pub(super) fn give_all(&mut self) {
        self.always_all = true;
    }

    /// What a listing with attributes gives that `process` asks for, which begins with the first
    /// entry if `is_first`.
    pub(super) fn begin(&self, process: u32, is_first: bool) -> ListedNodes {
        if self.always_all || process == 0 {
            return ListedNodes::All;
        }
        let mut table = self.table.lock();
        let lister = table.lister(process);
        if lister.unanswered >= MIN_UNANSWERED_PROBES {
            return ListedNodes::Directories;
        }
        if !is_first {
            return ListedNodes::All;
        }
        match lister.rest.checked_sub(1) {
            Some(rest) => lister.rest = rest,
            None => return ListedNodes::AllButOneFile,
        }
        ListedNodes::All
    }

    /// A listing of `directory` has left out files.
    pub(super) fn left_out(&self, process: u32, directory: u64, nodes: ListedNodes) {
        let mut table = self.table.lock();
        if nodes == ListedNodes::AllButOneFile {
            table.lister(process).unanswered += 1;
        }
        if table.directories.len() == MAX_DIRECTORIES {
            table.directories.pop_front();
        }
        table.directories.push_back((directory, process));
        self.waits.store(true, Ordering::Release);
    }

    /// `process` has asked for a file of `directory` by its name.
    pub(super) fn asked_for_file(&self, process: u32, directory: u64) {
        if !self.waits.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table.lock();
        let listed = table.directories.iter().rev().find(|(listed, _)| *listed == directory);
        let lister = listed.map_or(process, |(_, lister)| *lister);
        for of in [process, lister] {
            table.answer(of);
        }
        let waits = table.processes.iter().any(|lister| lister.unanswered > 0);
        self.waits.store(waits, Ordering::Release);
    }
}

impl Table {
    /// What is known of a process, which lists.
    fn lister(&mut self, process: u32) -> &mut Lister {
        let known = self.processes.iter().position(|lister| lister.process == process);
        let lister = known.and_then(|at| self.processes.remove(at));
        if self.processes.len() == MAX_PROCESSES {
            self.processes.pop_front();
        }
        let new = || Lister { process, rest: LISTINGS_BEFORE_PROBES, unanswered: 0 };
        self.processes.push_back(lister.unwrap_or_else(new));
        let last = self.processes.len() - 1;
        &mut self.processes[last]
    }

    /// A process looks at files.
    fn answer(&mut self, process: u32) {
        for lister in self.processes.iter_mut().filter(|lister| lister.process == process) {
            (lister.rest, lister.unanswered) = (LISTINGS_AFTER_ANSWER, 0);
        }
        self.directories.retain(|(_, lister)| *lister != process);
    }
}

#[cfg(test)]
mod tests;
