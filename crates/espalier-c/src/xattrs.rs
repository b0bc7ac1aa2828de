//! Extended attributes, access control lists among them.

use crate::outcome::{allocate, guard, invalid};
use crate::types::*;
use espalier_tree::{Result, SetXattr};
use std::ffi::{c_char, c_int};

/// The value of an extended attribute, with a NUL behind it that does not count, in memory that the
/// caller frees with free(). With `follow` a symbolic link at the end of the path is followed.
/// ENODATA if there is none of this name; else the errors are those of getxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_getxattr(
    tree: *const Tree,
    path: *const c_char,
    name: *const c_char,
    follow: c_int,
    value: *mut *mut u8,
    length: *mut usize,
) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe {
        give((value, length), || reference(tree)?.0.xattr(string(path)?, string(name)?, links(follow)))
    })
}

/// The names of the extended attributes, with a NUL behind each, in memory that the caller frees
/// with free(). The errors are those of listxattr and getxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_listxattr(
    tree: *const Tree,
    path: *const c_char,
    follow: c_int,
    names: *mut *mut c_char,
    length: *mut usize,
) -> c_int {
    let find = || {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        let found = tree.0.xattrs(path, links(follow))?;
        Ok(found.into_iter().flat_map(|(name, _)| [name, vec![0]].concat()).collect::<Vec<u8>>())
    };
    // SAFETY: as above; the places have the same form for text and bytes.
    guard(|| unsafe { give((names.cast(), length), find) })
}

/// Sets an extended attribute; `how` is one of ESPALIER_XATTR_SET, ESPALIER_XATTR_CREATE and
/// ESPALIER_XATTR_REPLACE. The errors are those of setxattr; on a mount EOPNOTSUPP for attributes
/// of which only the kernel knows the rules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_setxattr(
    tree: *const Tree,
    path: *const c_char,
    name: *const c_char,
    value: *const u8,
    length: usize,
    how: u32,
    follow: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (tree, path, name) = unsafe { (reference(tree)?, string(path)?, string(name)?) };
        // SAFETY: as above.
        let value = unsafe { array(value, length) }?;
        let how = match how {
            ESPALIER_XATTR_SET => SetXattr::Set,
            ESPALIER_XATTR_CREATE => SetXattr::Create,
            ESPALIER_XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(invalid("there is no such way to set an extended attribute")),
        };
        tree.0.set_xattr(path, (name, value), how, links(follow))
    })
}

/// Removes an extended attribute. The errors are those of removexattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_removexattr(
    tree: *const Tree,
    path: *const c_char,
    name: *const c_char,
    follow: c_int,
) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { reference(tree)?.0.remove_xattr(string(path)?, string(name)?, links(follow)) })
}

/// Stores bytes that `find` gives in memory of the caller.
///
/// # Safety
/// The rules for all calls.
unsafe fn give(
    (place, length): (*mut *mut u8, *mut usize),
    find: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        store(place, std::ptr::null_mut())?;
        store(length, 0)?;
        let found = find()?;
        store(place, allocate(&found)?)?;
        store(length, found.len())
    }
}
