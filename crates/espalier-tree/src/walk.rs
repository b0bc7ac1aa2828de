//! Everything below a directory, entry by entry.

use crate::error::{Error, Result};
use crate::image::ImageWalk;
use espalier_client::Entry;

/// What lies below a directory, of one instant, in the order of keys: the entries of a directory by
/// name, then what lies below its subdirectories, one after the other. Dropping it ends the walk.
pub struct Walk {
    source: Source,
    top: Vec<u8>,
}

enum Source {
    Mounted(espalier_client::Walk),
    Image(ImageWalk),
}

impl Walk {
    pub(crate) fn of_mount(walk: espalier_client::Walk, top: &[u8]) -> Self {
        Self { source: Source::Mounted(walk), top: top.to_vec() }
    }

    pub(crate) fn of_image(walk: ImageWalk, top: &[u8]) -> Self {
        Self { source: Source::Image(walk), top: top.to_vec() }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.source {
            Source::Mounted(walk) => walk.next().map(|entry| entry.map_err(Error::from)),
            Source::Image(walk) => walk.next(),
        };
        next.map(|entry| entry.map_err(|error| error.of(&self.top)))
    }
}
