//! Images that are not mounted: opened here, and the calls on their files.

mod calls;
mod opened;
mod walk;
mod watch;

pub(crate) use calls::ImageCalls;
pub(crate) use opened::Opened;
pub use opened::{ImageOptions, Owner, format_image};
pub(crate) use walk::ImageStream;
pub(crate) use watch::ImageWatch;
