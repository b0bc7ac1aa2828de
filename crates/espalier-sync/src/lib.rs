//! Locks of Espalier.
//!
//! Invariant: what a lock knows lies in the lock. A library can be loaded into a program that
//! forks, as the workers of a PyTorch `DataLoader` are made; the child has only the thread that
//! called `fork`, but a copy of all memory. A child makes locks of its own and leaves its parent's
//! alone. That is right only if locks share nothing: a table of waiting threads, one for the whole
//! process (as `parking_lot` has), still lists the parent's threads in the child, whose memory the
//! child's new threads reuse, and walking the table may then never end.
//!
//! So these are the locks of the standard library, which on Linux are words for `futex(2)`. They
//! differ from them in two ways. A thread that panics does not poison a lock: what it guards is
//! kept consistent by those that hold it, and a panic while a request is carried out ends that
//! request alone. And a condition variable takes a guard by reference, so a function can wait for
//! something with a guard that belongs to its caller.
//!
//! The memory model is that of [`std::sync`]: a thread that takes a lock sees all that was written
//! before the lock was last given back. Only a [`SharedLock`], which is not of the standard
//! library, is fair: a thread that shares it may share it again, which [`RwLock`] does not allow.

mod condvar;
mod mutex;
mod rwlock;
mod shared_lock;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use shared_lock::{OwnedGuard, SharedGuard, SharedLock};

#[cfg(test)]
mod tests;
