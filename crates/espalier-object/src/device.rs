//! Object device: a block device of fixed size whose blocks lie in an object store.
//!
//! Protocol: writes gather in a segment in memory, reads look there, then in what is on its way,
//! then in the map. A sync publishes: it puts the segments and then a root that names them
//! ([`publish`]). With a journal, writes and syncs go there first ([`journaled`]). One background
//! thread renews the lease ([`mod@line`]), another one deletes what is dead and compacts
//! ([`maintain`], [`compact`]); without threads the caller does it with [`ObjectDevice::step`].
//!
//! Invariants:
//! - a block is looked for in this order: what changed since the last publishing began (`overlay`),
//!   what is being published (`frozen`), the map;
//! - after the first failure to publish, or a panic in it, every write and sync fails (the
//!   *latch*), and nothing is deleted any more;
//! - locks: publishing, then the line of roots, then the journal's writer, then state; state is
//!   never held while a request is waited for, the line only while a root is put.

mod check;
mod claim;
mod compact;
mod error;
mod frames;
mod inner;
mod journaled;
mod line;
mod maintain;
mod newer;
mod object_device;
mod open;
mod options;
mod probe;
mod publish;
mod read;
mod recount;
mod tables;

pub use check::{CheckReport, check_objects};
pub use object_device::ObjectDevice;
pub use options::{Access, Options, Present};
