//! Benchmarks of Espalier side by side with the kernel's file systems.
//!
//! [`compare`] is behind `espalier bench`: a minute of small steps in any directories, or on fresh
//! file systems of each kind, with the time of each operation. `suites`, of the feature of that
//! name, is behind `espalier bench suite`: longer, real work, with tar, git, fio and other people's
//! servers.
//!
//! Nothing stays behind: an undo list is played backward at the end, on failure, and on Ctrl-C.

#![cfg_attr(not(feature = "suites"), allow(dead_code, reason = "the suites use more of what they share"))]

pub mod compare;
mod contender;
#[cfg(feature = "suites")]
mod curves;
#[cfg(feature = "suites")]
mod objects;
#[cfg(feature = "suites")]
mod options;
#[cfg(feature = "suites")]
mod paths;
mod picture;
mod random;
#[cfg(feature = "suites")]
mod report;
#[cfg(feature = "suites")]
mod steps;
#[cfg(feature = "suites")]
mod subtrees;
#[cfg(feature = "suites")]
pub mod suites;
mod system;
#[cfg(feature = "suites")]
mod tree;
#[cfg(feature = "suites")]
mod workspaces;
