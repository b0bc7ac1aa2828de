//! What was changed below a directory.

use crate::outcome::guard;
use crate::types::{ChangeList, Tree, array, reference, store, string};
use espalier_tree::Error;
use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

/// What was changed below a directory since a position, which is that of an earlier answer, or has
/// no bytes. If nothing was, waits for a change up to `wait_ms` milliseconds. The answer may tell
/// too much, never too little. To be ended with espalier_changes_free. EPERM: the caller is not
/// root, and not everything below is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes(
    tree: *const Tree,
    path: *const c_char,
    position: *const u8,
    position_length: usize,
    wait_ms: u32,
    changes: *mut *mut ChangeList,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        // SAFETY: as above.
        let position = unsafe { array(position, position_length) }?;
        // SAFETY: as above.
        unsafe { store(changes, std::ptr::null_mut()) }?;
        let found = match wait_ms {
            0 => tree.0.changes(path, position)?,
            _ => tree.0.watch(path, position).wait(Duration::from_millis(wait_ms.into()))?,
        };
        let no_path = |_| Error::new(libc::EPROTO, "a path with a NUL");
        let as_string = |path: &Vec<u8>| CString::new(path.clone()).map_err(no_path);
        let paths = found.paths.iter().map(as_string).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: as above.
        unsafe { store(changes, Box::into_raw(Box::new(ChangeList { changes: found, paths }))) }
    })
}

/// 1 if anything may have changed, as in the first two answers about a directory; then there are no
/// paths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes_everything(changes: *const ChangeList) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { changes.as_ref() }.map_or(0, |list| c_int::from(list.changes.everything))
}

/// How many paths there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes_count(changes: *const ChangeList) -> usize {
    // SAFETY: the rules for all calls.
    unsafe { changes.as_ref() }.map_or(0, |list| list.paths.len())
}

/// A path below the directory; one that ends with a slash stands for a directory with everything
/// below. NULL if there are not so many. It stays until the changes are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes_path(changes: *const ChangeList, at: usize) -> *const c_char {
    // SAFETY: the rules for all calls.
    let path = unsafe { changes.as_ref() }.and_then(|list| list.paths.get(at));
    path.map_or(std::ptr::null(), |path| path.as_ptr())
}

/// The position of this answer, for the next question. It stays until the changes are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes_position(
    changes: *const ChangeList,
    length: *mut usize,
) -> *const u8 {
    // SAFETY: the rules for all calls.
    let (list, length) = unsafe { (changes.as_ref(), length.as_mut()) };
    match (list, length) {
        (Some(list), Some(length)) => {
            *length = list.changes.position.len();
            list.changes.position.as_ptr()
        }
        _ => std::ptr::null(),
    }
}

/// Ends an answer. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes_free(changes: *mut ChangeList) {
    guard(|| {
        if !changes.is_null() {
            // SAFETY: it was made by espalier_changes, and is used no more.
            drop(unsafe { Box::from_raw(changes) });
        }
        Ok(())
    });
}
