//! What differs between two directories.

use crate::outcome::{guard, invalid};
use crate::types::*;
use espalier_tree::{Change, Error};
use std::ffi::{CString, c_char, c_int};

/// Begins to give what differs between two directories, of which the older one may lie in a
/// snapshot (.snapshots/NAME). The time grows with what differs, not with what there is. To be
/// ended with espalier_diff_close. ENOTDIR, EACCES; EPERM if the caller is not root, and not
/// everything in both is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_diff(
    tree: *const Tree,
    old: *const c_char,
    new_path: *const c_char,
    diff: *mut *mut Diff,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        unsafe { store(diff, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        let (tree, old, new) = unsafe { (reference(tree)?, string(old)?, string(new_path)?) };
        let found = Diff { diff: tree.0.diff(old, new)?, path: CString::default() };
        // SAFETY: as above.
        unsafe { store(diff, Box::into_raw(Box::new(found))) }
    })
}

/// The next difference: ESPALIER_ADDED, ESPALIER_REMOVED or ESPALIER_CHANGED, and the path below
/// both directories, in the order of keys, which stays until the next call; at the end the path is
/// NULL. One thread at a time. The errors are those of espalier_walk_next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_diff_next(
    diff: *mut Diff,
    change: *mut u32,
    path: *mut *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls; one thread uses the comparison.
        let diff = unsafe { diff.as_mut() }.ok_or_else(|| invalid("the comparison is missing"))?;
        // SAFETY: as above.
        unsafe {
            store(path, std::ptr::null())?;
            store(change, 0)?;
        }
        let Some((found, found_path)) = diff.diff.next().transpose()? else { return Ok(()) };
        let no_path = |_| Error::new(libc::EPROTO, "a path with a NUL");
        diff.path = CString::new(found_path).map_err(no_path)?;
        let number = match found {
            Change::Added => ESPALIER_ADDED,
            Change::Removed => ESPALIER_REMOVED,
            Change::Changed => ESPALIER_CHANGED,
        };
        // SAFETY: as above.
        unsafe {
            store(change, number)?;
            store(path, diff.path.as_ptr())
        }
    })
}

/// Ends a comparison, also before it is at its end. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_diff_close(diff: *mut Diff) {
    guard(|| {
        if !diff.is_null() {
            // SAFETY: it was made by espalier_diff, and is used no more.
            drop(unsafe { Box::from_raw(diff) });
        }
        Ok(())
    });
}
