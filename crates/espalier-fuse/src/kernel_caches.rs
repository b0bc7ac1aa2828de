//! The kernel's caches: what the kernel has to drop when something was changed that no request of
//! its own changed.
//!
//! The kernel keeps names (also of what does not exist), attributes, listings and pages without a
//! time limit. So the order is: finish the change, release every lock, [`KernelCaches::tell`], and
//! only then answer to what asked for the change. The reasons why nothing older remains:
//!
//! 1. *Names.* The kernel drops a name with the lock of its directory held, under which it also
//!    looks names up and lists: an answer from before the change has taken effect by then, and is
//!    dropped.
//! 2. *Listings* are pages of the directory. They are dropped after a name of it, so after a
//!    listing under way; one that goes on behind the gap is not kept by the kernel.
//! 3. *Pages* are locked while they are read from the server, and dropping them waits for the lock.
//!    What is stored without being asked for ([`prefetch`](crate::prefetch)) has ended before.
//! 4. *Attributes* have a version: the kernel takes none from answers to older requests.

use crate::notifier::Notifier;
use crate::prefetch::Prefetch;
use crate::protocol::notify::Notification;
use espalier_fs::{FileSystem, NodeId};
use std::io;
use std::sync::{Arc, OnceLock};

/// Up to so many nodes are invalidated one by one when the attributes of a whole tree changed.
const MAX_INVALIDATED_NODES: usize = 2048;

/// With more changed names than these in a directory, the kernel is asked first whether it knows
/// the directory.
const MANY_NAMES: usize = 32;

/// What was changed, for [`KernelCaches::tell`].
#[derive(Debug, Default)]
pub struct ChangedCaches {
    names: Vec<Notification>,
    late: Vec<Notification>,
    directories: Vec<NodeId>,
    nodes: Vec<Notification>,
    data: Vec<NodeId>,
}

impl ChangedCaches {
    /// A name of a directory means something else now, or nothing, or something for the first time;
    /// below it there is little that the kernel knows.
    pub fn name(&mut self, directory: NodeId, name: &[u8]) {
        self.names.push(entry(directory, name, false));
        self.directory(directory);
    }

    /// The same of a name with a tree below it.
    pub fn tree(&mut self, directory: NodeId, name: &[u8]) {
        self.names.push(entry(directory, name, true));
        // Takes the kernel time for everything that it knows below the name.
        self.late.push(entry(directory, name, false));
        self.directory(directory);
    }

    /// The attributes of a node changed.
    pub fn attributes(&mut self, node: NodeId) {
        self.nodes.push(Notification::Inode { node: node.0, data: None });
    }

    /// The content of a file changed, and with it its attributes.
    pub fn data(&mut self, node: NodeId) {
        self.nodes.push(whole(node));
        self.data.push(node);
    }

    fn directory(&mut self, directory: NodeId) {
        if !self.directories.contains(&directory) {
            self.directories.push(directory);
        }
    }
}

/// Tells the kernel of a mount what it has to drop.
pub struct KernelCaches {
    fs: Arc<FileSystem>,
    /// Set once the mount exists.
    notifier: OnceLock<Arc<Notifier>>,
    /// Set once the mount exists, if files are prefetched.
    prefetch: OnceLock<Arc<Prefetch>>,
}

impl KernelCaches {
    pub(crate) fn new(fs: Arc<FileSystem>) -> Self {
        Self { fs, notifier: OnceLock::new(), prefetch: OnceLock::new() }
    }

    /// Hands over what tells the kernel of changes.
    pub(crate) fn attach(&self, notifier: &Arc<Notifier>) {
        // There is one mount, so it is set once.
        let _ = self.notifier.set(Arc::clone(notifier));
    }

    /// Hands over what stores files in the kernel's pages.
    pub(crate) fn prefetch(&self, prefetch: Arc<Prefetch>) {
        let _ = self.prefetch.set(prefetch);
    }

