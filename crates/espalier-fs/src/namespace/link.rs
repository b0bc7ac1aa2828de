//! Further names of files.
//!
//! With its second name a file moves to the link area, at the cost of its data's keys. A file that
//! was made without a name moves to the place of its first name. Where another link area serves the
//! new name, the two areas become one first.

use crate::data::blocks;
use crate::inode::inode_store::{MAX_LINKS, count_entry};
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Orphan, Role, States};
use crate::links::link_area::are_served_apart;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::agrees_with_mark;
use crate::model::record::{Inode, Link};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::check_new_name;
use crate::namespace::tmpfile;
use crate::orphan::unlink::NamedNode;
use crate::references::DeferredReleases;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far a new name for a file came.
enum LinkOutcome {
    /// With the file's attributes after the change.
    Done(Attr),
    /// Nothing was done, because other operations may come between the steps.
    NeedsExclusive,
    /// Different link areas serve its names: they have to become one first.
    NeedsMerge,
}

/// Refuses a name in this directory for this file; none: the kernel has judged.
pub(crate) type LinkJudge<'a> = Option<&'a dyn Fn(&Inode, &Inode) -> Result<()>>;

/// Gives `node`, which is no directory, one name more.
pub(crate) fn link(
    namespace: &Namespace,
    node: NodeId,
    (parent, name): (NodeId, &[u8]),
    judge: LinkJudge<'_>,
) -> Result<Entry> {
    let node = namespace.nodes.node(node)?;
    let dir = namespace.nodes.dir(parent)?;
    if node.is_dir() {
        return fail(FsErrorKind::Permission, "a directory has one name only");
    }
    check_new_name(name)?;
    namespace.volume.check_writable()?;
    // Counts the blocks that the answer needs before the change, because a call waits for nothing
    // afterwards.
    namespace.lookup.attrs.attr(&node)?;
    let new = NamedNode { node: &node, dir: &dir, name };
    let mut releases = namespace.references.release_later();
    let outcome = {
        let tree = namespace.tree.shared();
        link_in(namespace, &tree, &new, judge, &mut releases)?
    };
    let attr = match outcome {
        LinkOutcome::Done(attr) => attr,
        LinkOutcome::NeedsMerge | LinkOutcome::NeedsExclusive => {
            link_merged(namespace, &new, judge, &mut releases)?
        }
    };
    drop(releases);
    let generation = namespace.lookup.generation(&attr);
    Ok(Entry { node: namespace.references.hold(&node)?.keep().id, generation, attr })
}

/// Gives a file a name where another link area serves.
fn link_merged(
    namespace: &Namespace,
    new: &NamedNode<'_>,
    judge: LinkJudge<'_>,
    releases: &mut DeferredReleases<'_>,
) -> Result<Attr> {
    let tree = namespace.tree.exclusive_for_move();
    // Other operations came in between since the merge was found to be necessary.
    if let LinkOutcome::Done(attr) = link_in(namespace, &tree, new, judge, releases)? {
        return Ok(attr);
    }
    if let Some(home) = new.node.place().parent {
        namespace.area_merger().merge(&tree, &home, new.dir, releases)?;
    }
    match link_in(namespace, &tree, new, judge, releases)? {
        LinkOutcome::Done(attr) => Ok(attr),
        LinkOutcome::NeedsMerge | LinkOutcome::NeedsExclusive => {
            fail(FsErrorKind::NotFound, "the file was removed")
        }
    }
}

