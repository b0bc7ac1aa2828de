//! Files that never had a name (`O_TMPFILE`), and how one gets its first.
//!
//! Such a file is like an unlinked one: it lives in the orphan area, with a record there as soon as
//! it has data, and goes with its last reference or with a crash. That it may be given a name is
//! noted in memory only ([`State::linkable`]); a link then moves its keys to the place of the entry
//! and deletes the record, in one batch.

use crate::data::blocks;
use crate::inode::inode_store::{Creation, NewObject, count_entry};
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Orphan, Place, State, States};
use crate::model::error::Result;
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::orphan::unlink::NamedNode;
use crate::references::{DeferredReleases, HeldNode};
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes a regular file without a name.
pub(crate) fn tmpfile(namespace: &Namespace, parent: NodeId, mode: u32, caller: &Caller) -> Result<Entry> {
    let dir = namespace.nodes.dir(parent)?;
    namespace.volume.check_writable()?;
    let held = tmpfile_in(namespace, &dir, mode, caller)?;
    namespace.lookup.entry(held)
}

fn tmpfile_in<'a>(
    namespace: &'a Namespace,
    dir: &Arc<Node>,
    mode: u32,
    caller: &Caller,
) -> Result<HeldNode<'a>> {
    // Given back after the locks.
    let held;
    let tree = namespace.tree.shared();
    let names = dir.dir().names.lock();
    namespace.lookup.check_not_removed(&tree, dir, &names)?;
    let area = &namespace.orphans.area;
    let number = namespace.state_record.fresh_number()?.wrapping_sub(area.dir().sum);
    let serial = namespace.nodes.fresh_serial();
    let base: Arc<[u8]> = layout::orphan_key(serial).into();
    let new = NewObject { kind: FileKind::Regular, mode, rdev: 0, target: None };
    let creation = Creation { caller, number, now: namespace.volume.now() };
    let mut batch = Batch::new();
    let mut inode = {
        let state = dir.state();
        state.inode.flags.check_mutable()?;
        namespace.inodes.new_inode(&tree, (dir, &state), &base, &new, &creation, &mut batch)?
    };
    inode.links = 0;
    let place = Place { parent: Some(area.clone()), name: layout::area_name(serial)[..].into() };
    let has_data = inode.has_data();
    let (sum, lsn) = (area.dir().sum, namespace.volume.last_lsn());
    let make = |identity| Node::new(identity, place, inode, sum, lsn);
    namespace.nodes.acquire(area.id);
    let node = namespace.nodes.add_file(number.wrapping_add(sum), serial, make);
    held = namespace.references.adopt(node.clone());
    node.charge_to(dir.limits(tree.epoch));
    {
        let mut state = node.state();
        state.linkable = true;
        state.orphan = Orphan::Empty;
        if has_data {
            let orphan = namespace.orphans.detached.detach(&node, base, &mut batch);
            state.lsn = namespace.volume.commit_internal(batch)?;
            namespace.orphans.detached.recorded(&mut state, Some(orphan));
        }
    }
    node.changed.store(true, Ordering::Release);
    namespace.volume.counters.creates.fetch_add(1, Ordering::Relaxed);
    Ok(held)
}

/// Gives a file that never had a name its first one, where there is no such entry yet and the names
/// are locked.
pub(crate) fn link_first(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    new: &NamedNode<'_>,
    names: &mut Names,
    states: &mut States<'_>,
    releases: &mut DeferredReleases<'_>,
) -> Result<()> {
    let &NamedNode { node, dir, name } = new;
    let now = namespace.volume.now();
    let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
    let mut inode = states.of(node).inode.clone();
    inode.links = 1;
    inode.set_ctime(now);
    inode.number = node.ino.wrapping_sub(dir.dir().sum);
    let mut batch = Batch::new();
    let had_data = match &states.of(node).orphan {
        Orphan::Data(base) => {
            node.version.fetch_add(1, Ordering::AcqRel);
            blocks::move_all(&namespace.volume, &inode, base, &key, &mut batch)?;
            batch.delete(namespace.volume.metadata(), base);
            true
        }
        _ => false,
    };
    batch.insert(namespace.volume.metadata(), &key, inode.encode());
    let mut above = states.of(dir).inode.clone();
    count_entry(&mut above, &inode, now)?;
    namespace.inodes.put(tree, dir, states.of(dir), &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    dir.take_over(states.of(dir), above, lsn);
    let state: &mut State = states.of(node);
    node.take_over(state, inode, lsn);
    (state.orphan, state.linkable) = (Orphan::No, false);
    if had_data {
        namespace.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
    }
    releases.add(namespace.nodes.move_node(node, dir, name));
    names.version += 1;
    namespace.nodes.set_name(dir, names, name, Known::Present(node.id));
    Ok(())
}
