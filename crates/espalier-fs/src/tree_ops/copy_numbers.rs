//! The numbers of a copy of a tree.
//!
//! The top of a copy gets a delta, by which all numbers in it differ from those of its source. The
//! delta is random, so a copy costs the same whatever it holds, and numbers have 64 bits. With
//! [`OpenOptions::narrow_numbers`](crate::OpenOptions::narrow_numbers) a copy gets as many numbers
//! below 2^32 as there are between the least and the greatest one in the source: they are set aside
//! like those of new files, so no other file has or gets them. For that the source is listed.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::namespace::context::Namespace;
use crate::tree_ops::list::{Level, list_below};
use std::ops::RangeInclusive;

/// The delta of the top of a copy of what lies at `source`, if the deltas of the directories above
/// the copy add up to `above`. `top`: the number of the source's top, if that is copied too. The
/// caller holds the exclusive tree lock.
pub(crate) fn delta_of_copy(
    namespace: &Namespace,
    source: &Level,
    top: Option<u64>,
    above: u64,
) -> Result<u64> {
    if !namespace.volume.options.narrow_numbers {
        return Ok(namespace.volume.env.random());
    }
    let mut numbers: Option<RangeInclusive<u64>> = top.map(|top| top..=top);
    let mut each = |ino: u64| {
        let (least, greatest) = numbers.as_ref().map_or((ino, ino), |n| (*n.start(), *n.end()));
        numbers = Some(least.min(ino)..=greatest.max(ino));
    };
    list_below(
        namespace,
        &namespace.volume.store.snapshot()?,
        source.clone(),
        &|_| true,
        &mut |entry, _| {
            each(entry.attr.ino);
            true
        },
    )?;
    // An empty directory.
    let Some(numbers) = numbers else { return Ok(0) };
    let Some(count) = (numbers.end() - numbers.start()).checked_add(1) else {
        return fail(FsErrorKind::NoSpace, "the inode numbers of the tree do not fit into 32 bits");
    };
    let first = namespace.state_record.set_aside(count)?;
    Ok(first.wrapping_sub(*numbers.start()).wrapping_add(source.sum).wrapping_sub(above))
}
