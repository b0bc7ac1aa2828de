//! Listings and walks.

use crate::outcome::guard;
use crate::types::{Entry, Stat, Tree, Walk, reference, store, string};
use espalier_tree::{Error, Listing, Result, Walk as TreeWalk};
use std::ffi::{CString, c_char, c_int};

/// # Safety
/// The rules for all calls.
unsafe fn begin(is_list: bool, place: *mut *mut Walk, walk: impl FnOnce() -> Result<TreeWalk>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { store(place, std::ptr::null_mut()) }?;
        let walk = Walk { walk: walk()?, is_list, path: CString::default() };
        // SAFETY: as above.
        unsafe { store(place, Box::into_raw(Box::new(walk))) }
    })
}

/// Begins to give the entries of a directory, of one instant, by name. To be ended with
/// espalier_walk_close. ENOTDIR; EACCES unless the caller may list and search the directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_list(
    tree: *const Tree,
    path: *const c_char,
    walk: *mut *mut Walk,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { begin(true, walk, || reference(tree)?.0.walk(string(path)?, &Listing::default())) }
}

/// Begins to give everything below a directory, of one instant: the entries of a directory by name,
/// then what lies below its subdirectories. Links are not followed. `pattern` may be NULL; it is
/// one for names, or with a slash for paths below the directory: `*`, `?`, `[a-z]`, `**`. To be
/// ended with espalier_walk_close. The errors are those of espalier_list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_walk(
    tree: *const Tree,
    path: *const c_char,
    pattern: *const c_char,
    walk: *mut *mut Walk,
) -> c_int {
    let start = || {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        // SAFETY: as above.
        let pattern = if pattern.is_null() { None } else { Some(unsafe { string(pattern) }?.to_vec()) };
        tree.0.walk(path, &Listing { pattern, ..Listing::default() })
    };
    // SAFETY: as above.
    unsafe { begin(false, walk, start) }
}

/// The next entry; at the end its path is NULL. One thread at a time. ETIMEDOUT: on a mount, the
/// walk was left alone for a minute. ECONNRESET: the server went away. After an error there are no
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_walk_next(walk: *mut Walk, entry: *mut Entry) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls; one thread uses the walk.
        let walk = unsafe { walk.as_mut() }.ok_or_else(|| crate::outcome::invalid("the walk is missing"))?;
        let none = Entry { path: std::ptr::null(), stat: Stat::default(), is_closed: 0, reserved: 0 };
        // SAFETY: as above.
        unsafe { store(entry, none) }?;
        let Some(next) = walk.walk.next().transpose()? else { return Ok(()) };
        if walk.is_list && next.path.contains(&b'/') {
            return Ok(());
        }
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
