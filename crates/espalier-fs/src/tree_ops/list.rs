//! A walk over a whole tree in the order of keys: a directory's own files first, then its
//! subdirectories, each by name, in one sweep over one consistent state.

use crate::data::blocks::units;
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::Record;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use std::collections::HashMap;

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
struct Level {
    prefix: Vec<u8>,
    path: Vec<u8>,
    sum: u64,
    area: (Vec<u8>, u64),
}

/// Gives everything below directory `node`, in the order of keys, until `each` returns false.
/// All of it is of one instant; times of the last read may be a few seconds older.
pub(crate) fn list_tree(
    namespace: &Namespace,
    node: NodeId,
    each: &mut dyn FnMut(TreeEntry<'_>) -> bool,
) -> Result<()> {
    let top = namespace.nodes.dir(node)?;
    let (snapshot, first) = {
        let tree = namespace.tree.shared();
        let prefix = top.content_prefix(tree.epoch).to_vec();
        let area = match top.link_area_directory() {
            Some(at) => (at.content_prefix(tree.epoch).to_vec(), at.dir().link_area.sum),
            None => return Ok(()),
        };
        let sum = top.dir().sum;
        (namespace.volume.store.snapshot()?, Level { prefix, path: Vec::new(), sum, area })
    };
    let range = layout::content_range(&first.prefix);
    let mut cursor = snapshot.cursor(namespace.volume.metadata(), range)?;
    // Directories that were seen and whose content is still to come.
    let mut coming: HashMap<Vec<u8>, Level> = HashMap::new();
    let mut at = first;
    while let Some(entry) = cursor.next()? {
        let Some(parsed) = layout::parse(&entry.key) else { continue };
        if parsed.name.is_empty() {
            continue;
        }
        if *parsed.prefix != *at.prefix {
            match coming.remove(parsed.prefix) {
                Some(level) => at = level,
                // The files of a link area, and what was removed and is in use.
                None => continue,
            }
        }
        let record = Record::decode(&cursor.read(&entry.value)?)?;
        let path = if at.path.is_empty() {
            parsed.name.clone()
        } else {
            [&at.path[..], b"/", &parsed.name].concat()
        };
        let (inode, ino) = match record {
            Record::Inode(inode) => {
                let ino = inode.number.wrapping_add(inode.delta).wrapping_add(at.sum);
                (inode, ino)
            }
            Record::Link(link) => {
                let key = layout::entry_key(&layout::area_prefix(&at.area.0), &layout::area_name(link.id));
                let Some(value) = snapshot.get(namespace.volume.metadata(), &key)? else { continue };
                let Record::Inode(inode) = Record::decode(&value)? else { continue };
                (inode, link.number.wrapping_add(at.area.1))
            }
        };
        if inode.is_dir() && inode.size > 0 {
            let prefix = layout::content_prefix(parsed.prefix, &parsed.name);
            let sum = at.sum.wrapping_add(inode.delta);
            let area = if inode.has_link_area {
                (prefix.clone(), sum.wrapping_add(inode.link_area_delta))
            } else {
                at.area.clone()
            };
            coming.insert(prefix.clone(), Level { prefix, path: path.clone(), sum, area });
        }
        let blocks = if inode.kind == FileKind::Regular { units(inode.size) } else { 0 };
        let attr = inode.attr(ino, blocks, namespace.volume.block_size);
        if !each(TreeEntry { path: &path, attr }) {
            return Ok(());
        }
    }
    Ok(())
}
