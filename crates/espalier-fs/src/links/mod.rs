//! Link areas, where files with several names live, and their merging.

pub(crate) mod link_area;
pub(crate) mod merge_areas;
