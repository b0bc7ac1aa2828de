//! The C library: [`espalier_tree`] as functions, structs and opaque handles.
//!
//! `include/espalier-tree.h` is made from these files by cbindgen and begins with the rules for all
//! calls (`cbindgen.toml`); a test holds that it is current (`tests/header.rs`). No panic leaves a
//! function: it becomes EIO with a message.
//!
//! What every `unsafe` here stands on are those rules: a pointer that C passes is NULL where that
//! is allowed, or points to what its type says, for the time of the call; a handle is one that a
//! function has made and none has ended.

#![allow(unreachable_pub, reason = "the functions are reached by their names, from C")]

mod changes;
mod diffs;
mod files;
mod many;
mod names;
mod outcome;
mod tree;
mod types;
mod walks;
mod xattrs;
