//! Operations on whole trees: clone, change of owners and modes, removal, listing, comparison,
//! space.

pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod clone;
pub(crate) mod copy_numbers;
pub(crate) mod correct_areas;
pub(crate) mod diff;
pub(crate) mod list;
pub(crate) mod nodes_below;
pub(crate) mod remove;
pub(crate) mod space;
