//! Calls on one path.

use crate::outcome::{allocate, guard, invalid};
use crate::types::*;
use espalier_tree::{ModeBits, Rename, Result, Time};
use std::ffi::{c_char, c_int};

/// Makes `call` with a tree and a path.
///
/// # Safety
/// The rules for all calls.
unsafe fn on(
    tree: *const Tree,
    path: *const c_char,
    call: impl FnOnce(&espalier_tree::Tree, &[u8]) -> Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| call(&unsafe { reference(tree) }?.0, unsafe { string(path) }?))
}

/// The attributes of a file. With `follow` a symbolic link at the end of the path is followed. The
/// errors are those of stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_stat(
    tree: *const Tree,
    path: *const c_char,
    follow: c_int,
    stat: *mut Stat,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| store(stat, Stat::from(&tree.stat(path, links(follow))?))) }
}

/// The whole content of a file, with a NUL behind it that does not count, in memory that the caller
/// frees with free(). The errors are those of open and read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_read(
    tree: *const Tree,
    path: *const c_char,
    content: *mut *mut u8,
    length: *mut usize,
) -> c_int {
    let call = |tree: &espalier_tree::Tree, path: &[u8]| {
        // SAFETY: the rules for all calls.
        unsafe {
            store(content, std::ptr::null_mut())?;
            store(length, 0)?;
            let read = tree.read(path)?;
            store(content, allocate(&read)?)?;
            store(length, read.len())
        }
    };
    // SAFETY: as above.
    unsafe { on(tree, path, call) }
}

/// Makes a directory; with `parents` also those above that are missing, and then without an error
/// if it is there. The errors are those of mkdir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_mkdir(
    tree: *const Tree,
    path: *const c_char,
    mode: u32,
    parents: c_int,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.make_directory(path, mode, parents != 0)) }
}

/// Makes a symbolic link to `target`. The errors are those of symlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_symlink(
    tree: *const Tree,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.symlink(string(target)?, path)) }
}

/// Gives the file at `old` another name. The errors are those of link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_link(
    tree: *const Tree,
    old: *const c_char,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, old, |tree, old| tree.link(old, string(new_path)?)) }
}

/// Removes a name of a file. The errors are those of unlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_unlink(tree: *const Tree, path: *const c_char) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.unlink(path)) }
}

/// Removes an empty directory. The errors are those of rmdir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_rmdir(tree: *const Tree, path: *const c_char) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.remove_directory(path)) }
}

/// Removes a directory with everything below, in one step. The errors are those of rmdir; EPERM if
/// the caller is not root, and something there is not its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_remove_tree(tree: *const Tree, path: *const c_char) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.remove_tree(path)) }
}

/// Makes `new_path` a clone of what is at `old` with everything below, in one step that copies
/// nothing. The errors are those of mkdir; EPERM if the caller is not root, and not all of it is
/// its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_clone_tree(
    tree: *const Tree,
    old: *const c_char,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, old, |tree, old| tree.clone_tree(old, string(new_path)?)) }
}

/// Sets owner and group of what is at a path and of everything below, in one step; ESPALIER_NONE
/// leaves as it is. Links are not followed. EPERM unless the caller is root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_chown_tree(
    tree: *const Tree,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.own_tree(path, id(uid), id(gid))) }
}

/// Changes the modes of what is at a path and of everything below, in one step: each entry gets its
/// mode without `clear`, and with `add`; directories, and files that have an execute bit, also get
/// `execute`, as for the X of chmod. With 07777 to clear, modes are set. Links are not followed.
/// EPERM if the caller is not root, and something there is not its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_chmod_tree(
    tree: *const Tree,
    path: *const c_char,
    clear: u32,
    add: u32,
    execute: u32,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.mode_tree(path, ModeBits { clear, add, execute })) }
}

/// Moves what is at `old` to `new_path`; `how` is one of ESPALIER_RENAME_REPLACE,
/// ESPALIER_RENAME_NO_REPLACE and ESPALIER_RENAME_EXCHANGE. The errors are those of renameat2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_rename(
    tree: *const Tree,
    old: *const c_char,
    new_path: *const c_char,
    how: u32,
) -> c_int {
    let call = |tree: &espalier_tree::Tree, old: &[u8]| {
        let how = match how {
            ESPALIER_RENAME_REPLACE => Rename::Replace,
            ESPALIER_RENAME_NO_REPLACE => Rename::NoReplace,
            ESPALIER_RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(invalid("there is no such way to rename")),
        };
        // SAFETY: the rules for all calls.
        tree.rename(old, unsafe { string(new_path) }?, how)
    };
    // SAFETY: as above.
    unsafe { on(tree, old, call) }
}

/// Sets the mode: the low 12 bits. The errors are those of chmod.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_chmod(tree: *const Tree, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.set_mode(path, mode)) }
}

/// Sets owner and group; ESPALIER_NONE leaves as it is. The errors are those of chown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_chown(
    tree: *const Tree,
    path: *const c_char,
    uid: u32,
    gid: u32,
    follow: c_int,
) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.set_owner(path, id(uid), id(gid), links(follow))) }
}

/// Sets the times of the last read and of the last change of the content, in nanoseconds since the
/// Unix epoch, or ESPALIER_KEEP, or ESPALIER_NOW. The errors are those of utimensat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_utimes(
    tree: *const Tree,
    path: *const c_char,
    atime_ns: i64,
    mtime_ns: i64,
    follow: c_int,
) -> c_int {
    let time = |time| match time {
        ESPALIER_KEEP => Time::Keep,
        ESPALIER_NOW => Time::Now,
        at => Time::At(at),
    };
    let times = (time(atime_ns), time(mtime_ns));
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.set_times(path, times, links(follow))) }
}

/// Gives a file so many bytes. The errors are those of truncate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_truncate(tree: *const Tree, path: *const c_char, size: u64) -> c_int {
    // SAFETY: the rules for all calls.
    unsafe { on(tree, path, |tree, path| tree.truncate(path, size)) }
}

/// The target of a symbolic link, in memory that the caller frees with free(). The errors are those
/// of readlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_readlink(
    tree: *const Tree,
    path: *const c_char,
    target: *mut *mut c_char,
) -> c_int {
    let call = |tree: &espalier_tree::Tree, path: &[u8]| {
        // SAFETY: the rules for all calls.
        unsafe {
            store(target, std::ptr::null_mut())?;
            store(target, allocate(&tree.read_link(path)?)?.cast())
        }
    };
    // SAFETY: as above.
    unsafe { on(tree, path, call) }
}
