//! Opening, syncing and closing trees.

use crate::outcome::{guard, invalid};
use crate::types::{ESPALIER_AS_ROOT, ESPALIER_READ_ONLY, Options, Tree, reference, store, string};
use espalier_tree::{ImageOptions, Owner, Result, Tree as InnerTree, format_image};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Opens a place: a directory in a mount, an image that is not mounted (IMAGE), or a directory in
/// one (IMAGE:/DIRECTORY). All paths of the tree begin there. The tree is to be closed with
/// espalier_close. Options may be NULL; they concern images.
///
/// ENOENT, ENOTDIR: it is neither. ENOTTY: the directory lies in no mount of Espalier. EOPNOTSUPP,
/// EACCES: the server takes no clients, or not this one. EBUSY: another process has the
/// image open, as the server of a mount has. EIO: it is no image, or a damaged one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_open(
    place: *const c_char,
    options: *const Options,
    tree: *mut *mut Tree,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (place, options) = unsafe { (string(place)?, options.as_ref()) };
        let options = image_options(options)?;
        // SAFETY: as above.
        unsafe { store(tree, std::ptr::null_mut()) }?;
        let opened = InnerTree::open(OsStr::from_bytes(place), &options)?;
        // SAFETY: as above.
        unsafe { store(tree, Box::into_raw(Box::new(Tree(opened)))) }
    })
}

fn image_options(given: Option<&Options>) -> Result<ImageOptions> {
    let mut options = ImageOptions::default();
    let Some(given) = given else { return Ok(options) };
    if given.flags & !(ESPALIER_READ_ONLY | ESPALIER_AS_ROOT) != 0 {
        return Err(invalid("the options have unknown flags"));
    }
    options.read_only = given.flags & ESPALIER_READ_ONLY != 0;
    if given.flags & ESPALIER_AS_ROOT != 0 {
        options.owner = Owner::Root;
    }
    if given.memory_bytes != 0 {
        options.memory_bytes = given.memory_bytes;
    }
    if given.wait_ms != 0 {
        options.wait = Duration::from_millis(u64::try_from(given.wait_ms).unwrap_or(0));
    }
    Ok(options)
}

/// Makes an empty file system in a new image file (or an empty one) of so many bytes, whose root
/// directory belongs to the user of the process. EEXIST: something else is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_format(image: *const c_char, bytes: u64) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let image = unsafe { string(image) }?;
        format_image(OsStr::from_bytes(image), bytes).map_err(|error| error.of(image))
    })
}

/// Opens a directory of a tree as a tree of its own, which the process may list and search: paths
/// begin there, whatever happens to the name of the directory, and do not leave it. To be closed
/// with espalier_close. In an image it ends when the other tree is closed (EBADF). The errors are
/// those of open for a directory; on a mount also those of espalier_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_subtree(
    tree: *const Tree,
    path: *const c_char,
    subtree: *mut *mut Tree,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        unsafe { store(subtree, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        let opened = unsafe { reference(tree)?.0.subtree(string(path)?) }?;
        // SAFETY: as above.
        unsafe { store(subtree, Box::into_raw(Box::new(Tree(opened)))) }
    })
}

/// Makes everything durable that was done so far; on a mount, by any program. EIO: the device
/// fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_sync(tree: *const Tree) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { reference(tree) }?.0.sync())
}

/// Ends a tree, whatever is returned; NULL is no error. An image is made durable before. Walks and
/// files of the tree are ended for themselves, before or afterwards. EIO: the device of an image
/// fails, and what was not synced may be lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_close(tree: *mut Tree) -> c_int {
    guard(|| {
        if tree.is_null() {
            return Ok(());
        }
        // SAFETY: it was made by espalier_open, and is used no more.
        unsafe { Box::from_raw(tree) }.0.close()
    })
}
