//! What was changed below a directory: asked for, or waited for.

use crate::outcome::{guard, invalid};
use crate::types::{ChangeList, Tree, Watch, array, reference, store, string};
use espalier_tree::{Changes, Error, Result, Watch as TreeWatch};
use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

/// What was changed below a directory since a position, which is that of an earlier answer, or has
/// no bytes. The answer may tell too much, never too little: what was changed in the last second
/// may be told again. To be ended with espalier_changes_free. EPERM: the caller is not root, and
/// not everything below is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_changes(
    tree: *const Tree,
    path: *const c_char,
    position: *const u8,
    position_length: usize,
    changes: *mut *mut ChangeList,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        // SAFETY: as above.
        let position = unsafe { array(position, position_length) }?;
        // SAFETY: as above.
        unsafe { store(changes, std::ptr::null_mut()) }?;
        let found = as_list(tree.0.changes(path, position)?)?;
        // SAFETY: as above.
        unsafe { store(changes, Box::into_raw(Box::new(found))) }
    })
}

fn as_list(changes: Changes) -> Result<ChangeList> {
    let no_path = |_| Error::new(libc::EPROTO, "a path with a NUL");
    let as_string = |path: &Vec<u8>| CString::new(path.clone()).map_err(no_path);
    let paths = changes.paths.iter().map(as_string).collect::<Result<Vec<_>>>()?;
    Ok(ChangeList { changes, paths })
}

/// Begins to watch a directory with everything below, from a position on, which is that of an
/// earlier answer or of a watch that has ended. One without bytes stands for now: the first answer
/// is that anything may have changed. From then on each change is told once, when it happens. A
/// position is good in any process as long as the server of the mount runs; that of an image as
/// long as this tree has it open. To be ended with espalier_watch_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_watch(
    tree: *const Tree,
    path: *const c_char,
    position: *const u8,
    position_length: usize,
    watch: *mut *mut Watch,
) -> c_int {
    let start = || {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        // SAFETY: as above.
        tree.0.watch(path, unsafe { array(position, position_length) }?)
    };
    // SAFETY: as above.
    guard(|| unsafe { begin(watch, start) })
}

/// Begins to watch a directory with everything below, from a snapshot on that was made of it
/// (.snapshots/NAME): what differs is told first, and then what is changed. To be ended with
/// espalier_watch_close. The errors are those of espalier_diff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_watch_since(
    tree: *const Tree,
    path: *const c_char,
    snapshot: *const c_char,
    watch: *mut *mut Watch,
) -> c_int {
    // SAFETY: the rules for all calls.
    let start = || unsafe { reference(tree)?.0.watch_since(string(path)?, string(snapshot)?) };
    // SAFETY: as above.
    guard(|| unsafe { begin(watch, start) })
}

/// # Safety
/// The rules for all calls.
unsafe fn begin(place: *mut *mut Watch, start: impl FnOnce() -> Result<TreeWatch>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        store(place, std::ptr::null_mut())?;
        store(place, Box::into_raw(Box::new(Watch(start()?))))
    }
}

/// Waits up to `wait_ms` milliseconds (less than 0: without end) until something is changed, and
/// says what; without a change the answer has no paths. What was told is not told again. To be
/// ended with espalier_changes_free. One thread at a time. EPERM: the caller is not root, and not
/// everything below is its own. ENOENT, ENOTDIR: the directory is not there any more. ENOTCONN: the
/// server of the mount is gone. EBADF: the watch is the parent's, before fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_watch_wait(
    watch: *mut Watch,
    wait_ms: c_int,
    changes: *mut *mut ChangeList,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        unsafe { store(changes, std::ptr::null_mut()) }?;
        // SAFETY: the rules for all calls; one thread uses the watch.
        let watch = unsafe { watch.as_mut() }.ok_or_else(|| invalid("the watch is missing (NULL)"))?;
        let limit = u64::try_from(wait_ms).map_or(Duration::MAX, Duration::from_millis);
        let found = as_list(watch.0.wait(limit)?)?;
        // SAFETY: as above.
        unsafe { store(changes, Box::into_raw(Box::new(found))) }
    })
}

/// Where a watch has come to, for a later one, to which the last second before it is told again. It
/// stays until the next call with the watch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_watch_position(watch: *const Watch, length: *mut usize) -> *const u8 {
    // SAFETY: the rules for all calls.
    let (watch, length) = unsafe { (watch.as_ref(), length.as_mut()) };
    match (watch, length) {
        (Some(watch), Some(length)) => {
            *length = watch.0.position().len();
            watch.0.position().as_ptr()
        }
        _ => std::ptr::null(),
    }
}

/// Ends a watch. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_watch_close(watch: *mut Watch) {
    guard(|| {
        if !watch.is_null() {
            // SAFETY: it was made by espalier_watch or espalier_watch_since, and is used no more.
            drop(unsafe { Box::from_raw(watch) });
        }
        Ok(())
    });
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
            // SAFETY: it was made by espalier_changes or espalier_watch_wait, and is used no more.
            drop(unsafe { Box::from_raw(changes) });
        }
        Ok(())
    });
}
