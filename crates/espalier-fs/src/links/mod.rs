//! Files with several names: the links index, link areas, and the merging of areas.

pub(crate) mod link_area;
pub(crate) mod link_index;
pub(crate) mod merge_areas;
