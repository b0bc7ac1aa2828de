//! Link areas, where files with several names live, their merging and splitting.

pub(crate) mod link_area;
pub(crate) mod merge_areas;
pub(crate) mod split_areas;
