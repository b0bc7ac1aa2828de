//! The move of one entry as operations of a batch: what is deleted in the old place, and what
//! arrives in the new one.

use crate::data::{blocks, reservation};
use crate::inode::node::{Node, Role, State};
use crate::links::link_area::are_served_apart;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{Inode, Link};
use crate::namespace::context::Namespace;
use crate::orphan::unlink::NamedNode;
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, IndexId, Key, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What arrives in new places, after all deletions of the batch.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Prefixes that move: from, to.
    moves: Vec<(IndexId, Vec<u8>, Vec<u8>)>,
    /// Keys and values to insert, after the moves.
    keys: Vec<(IndexId, Key, Value)>,
    /// The node moves with its entry in memory.
    pub(crate) node_moves: bool,
}

impl Arrivals {
    fn put(&mut self, index: IndexId, key: &[u8], value: Vec<u8>) {
        self.keys.push((index, key.into(), value.into()));
    }

    /// Adds to a batch what `first` (of an exchange: the other direction) and `second` bring.
    pub(crate) fn add_to(first: Option<Self>, second: Self, batch: &mut Batch) {
        let first = first.unwrap_or_default();
        let aside = |n: usize| {
            let name = layout::area_name(n as u64);
            layout::content_prefix(layout::ORPHAN_AREA, &name)
        };
        // Two ranges that change places need a third place.
        for (n, (index, from, _)) in first.moves.iter().enumerate() {
            batch.move_range(*index, from, &aside(n));
        }
        for (index, from, to) in &second.moves {
            batch.move_range(*index, from, to);
        }
        for (n, (index, _, to)) in first.moves.iter().enumerate() {
            batch.move_range(*index, &aside(n), to);
        }
        for (index, key, value) in first.keys.into_iter().chain(second.keys) {
            batch.insert(index, &key, value);
        }
    }
}

/// Moves of entries at one time, in one state of the keys.
pub(crate) struct EntryMove<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) tree: &'a TreeGuard<'a>,
    pub(crate) now: i64,
    /// Other moves come before it in one batch: the store does not show what they brought.
    pub(crate) follows: bool,
}

/// The keys of an entry before and after its move, and the directory where it goes.
struct Keys<'a> {
    old: Vec<u8>,
    new: Vec<u8>,
    to: &'a Arc<Node>,
}

impl EntryMove<'_> {
    /// Adds to a batch what is deleted when an entry moves to name `new_name` of `to`. Returns the
    /// node's new inode and what arrives.
    pub(crate) fn add_to(
        &self,
        entry: &NamedNode<'_>,
        (to, new_name): (&Arc<Node>, &[u8]),
        state: &State,
        batch: &mut Batch,
    ) -> Result<(Inode, Arrivals)> {
        let (volume, node) = (&self.namespace.volume, entry.node);
        let new = layout::entry_key(&to.content_prefix(self.tree.epoch), new_name);
        let keys = Keys { old: entry.key(self.tree), new, to };
        state.inode.flags.check_unprotected()?;
        let mut inode = state.inode.clone();
        inode.set_ctime(self.now);
        batch.delete(volume.metadata(), &keys.old);
        let mut arrivals = Arrivals { node_moves: true, ..Arrivals::default() };
        if !node.is_at(entry.dir, entry.name) {
            self.move_link(entry, &keys, &mut inode, batch, &mut arrivals)?;
            return Ok((inode, arrivals));
        }
        // The number that users see stays, whatever the directories above add to it.
        match &node.directory {
            Some(directory) => inode.delta = directory.sum.wrapping_sub(to.dir().sum),
            None => inode.number = node.ino.wrapping_sub(to.dir().sum),
        }
        arrivals.put(volume.metadata(), &keys.new, inode.encode());
        node.version.fetch_add(1, Ordering::AcqRel);
        self.move_data(&inode, &keys.old, &keys.new, batch, &mut arrivals)?;
        if node.is_dir() {
            let old = node.content_prefix(self.tree.epoch);
            let new = layout::content_prefix(&to.content_prefix(self.tree.epoch), new_name);
            self.namespace.state_record.check_move(&old, &new)?;
            if inode.size == 0 && !inode.has_link_area {
                // There is nothing below.
                return Ok((inode, arrivals));
            }
            arrivals.moves.push((volume.metadata(), old.to_vec(), new.clone()));
            arrivals.moves.push((volume.data(), old.to_vec(), new.clone()));
            let may_have_reserved = match self.follows {
                true => volume.has_reservations(),
                false => reservation::any_below(volume, &old)?,
            };
            if may_have_reserved {
                let [old, new] = [&*old, &new].map(layout::reservation_key);
                arrivals.moves.push((volume.metadata(), old, new));
            }
            if self.namespace.links.is_in_use() {
                arrivals.moves.push((volume.links(), old.to_vec(), new));
            }
        }
        Ok((inode, arrivals))
    }

    /// Moves the data and large attributes of an object from `old` to `new`.
    fn move_data(
        &self,
        inode: &Inode,
        old: &[u8],
        new: &[u8],
        batch: &mut Batch,
        arrivals: &mut Arrivals,
    ) -> Result<()> {
        let volume = &self.namespace.volume;
        if !inode.has_data() {
            return Ok(());
        }
        if let Some(record) = reservation::moving_record(volume, old, inode)? {
            batch.delete(volume.metadata(), &layout::reservation_key(old));
            arrivals.put(volume.metadata(), &layout::reservation_key(new), record);
        }
        if blocks::moves_as_range(volume, inode) {
            let xattrs = inode.has_large_xattrs();
            let pairs = layout::file_prefixes(old, xattrs).zip(layout::file_prefixes(new, xattrs));
            arrivals.moves.extend(pairs.map(|(from, to)| (volume.data(), from, to)));
            return Ok(());
        }
        blocks::for_each_value(volume, inode, old, |key, value| {
            arrivals.keys.push((volume.data(), layout::rebase(key, old, new), value))
        })?;
        blocks::delete_data(volume, old, inode, batch);
        Ok(())
    }

    /// One name of a file in a link area moves. Where another area serves the new place the file
    /// moves along, because that was its last name.
    fn move_link(
        &self,
        entry: &NamedNode<'_>,
        keys: &Keys<'_>,
        inode: &mut Inode,
        batch: &mut Batch,
        arrivals: &mut Arrivals,
    ) -> Result<()> {
        let (volume, node) = (&self.namespace.volume, entry.node);
        let area = node.place().parent.filter(|p| p.dir().role == Role::LinkArea);
        let sum = area.map_or(0, |area| area.dir().sum);
        let id = layout::area_id(&node.place().name).unwrap_or_default();
        let home = node.entry_key(self.tree.epoch);
        batch.delete(volume.links(), &keys.old);
        if !are_served_apart(entry.dir, keys.to) {
            let link = Link { kind: inode.kind, id, number: node.ino.wrapping_sub(sum) };
            arrivals.node_moves = false;
            arrivals.put(volume.metadata(), &keys.new, link.encode());
            arrivals.put(volume.links(), &keys.new, id.to_le_bytes().to_vec());
            arrivals.put(volume.metadata(), &home, inode.encode());
            return Ok(());
        }
        inode.number = node.ino.wrapping_sub(keys.to.dir().sum);
        batch.delete(volume.metadata(), &home);
        arrivals.put(volume.metadata(), &keys.new, inode.encode());
        node.version.fetch_add(1, Ordering::AcqRel);
        self.move_data(inode, &home, &keys.new, batch, arrivals)
    }
}
