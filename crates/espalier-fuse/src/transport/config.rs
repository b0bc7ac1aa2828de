//! How a connection is to be served.

use super::device::Device;
use crate::metrics::Metrics;
use crate::protocol::{Dialect, init};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Which transport serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// FUSE over io_uring.
    Uring,
    /// Reads and writes of the FUSE device.
    Classic,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Classic => "classic",
        })
    }
}

/// What server and kernel have agreed on at INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// What messages mean.
    pub dialect: Dialect,
    /// Bytes that a WRITE carries or a READ returns at most.
    pub payload_bytes: usize,
}

/// Calls its argument with the ids (`gettid(2)`) of some threads of this process, none of which
/// ends meanwhile.
pub type ThreadLister = fn(&mut dyn FnMut(i32));

/// Starts this program again so that it calls [`make_requests`](super::make_requests) and ends.
pub type RequestMaker = fn() -> std::process::Command;

/// The rings of a connection whose answers are held, for another server that has their memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedRings {
    /// Where their memory lies.
    pub base: u64,
    /// All entries, in the order in which they lie there.
    pub entries: Vec<HandedEntry>,
}

/// An entry of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedEntry {
    /// The CPU of the queue.
    pub cpu: usize,
    /// By which the kernel knows the request whose answer lies there; `None`: there is none, since
    /// the CPU is off.
    pub commit_id: Option<u64>,
}

/// What another server hands over of its connection.
pub struct HandedConnection<'a> {
    /// The connection.
    pub device: Device,
    /// What that server agreed on with the kernel.
    pub terms: Terms,
    /// Its rings and their memory, if it served over io_uring.
    pub rings: Option<(&'a HandedRings, OwnedFd)>,
}

/// How to serve.
#[derive(Debug, Clone)]
pub struct Config {
    /// Use this transport or fail; `None`: io_uring where it works, otherwise classic.
    pub kind: Option<Kind>,
    /// Ring threads per CPU; `None`: 16, on machines with 32 CPUs or more 8. So many requests on a
    /// CPU may wait for storage.
    pub threads_per_cpu: Option<usize>,
    /// Lists the background threads that keep off CPUs on which many requests come.
    pub background: Option<ThreadLister>,
    /// What to ask of the kernel.
    pub init_parameters: init::InitParameters,
    /// Where to count what is served.
    pub metrics: Arc<Metrics>,
}
