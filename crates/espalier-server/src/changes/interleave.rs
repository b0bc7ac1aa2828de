//! For tests: a call stops when it has found what its paths name, before its change, so that a test
//! can have another caller come in between. The test and the server are two processes, which agree
//! by files beside the image.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A test that fails, or a server that does, must not keep the other one waiting for ever.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A call that stops, as both sides see it.
pub(crate) struct Stop {
    asked: PathBuf,
    reached: PathBuf,
    over: PathBuf,
}

impl Stop {
    fn of(image: &Path) -> Self {
        let beside = |what| image.with_extension(what);
        Self { asked: beside("asked"), reached: beside("reached"), over: beside("over") }
    }

    /// Asks the server of an image to stop its next change.
    pub(crate) fn ask(image: &Path) -> Self {
        let stop = Self::of(image);
        fs::write(&stop.asked, b"").unwrap();
        stop
    }

    /// Returns when a call has stopped.
    pub(crate) fn wait(&self) {
        take(&self.reached);
    }

    /// Lets the call go on.
    pub(crate) fn end(self) {
        fs::write(&self.over, b"").unwrap();
    }
}

/// The server's side: stops if a test has asked for it.
pub(crate) fn stop_if_asked() {
    let Some(image) = common::served_image() else { return };
    let stop = Stop::of(&image);
    if fs::remove_file(&stop.asked).is_ok() {
        fs::write(&stop.reached, b"").unwrap();
        take(&stop.over);
    }
}

/// Waits for a file, and removes it.
fn take(file: &Path) {
    let begin = Instant::now();
    while fs::remove_file(file).is_err() {
        assert!(begin.elapsed() < MAX_WAIT, "{} does not come", file.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}
