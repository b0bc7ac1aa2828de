//! The server of clients: programs that talk to the server of a mount past the kernel.
//!
//! A [`ClientServer`] listens on an abstract Unix socket, to which an ioctl on any directory of the
//! mount leads. `docs/protocol.md` has the protocol, and argues why no client has rights that it
//! has not through the mount (`admission`), why both sides see what the other one does (`changes`),
//! and how time and memory are shared out (`server`, `places`, `session`). What clients pass is
//! closed where it holds nothing up (`closer`). A client that waits for a change takes no thread
//! (`waits`).

mod admission;
mod changes;
mod closer;
mod details;
mod failure;
mod places;
mod readers;
mod reads;
mod server;
mod session;
mod stream;
mod stream_threads;
mod timer;
mod waits;
mod writes;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
extern crate self as espalier_server;

pub use server::ClientServer;

#[test]
fn serves_when_asked() {
    common::serve_if_asked();
}
