//! Listings and walks.

use crate::outcome::{guard, invalid};
use crate::types::*;
use espalier_tree::{Error, Listing, Result, Walk as TreeWalk};
use std::ffi::{CString, c_char, c_int};

/// # Safety
/// The rules for all calls.
unsafe fn begin(place: *mut *mut Walk, walk: impl FnOnce() -> Result<TreeWalk>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { store(place, std::ptr::null_mut()) }?;
        let walk = Walk { walk: walk()?, path: CString::default() };
        // SAFETY: as above.
        unsafe { store(place, Box::into_raw(Box::new(walk))) }
    })
}

/// # Safety
/// The rules for all calls.
unsafe fn listing(filter: *const Filter) -> Result<Listing> {
    const KINDS: u32 = ESPALIER_KIND_FIFO
        | ESPALIER_KIND_CHARACTER
        | ESPALIER_KIND_DIRECTORY
        | ESPALIER_KIND_BLOCK
        | ESPALIER_KIND_FILE
        | ESPALIER_KIND_LINK
        | ESPALIER_KIND_SOCKET;
    // SAFETY: the caller's promise.
    let Some(filter) = (unsafe { filter.as_ref() }) else { return Ok(Listing::default()) };
    if filter.flags & !(ESPALIER_FILTER_SIZE | ESPALIER_FILTER_MTIME) != 0 || filter.kinds & !KINDS != 0 {
        return Err(invalid("a filter has unknown flags or kinds"));
    }
    let has = |flag: u32| filter.flags & flag != 0;
    Ok(Listing {
        pattern: match filter.pattern.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { string(filter.pattern) }?.to_vec()),
        },
        kinds: filter.kinds as u16,
        size: has(ESPALIER_FILTER_SIZE).then_some(filter.size_min..=filter.size_max),
        modified: has(ESPALIER_FILTER_MTIME).then_some(filter.mtime_min_ns..=filter.mtime_max_ns),
    })
}

/// Begins to give the entries of a directory, of one instant, by name. `filter` may be NULL. To be
/// ended with espalier_walk_close. ENOTDIR; EACCES unless the caller may list and search the
/// directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_list(
    tree: *const Tree,
    path: *const c_char,
    filter: *const Filter,
    walk: *mut *mut Walk,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { begin(walk, || reference(tree)?.0.entries(string(path)?, &listing(filter)?)) }
}

/// Begins to give everything below a directory, of one instant: the entries of a directory by name,
/// then what lies below its subdirectories. Links are not followed. `filter` may be NULL. To be
/// ended with espalier_walk_close. The errors are those of espalier_list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_walk(
    tree: *const Tree,
    path: *const c_char,
    filter: *const Filter,
    walk: *mut *mut Walk,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { begin(walk, || reference(tree)?.0.walk(string(path)?, &listing(filter)?)) }
}

/// The next entry; at the end its path is NULL. One thread at a time. ETIMEDOUT: on a mount, the
/// walk was left alone for a minute. ECONNRESET: the server went away. After an error there are no
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_walk_next(walk: *mut Walk, entry: *mut Entry) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls; one thread uses the walk.
        let walk = unsafe { walk.as_mut() }.ok_or_else(|| invalid("the walk is missing"))?;
        let none = Entry { path: std::ptr::null(), stat: Stat::default(), is_closed: 0, reserved: 0 };
        // SAFETY: as above.
        unsafe { store(entry, none) }?;
        let Some(next) = walk.walk.next().transpose()? else { return Ok(()) };
        let no_path = |_| Error::new(libc::EPROTO, "a path with a NUL");
        walk.path = CString::new(next.path).map_err(no_path)?;
        let stat = Stat::from(&next.stat);
        let is_closed = u32::from(next.is_closed);
        // SAFETY: as above.
        unsafe { store(entry, Entry { path: walk.path.as_ptr(), stat, is_closed, reserved: 0 }) }
    })
}

/// Ends a walk, also before it is at its end. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_walk_close(walk: *mut Walk) {
    guard(|| {
        if !walk.is_null() {
            // SAFETY: it was made by espalier_walk or espalier_list, and is used no more.
            drop(unsafe { Box::from_raw(walk) });
        }
        Ok(())
    });
}
