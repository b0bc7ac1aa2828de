//! Benchmarks of Espalier side by side with the kernel's file systems.
//!
//! [`compare`] is behind `espalier bench`: a minute of small steps in any directories, or on fresh
//! file systems of each kind, with the time of each operation. [`suites`] is behind `espalier bench
//! suite`: longer, real work, with tar, git, fio and other people's servers.
//!
//! Nothing stays behind: an undo list is played backward at the end, on failure, and on Ctrl-C.

pub mod compare;
mod contender;
mod curves;
mod objects;
mod options;
mod paths;
mod picture;
mod random;
mod report;
mod steps;
mod subtrees;
pub mod suites;
mod system;
mod tree;
mod workspaces;
