//! What was changed below a directory since an instant, in time that grows with what was changed.

use crate::inode::node::Node;
use crate::inode::tree_check::{TreeCheck, TreeUse};
use crate::model::error::Result;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::tree_ops::diff::path_below;
use crate::volume::change_journal::{ChangeWaiter, Changed, Knowledge};
use std::sync::Arc;

/// What was changed below a directory since an instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPaths {
    /// Names the instant of this answer, for the next question. It is a second older, as long as
    /// the kernel may show attributes from before a change.
    pub token: String,
    /// Names the very instant of this answer, for a reader that reads from the file system itself.
    pub exact: String,
    /// Anything may have changed; no paths are given.
    pub everything: bool,
    /// Paths relative to the directory. One that ends with a slash stands for a directory with
    /// everything below.
    pub paths: Vec<Vec<u8>>,
}

impl ChangedPaths {
    /// Without git's own directory at the top: what git does there itself is nothing that it asks
    /// for, and would have it look at the whole directory again.
    #[must_use]
    pub fn without_git_directory(mut self) -> Self {
        self.paths.retain(|path| path != b".git" && !path.starts_with(b".git/"));
        self
    }
}

/// Tells what was changed below directory `node` since `token` was given out. If that is nothing,
/// `waiter` is woken by the next change there, and perhaps by another one.
///
/// # Errors
/// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory);
/// [`FsErrorKind::Permission`](crate::FsErrorKind::Permission) if the caller is not root, and not
/// everything in it is the caller's own; of the store.
pub(crate) fn changed_paths(
    namespace: &Namespace,
    node: NodeId,
    token: (&[u8], Knowledge),
    caller: &Caller,
    waiter: Option<&Arc<dyn ChangeWaiter>>,
) -> Result<ChangedPaths> {
    let dir = namespace.nodes.dir(node)?;
    namespace.volume.check_writable()?;
    let mut check = TreeCheck::new(&namespace.ownership, caller, TreeUse::Read);
    {
        let tree = check.lock_for(&dir, || namespace.tree.shared())?;
        check.check(&dir, &tree)?;
        let prefix = dir.content_prefix(tree.epoch);
        let now = monotonic(namespace);
        if let Some(changed) = namespace.volume.changes.changed(&prefix, token, now, waiter) {
            return complete(namespace, &prefix, changed);
        }
    }
    let tree = check.lock_for(&dir, || namespace.tree.exclusive())?;
    check.check(&dir, &tree)?;
    check.restore_marks(&dir, &tree)?;
    watch(namespace, &dir, tree.epoch)
}

/// Begins to watch a directory. The caller holds the exclusive tree lock.
fn watch(namespace: &Namespace, dir: &Arc<Node>, epoch: u64) -> Result<ChangedPaths> {
    let prefix = dir.content_prefix(epoch);
    let id = namespace.volume.env.random();
    complete(namespace, &prefix, namespace.volume.changes.watch(&prefix, id, monotonic(namespace)))
}

fn monotonic(namespace: &Namespace) -> std::time::Duration {
    namespace.volume.env.monotonic()
}

/// Adds the names of files with several names.
fn complete(namespace: &Namespace, prefix: &[u8], changed: Changed) -> Result<ChangedPaths> {
    let Changed { token, exact, everything, mut paths, linked } = changed;
    for (served, files) in linked {
        namespace.links.for_each_below(&served, |key, id| {
            if files.contains(&id) {
                paths.extend(path_below(&key[prefix.len()..]));
            }
            true
        })?;
    }
    Ok(ChangedPaths { token, exact, everything, paths })
}
