//! Watches: what is changed below a directory, told once, when it happens.
//!
//! Invariant: a watch belongs to the process that began it. A child of `fork` has the memory of its
//! parent's watch, but neither its turn in its connection nor the image that it looks at.

use crate::error::{Error, Result};
use crate::image::ImageWatch;
use espalier_client::Changes;
use std::time::Duration;

/// A watch of a directory; see [`Tree::watch`]. It goes on without its tree: an image stays locked
/// as long.
///
/// [`Tree::watch`]: crate::Tree::watch
pub struct Watch {
    /// `None` only while it is dropped.
    source: Option<Source>,
    path: Vec<u8>,
    process: u32,
}

enum Source {
    Mounted(Box<espalier_client::Watch>),
    Image(ImageWatch),
}

impl Watch {
    fn new(source: Source, path: &[u8]) -> Self {
        Self { source: Some(source), path: path.to_vec(), process: std::process::id() }
    }

    pub(crate) fn of_mount(watch: espalier_client::Watch, path: &[u8]) -> Self {
        Self::new(Source::Mounted(Box::new(watch)), path)
    }

    pub(crate) fn of_image(watch: ImageWatch, path: &[u8]) -> Self {
        Self::new(Source::Image(watch), path)
    }

    /// Where the watch has come to, for a later watch: [`Tree::watch`] with it goes on from there,
    /// and tells the last second before it again.
    ///
    /// [`Tree::watch`]: crate::Tree::watch
    pub fn position(&self) -> &[u8] {
        match &self.source {
            Some(Source::Mounted(watch)) => watch.position(),
            Some(Source::Image(watch)) => watch.position(),
            None => &[],
        }
    }

    /// Waits until something is changed, and says what; an empty answer after `limit`
    /// ([`Duration::MAX`]: none). What was told is not told again. What an image's watch is told of
    /// are the changes of this process, for no other one makes any. On a mount, if the server is
    /// replaced meanwhile, the answer is "everything".
    ///
    /// # Errors
    /// EPERM if the caller is not root, and not everything below is its own; ENOENT or ENOTDIR if
    /// the directory is not there any more; EROFS; EBADF in a child of `fork`.
    pub fn wait(&mut self, limit: Duration) -> Result<Changes> {
        self.wait_with(limit, None)
    }

    /// As [`Watch::wait`], but ends sooner, with what there is to tell, if `goes_on` returns false:
    /// it is asked five times a second, and on a mount after each signal that the thread gets.
    ///
    /// # Errors
    /// As for [`Watch::wait`].
    pub fn wait_while(&mut self, limit: Duration, goes_on: &mut dyn FnMut() -> bool) -> Result<Changes> {
        self.wait_with(limit, Some(goes_on))
    }

    fn wait_with(&mut self, limit: Duration, goes_on: Option<&mut dyn FnMut() -> bool>) -> Result<Changes> {
        let told = match (&mut self.source, goes_on) {
            _ if self.process != std::process::id() => {
                Err(Error::new(libc::EBADF, "the watch belongs to the process that began it"))
            }
            (Some(Source::Mounted(watch)), None) => watch.wait(limit).map_err(Error::from),
            (Some(Source::Mounted(watch)), Some(goes_on)) => {
                watch.wait_while(limit, goes_on).map_err(Error::from)
            }
            (Some(Source::Image(watch)), goes_on) => watch.wait(limit, goes_on),
            (None, _) => Err(Error::new(libc::EBADF, "the watch has ended")),
        };
        told.map_err(|error| error.of(&self.path))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let source = self.source.take();
        if self.process != std::process::id() && matches!(source, Some(Source::Image(_))) {
            // What ends the image is the parent's to do.
            std::mem::forget(source);
        }
    }
}
