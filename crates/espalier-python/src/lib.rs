//! The native part of the Python package `espalier`: [`espalier_tree`] as classes.
//!
//! The package's own files (`python/espalier`) have the types and the documentation that users see,
//! and turn what users pass into what is taken here. Every call lets other Python threads run
//! meanwhile. Errors are `OSError`, whose subclasses Python chooses by the number.

mod handles;
mod tree;
mod values;

use pyo3::prelude::*;

/// The native part of the package `espalier`.
#[pymodule]
mod _espalier {
    #[pymodule_export]
    use super::handles::{Diff, File, Walk, Watch};
    #[pymodule_export]
    use super::tree::{Tree, format_image};
    #[pymodule_export]
    use super::values::{Entry, Stat};
}
