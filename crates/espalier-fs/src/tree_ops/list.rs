//! A walk over a whole tree in the order of keys: a directory's own files first, then its
//! subdirectories, each by name, in one sweep over one consistent state.

use crate::data::blocks::units;
use crate::inode::node::Node;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::{Inode, Record};
use crate::model::types::*;
use crate::namespace::context::Namespace;
use espalier_engine::Snapshot;
use std::collections::HashMap;
use std::sync::Arc;

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry<'a> {
    /// Its path below the directory that is listed: names with slashes between them.
    pub path: &'a [u8],
    /// Its attributes. The blocks of sparse files are not counted, and taken for full.
    pub attr: Attr,
}

/// What a directory means for what is below: where in keys it is, the sum of deltas, and the
/// content prefix of the directory whose link area serves it, with the sum there.
#[derive(Clone)]
pub(crate) struct Level {
    pub(crate) prefix: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) sum: u64,
    pub(crate) area: (Vec<u8>, u64),
}

impl Level {
    /// That of a directory; `None` in a removed tree. The caller holds the tree lock.
    pub(crate) fn of(dir: &Arc<Node>, epoch: u64) -> Option<Self> {
        let prefix = dir.content_prefix(epoch).to_vec();
        let top = dir.link_area_directory()?;
        let area = (top.content_prefix(epoch).to_vec(), top.dir().link_area.sum);
        Some(Self { prefix, path: Vec::new(), sum: dir.dir().sum, area })
    }

    /// The object of one of its entries, and its number; `None` for a name that leads nowhere.
    fn object(
        &self,
        namespace: &Namespace,
        snapshot: &Snapshot,
        record: Record,
    ) -> Result<Option<(Inode, u64)>> {
        let link = match record {
            Record::Inode(inode) => {
                let ino = inode.number.wrapping_add(inode.delta).wrapping_add(self.sum);
                return Ok(Some((inode, ino)));
            }
            Record::Link(link) => link,
        };
        let key = layout::entry_key(&layout::area_prefix(&self.area.0), &layout::area_name(link.id));
        let Some(value) = snapshot.get(namespace.volume.metadata(), &key)? else { return Ok(None) };
        let Record::Inode(inode) = Record::decode(&value)? else { return Ok(None) };
        Ok(Some((inode, link.number.wrapping_add(self.area.1))))
    }

    /// Makes `path` what the paths of its entries begin with; returns the number of bytes.
    fn begin_path(&self, path: &mut Vec<u8>) -> usize {
        path.clear();
        path.extend_from_slice(&self.path);
        path.extend_from_slice(if self.path.is_empty() { b"" } else { b"/" });
        path.len()
    }

    /// That of directory `name` in this one, whose path is `path`.
    fn below(&self, name: &[u8], path: &[u8], inode: &Inode) -> Self {
        let prefix = layout::content_prefix(&self.prefix, name);
        let sum = self.sum.wrapping_add(inode.delta);
        let area = match inode.has_link_area {
            true => (prefix.clone(), sum.wrapping_add(inode.link_area_delta)),
            false => self.area.clone(),
        };
        Self { prefix, path: path.to_vec(), sum, area }
    }
}

/// Gives everything below directory `node`, in the order of keys, until `each` returns false.
/// All of it is of one instant; times of the last read may be a few seconds older.
pub(crate) fn list_tree(
    namespace: &Namespace,
    node: NodeId,
    each: &mut dyn FnMut(TreeEntry<'_>) -> bool,
) -> Result<()> {
    walk_tree(namespace, node, &|_| true, &mut |entry, _| each(entry))
}

/// As [`list_tree`], but only of what lies in directories that `enter` says yes to; `each` is told
/// whether that was so of a directory.
pub(crate) fn walk_tree(
    namespace: &Namespace,
    node: NodeId,
    enter: &dyn Fn(&Inode) -> bool,
    each: &mut dyn FnMut(TreeEntry<'_>, bool) -> bool,
) -> Result<()> {
    let top = namespace.nodes.dir(node)?;
    let (snapshot, first) = {
        let tree = namespace.tree.shared();
        let Some(first) = Level::of(&top, tree.epoch) else { return Ok(()) };
        (namespace.volume.store.snapshot()?, first)
    };
    if top.check_has_place().is_err() {
        // It is empty, and its place may be that of another directory.
        return Ok(());
    }
    list_below(namespace, &snapshot, first, enter, each)
}

/// Gives everything below a directory in a state of the store, as [`walk_tree`].
pub(crate) fn list_below(
    namespace: &Namespace,
    snapshot: &Snapshot,
    first: Level,
    enter: &dyn Fn(&Inode) -> bool,
    each: &mut dyn FnMut(TreeEntry<'_>, bool) -> bool,
) -> Result<()> {
    let range = layout::content_range(&first.prefix);
    let mut cursor = snapshot.cursor(namespace.volume.metadata(), range)?;
    // Directories that were seen and whose content is still to come.
    let mut coming: HashMap<Vec<u8>, Level> = HashMap::new();
    let mut at = first;
    // The path of an entry begins with so many bytes of that of its directory.
    let mut path = Vec::new();
    let mut above = at.begin_path(&mut path);
    while let Some(value) = cursor.next_value()? {
        let name = match layout::name_in(&at.prefix, cursor.key()) {
            Some(name) => name,
            None => {
                let Some(parsed) = layout::parse(cursor.key()) else { continue };
                match coming.remove(parsed.prefix) {
                    Some(level) => {
                        at = level;
                        above = at.begin_path(&mut path);
                    }
                    // A directory that is not entered, the files of a link area, and what was
                    // removed and is in use.
                    None if !parsed.name.is_empty() => {
                        let behind = layout::behind_content(parsed.prefix);
                        cursor.seek(&behind);
                        continue;
                    }
                    None => continue,
                }
                parsed.name.into()
            }
        };
        if name.is_empty() {
            continue;
        }
        let record = match value.small() {
            Some(bytes) => Record::decode(bytes)?,
            None => Record::decode(&cursor.read(&value)?)?,
        };
        path.truncate(above);
        path.extend_from_slice(&name);
        let Some((inode, ino)) = at.object(namespace, snapshot, record)? else { continue };
        let is_entered = inode.is_dir() && enter(&inode);
        if is_entered && inode.size > 0 {
            let level = at.below(&name, &path, &inode);
            coming.insert(level.prefix.clone(), level);
        }
        let blocks = if inode.kind == FileKind::Regular { units(inode.size) } else { 0 };
        let attr = inode.attr(ino, blocks, namespace.volume.block_size);
        if !each(TreeEntry { path: &path, attr }, is_entered) {
            return Ok(());
        }
    }
    Ok(())
}
