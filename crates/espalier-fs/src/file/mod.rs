//! Calls on one file or directory: attributes, extended attributes, data.

pub(crate) mod allocate;
pub(crate) mod attr_reader;
pub(crate) mod attributes;
pub(crate) mod copied_beginnings;
pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod xattr;