    /// The data of a file is about to change: has the kernel write what was stored through shared
    /// mappings of it, so that this comes before the change.
    pub fn write_pages(&self, node: NodeId) {
        if let Some(notifier) = self.notifier.get() {
            notifier.notify_and_wait([whole(node)]);
        }
    }

    /// Returns when the kernel has dropped what it knew of what was changed (or the mount has
    /// ended, or it takes too long).
    ///
    /// # Errors
    /// Files were being stored in the kernel's pages, and it cannot be known whether that was
    /// before the change or after it.
    pub fn tell(&self, changed: ChangedCaches) -> io::Result<()> {
        let ChangedCaches { mut names, late, directories, nodes, data } = changed;
        let stored = match self.prefetch.get() {
            Some(prefetch) => data.iter().try_for_each(|node| prefetch.changed(node.0)),
            None => Ok(()),
        };
        if let Some(notifier) = self.notifier.get() {
            skip_unknown(notifier, &mut names, &directories);
            let directories = directories.into_iter().map(whole);
            notifier.notify_and_wait(names.into_iter().chain(directories).chain(nodes));
            notifier.notify(late);
        }
        stored
    }

    /// A name in a directory means something else now, with a tree below it.
    pub(crate) fn entry_changed(&self, dir: NodeId, name: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        let inode = Notification::Inode { node: dir.0, data: None };
        notifier.notify_and_wait([entry(dir, name, true), inode]);
        // Takes the kernel time for everything that it knows below the name.
        notifier.notify([entry(dir, name, false)]);
    }

    /// What a name in a directory meant is gone with all that was below, and another directory has
    /// the name, which the caller is about to remove: that needs the kernel to have dropped what it
    /// knows below anyway.
    pub(crate) fn tree_deleted(&self, dir: NodeId, name: &[u8], gone: NodeId) {
        let Some(notifier) = self.notifier.get() else { return };
        let deleted = Notification::Deleted { parent: dir.0, node: gone.0, name: name.to_vec() };
        notifier.notify_and_wait([deleted, Notification::Inode { node: dir.0, data: None }]);
    }

    /// The attributes of everything below a node changed.
    pub fn attributes_below_changed(&self, node: NodeId) {
        let Some(notifier) = self.notifier.get() else { return };
        let inode = |node: NodeId| Notification::Inode { node: node.0, data: None };
        // One by one if there are few. Otherwise the kernel looks every name of the mount up again.
        // It does so too if it does not know one of the nodes yet: an answer with the attributes
        // before the change may be on its way to it.
        let few = self.fs.nodes_below(node, MAX_INVALIDATED_NODES).ok().flatten();
        if !few.is_some_and(|nodes| notifier.notify_if_known(nodes.into_iter().map(inode).collect())) {
            notifier.notify_and_wait([Notification::Epoch, inode(node)]);
        }
        let fs = self.fs.clone();
        notifier.notify_later(move || fs.changed_nodes().into_iter().map(inode).collect());
    }
}

/// Leaves out the names of directories with many that the kernel does not know: if it gets to know
/// such a directory later, it asks for names after that, and so after the change.
fn skip_unknown(notifier: &Notifier, names: &mut Vec<Notification>, directories: &[NodeId]) {
    let is_in = |name: &Notification, directory: NodeId| matches!(name, Notification::Entry { parent, .. } if *parent == directory.0);
    for directory in directories {
        let count = names.iter().filter(|name| is_in(name, *directory)).take(MANY_NAMES + 1).count();
        if count > MANY_NAMES && notifier.is_unknown(directory.0) {
            names.retain(|name| !is_in(name, *directory));
        }
    }
}

fn entry(directory: NodeId, name: &[u8], expire: bool) -> Notification {
    Notification::Entry { parent: directory.0, name: name.to_vec(), expire }
}

/// The attributes of a node, and all its pages.
fn whole(node: NodeId) -> Notification {
    Notification::Inode { node: node.0, data: Some((0, 0)) }
}
