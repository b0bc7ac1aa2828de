//! How a file system asks its mount for pending FORGETs.

use espalier_sync::RwLock;
use std::sync::Arc;

type DrainFunction = Box<dyn Fn() + Send + Sync>;

/// Lets a file system, which exists before its mount, ask the mount for pending FORGETs.
#[derive(Clone, Default)]
pub struct ForgetHook(Arc<RwLock<Option<DrainFunction>>>);

impl ForgetHook {
    /// From now on `drain` serves pending FORGETs.
    pub(super) fn attach(&self, drain: impl Fn() + Send + Sync + 'static) {
        *self.0.write() = Some(Box::new(drain));
    }

    /// What the file system calls; nothing happens while there is no mount.
    pub fn drain(&self) -> espalier_fs::ForgetDrain {
        let hook = Arc::clone(&self.0);
        Arc::new(move || {
            if let Some(drain) = &*hook.read() {
                drain();
            }
        })
    }
}

impl std::fmt::Debug for ForgetHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ForgetHook").field(&self.0.read().is_some()).finish()
    }
}
