//! Clients of the mount: programs that talk to the server past the kernel.

use espalier_fuse::{Mount, MountOptions};
use espalier_server::ClientServer;
use espalier_sync::Mutex;

/// Serves clients while the mount is this server's.
pub(super) struct Clients {
    options: MountOptions,
    server: Mutex<Option<ClientServer>>,
}

impl Clients {
    pub(super) fn new(options: &MountOptions) -> Self {
        Self { options: options.clone(), server: Mutex::default() }
    }

    /// Begins to serve clients. A mount without them is as good for all that use the kernel.
    pub(super) fn start(&self, mount: &Mount) {
        let access = || mount.client_access(&self.options);
        *self.server.lock() = access().map(ClientServer::start).transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "no clients are served");
            if let Some(access) = access() {
                access.announce(None);
            }
            None
        });
    }

    /// Serves no clients any more: when this returns no call of one is under way, and none has
    /// anything in use. They look for the server again.
    pub(super) fn stop(&self) {
        let server = self.server.lock().take();
        drop(server);
    }
}
