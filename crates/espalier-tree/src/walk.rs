//! What comes element by element: everything below a directory, and what differs between two.

use crate::error::{Error, Result};
use crate::image::ImageStream;
use espalier_bridge::{attr_of, filter_of};
use espalier_client::{Change, Entry, Listing};
use espalier_fs::Filter;

/// What lies below a directory, of one instant, in the order of keys: the entries of a directory by
/// name, then what lies below its subdirectories, one after the other. Dropping it ends the walk.
pub struct Walk {
    stream: Stream<espalier_client::Walk, Entry>,
    /// Only what lies in the directory itself is given, and of that what this lets through.
    top: Option<Filter>,
}

/// What differs between two directories: how, and the path below both. Dropping it ends the
/// comparison.
pub struct Diff(Stream<espalier_client::Diff, (Change, Vec<u8>)>);

/// A stream of a mount or of an image, and the path that its errors are about.
struct Stream<M, T> {
    source: Source<M, T>,
    path: Vec<u8>,
}

enum Source<M, T> {
    Mounted(M),
    Image(ImageStream<T>),
}

impl<M, T> Stream<M, T>
where
    M: Iterator<Item = espalier_client::Result<T>>,
    T: Send + 'static,
{
    fn next(&mut self) -> Option<Result<T>> {
        let next = match &mut self.source {
            Source::Mounted(stream) => stream.next().map(|element| element.map_err(Error::from)),
            Source::Image(stream) => stream.next(),
        };
        next.map(|element| element.map_err(|error| error.of(&self.path)))
    }
}

impl Walk {
    pub(crate) fn of_mount(walk: espalier_client::Walk, top: &[u8]) -> Self {
        Self { stream: Stream { source: Source::Mounted(walk), path: top.to_vec() }, top: None }
    }

    pub(crate) fn of_image(walk: ImageStream<Entry>, top: &[u8]) -> Self {
        Self { stream: Stream { source: Source::Image(walk), path: top.to_vec() }, top: None }
    }

    /// The same of the directory itself only. The walk lets everything through: so the first entry
    /// of a subdirectory is its end, wherever `listing` would have the next one.
    pub(crate) fn only_top(self, listing: &Listing) -> Self {
        Self { top: Some(filter_of(listing)), ..self }
    }
}

impl Diff {
    pub(crate) fn of_mount(diff: espalier_client::Diff, new: &[u8]) -> Self {
        Self(Stream { source: Source::Mounted(diff), path: new.to_vec() })
    }

    pub(crate) fn of_image(diff: ImageStream<(Change, Vec<u8>)>, new: &[u8]) -> Self {
        Self(Stream { source: Source::Image(diff), path: new.to_vec() })
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(filter) = &self.top else { return self.stream.next() };
        loop {
            let entry = match self.stream.next()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            if entry.path.contains(&b'/') {
                return None;
            }
            let is_wanted = attr_of(&entry.stat).is_some_and(|attr| filter.matches(&entry.path, &attr));
            if is_wanted || entry.is_closed {
                return Some(Ok(entry));
            }
        }
    }
}

impl Iterator for Diff {
    type Item = Result<(Change, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}