fn link_in(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    new: &NamedNode<'_>,
    judge: LinkJudge<'_>,
    releases: &mut DeferredReleases<'_>,
) -> Result<LinkOutcome> {
    let &NamedNode { node, dir, name } = new;
    let mut names = dir.dir().names.lock();
    namespace.lookup.check_free(tree, dir, &mut names, name)?;
    let key = layout::entry_key(&dir.content_prefix(tree.epoch), name);
    namespace.state_record.check_key(&key)?;
    namespace.orphans.clear_place(&key)?;
    let area = namespace.areas.area_of(dir)?;
    let has_cleared = clear_marks(namespace, node, dir)?;
    let mut area_names = area.dir().names.lock();
    let mut states = States::lock(&[node, dir]);
    let owner = states.of(dir).inode.uid;
    if !has_cleared && !agrees_with_mark(&states.of(node).inode, owner) {
        // Attributes have changed since; the exclusive lock excludes that.
        return Ok(LinkOutcome::NeedsExclusive);
    }
    check_allowed(new, &mut states, judge)?;
    let state = states.of(node);
    if state.orphan != Orphan::No && state.linkable {
        tmpfile::link_first(namespace, tree, new, &mut names, &mut states, releases)?;
        return Ok(LinkOutcome::Done(namespace.lookup.attrs.known_attr(node, states.of(node)).0));
    }
    if state.orphan != Orphan::No {
        return fail(FsErrorKind::NotFound, "the file was removed");
    }
    let now = namespace.volume.now();
    let mut inode = with_one_name_more(&state.inode, now)?;
    let place = node.place();
    if place.parent.as_ref().is_some_and(|parent| are_served_apart(parent, dir)) {
        return Ok(LinkOutcome::NeedsMerge);
    }
    let is_linked = place.parent.as_ref().is_some_and(|p| p.dir().role == Role::LinkArea);
    let id = match is_linked {
        true => layout::area_id(&place.name).unwrap_or_default(),
        false => namespace.state_record.fresh_number()?,
    };
    let link = Link { kind: inode.kind, id, number: node.ino.wrapping_sub(area.dir().sum) };
    let home = layout::entry_key(&area.content_prefix(tree.epoch), &layout::area_name(id));
    let mut batch = Batch::new();
    if !is_linked {
        move_file_to_area(namespace, tree, node, (&mut inode, &link), &home, &mut batch)?;
    }
    batch.insert(namespace.volume.metadata(), &home, inode.encode());
    batch.insert(namespace.volume.metadata(), &key, link.encode());
    batch.insert(namespace.volume.links(), &key, id.to_le_bytes().to_vec());
    let mut above = states.of(dir).inode.clone();
    count_entry(&mut above, &inode, now)?;
    namespace.inodes.put(tree, dir, states.of(dir), &above, &mut batch);
    let lsn = namespace.volume.commit(batch)?;
    namespace.links.set_in_use();
    area.set_link_count(id, inode.links);
    node.take_over(states.of(node), inode, lsn);
    dir.take_over(states.of(dir), above, lsn);
    if !is_linked {
        move_node_to_area(namespace, node, &area, id, &mut area_names, releases);
    }
    names.version += 1;
    namespace.nodes.set_name(dir, &mut names, name, Known::Present(node.id));
    Ok(LinkOutcome::Done(namespace.lookup.attrs.known_attr(node, states.of(node)).0))
}

/// The inode of a file that gets one name more.
fn with_one_name_more(inode: &Inode, now: i64) -> Result<Inode> {
    if inode.links >= MAX_LINKS {
        return fail(FsErrorKind::TooManyLinks, format!("the file has {} names", inode.links));
    }
    let mut inode = inode.clone();
    inode.links += 1;
    inode.set_ctime(now);
    Ok(inode)
}

/// Refuses what the rights of the caller do not allow, or the flags of the file and the directory
/// forbid, before link areas are merged.
fn check_allowed(new: &NamedNode<'_>, states: &mut States<'_>, judge: LinkJudge<'_>) -> Result<()> {
    if let Some(judge) = judge {
        let above = states.of(new.dir).inode.clone();
        judge(&above, &states.of(new.node).inode)?;
    }
    let state = states.of(new.node);
    if state.orphan != Orphan::No && !state.linkable {
        return Ok(());
    }
    state.inode.flags.check_unprotected()?;
    states.of(new.dir).inode.flags.check_mutable()
}

/// Clears the ownership marks that a further name of `node` in `dir` contradicts; true if it does.
fn clear_marks(namespace: &Namespace, node: &Arc<Node>, dir: &Arc<Node>) -> Result<bool> {
    let Some(home) = node.place().parent else {
        return fail(FsErrorKind::Permission, "a directory has one name only");
    };
    let (inode, linkable) = {
        let state = node.state();
        (state.inode.clone(), state.linkable)
    };
    if !linkable && home.is_removed() {
        return fail(FsErrorKind::NotFound, "the file was removed");
    }
    namespace.ownership.clear_before_entry(dir, &inode)
}

/// Adds to a batch that a file with one name moves to the link area, where its entry lies at
/// `home`.
fn move_file_to_area(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    node: &Arc<Node>,
    (inode, link): (&mut Inode, &Link),
    home: &[u8],
    batch: &mut Batch,
) -> Result<()> {
    inode.number = link.number;
    let old = node.entry_key(tree.epoch);
    node.version.fetch_add(1, Ordering::AcqRel);
    if inode.has_data() {
        blocks::move_all(&namespace.volume, inode, &old, home, batch)?;
    }
    batch.insert(namespace.volume.metadata(), &old, link.encode());
    batch.insert(namespace.volume.links(), &old, link.id.to_le_bytes().to_vec());
    Ok(())
}

/// In memory, a node moves to the link area.
fn move_node_to_area(
    namespace: &Namespace,
    node: &Arc<Node>,
    area: &Arc<Node>,
    id: u64,
    area_names: &mut Names,
    releases: &mut DeferredReleases<'_>,
) {
    let name = layout::area_name(id);
    if let Some(parent) = node.place().parent {
        // A lookup under way may have read the entry when it was the file itself.
        parent.dir().evictions.fetch_add(1, Ordering::AcqRel);
    }
    releases.add(namespace.nodes.move_node(node, area, &name));
    namespace.nodes.set_name(area, area_names, &name[..], Known::Present(node.id));
}
