//! Calls on many files at once.

use crate::outcome::{guard, invalid, keep, number};
use crate::types::*;
use espalier_tree::{Piece as TreePiece, Result, Write as TreeWrite, WriteFlags, Xattrs};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// What espalier_read_many calls for each part: with the context that it was given, the place of
/// the part among the others, and 0 and what was read, or an error number (and espalier_message has
/// the text). The data is the library's and stays until the function returns. It returns 0 to go
/// on, or something else to end the reading. It makes no calls on the tree, throws no exception,
/// and does not jump out.
pub type ReadFunction = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        place: usize,
        error: c_int,
        data: *const u8,
        length: usize,
    ) -> c_int,
>;

/// The attributes of many files: for each of `count` paths an error number, or 0 and attributes.
/// What is returned is 0 unless no file could be asked for; then each file has that number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_stat_many(
    tree: *const Tree,
    paths: *const *const c_char,
    count: usize,
    follow: c_int,
    stats: *mut Stat,
    errors: *mut c_int,
) -> c_int {
    guard(|| {
        check_count::<Stat>(count)?;
        // SAFETY: the rules for all calls.
        let (stats, errors) = unsafe { (array_out(stats, count), array_out(errors, count)?) };
        fill(errors, libc::EIO);
        let found = stats.and_then(|stats| {
            fill(stats, Stat::default());
            // SAFETY: the rules for all calls.
            let (tree, paths) = unsafe { (reference(tree)?, array(paths, count)?) };
            // SAFETY: as above.
            let paths = paths.iter().map(|path| unsafe { string(*path) }).collect::<Result<Vec<_>>>()?;
            Ok((stats, tree.0.stat_many(&paths, links(follow))?))
        });
        let (stats, found) = found.inspect_err(|error| fill(errors, number(error)))?;
        for ((found, stat), error) in found.iter().zip(stats).zip(errors) {
            if let Ok(found) = found {
                stat.write(found.into());
            }
            error.write(found.as_ref().err().map_or(0, number));
        }
        Ok(())
    })
}

/// Reads parts of many files, in the order in which it is fastest, and calls `each` for each of
/// them. What is returned is 0 unless nothing could be asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_read_many(
    tree: *const Tree,
    pieces: *const Piece,
    count: usize,
    each: ReadFunction,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        let each = each.ok_or_else(|| invalid("the function for what is read is missing"))?;
        // SAFETY: the rules for all calls.
        let (tree, pieces) = unsafe { (reference(tree)?, array(pieces, count)?) };
        let as_piece = |piece: &Piece| {
            // SAFETY: as above.
            let path = unsafe { string(piece.path) }?;
            Ok(TreePiece { path, offset: piece.offset, length: piece.length })
        };
        let pieces = pieces.iter().map(as_piece).collect::<Result<Vec<_>>>()?;
        tree.0.read_many(&pieces, &mut |place, data| {
            let (error, data) = match &data {
                Ok(data) => (0, *data),
                Err(error) => {
                    keep(error);
                    (number(error), &b""[..])
                }
            };
            // SAFETY: the function is one that C has given for this; the data stays meanwhile.
            unsafe { each(context, place, error, data.as_ptr(), data.len()) == 0 }
        })
    })
}

/// Makes many files, or replaces what has their names; for each an error number, or 0. Files of one
/// directory are written in batches that take effect as a whole: each is seen with all of its
/// content and attributes, extended ones too, or not at all, also after a crash. The errors of a
/// file are those of open, write, rename and setxattr. Missing directories are made. Flags are
/// ESPALIER_NO_REPLACE and ESPALIER_NO_DIRECTORIES. What is returned is 0, or the first error
/// number of a file, and espalier_message is about that file. If the call itself is wrong (EINVAL)
/// nothing is written, and each file has that number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_write_many(
    tree: *const Tree,
    files: *const Write,
    count: usize,
    flags: u32,
    errors: *mut c_int,
) -> c_int {
    guard(|| {
        check_count::<Write>(count)?;
        // SAFETY: the rules for all calls.
        let errors = unsafe { array_out(errors, count)? };
        // What a fault of the library would leave.
        fill(errors, libc::EIO);
        // SAFETY: as above.
        let written = unsafe { write_files(tree, files, count, flags) };
        let written = written.inspect_err(|error| fill(errors, number(error)))?;
        let mut first = Ok(());
        for (result, place) in written.into_iter().zip(errors) {
            place.write(result.as_ref().err().map_or(0, number));
            first = first.and(result);
        }
        first
    })
}

/// Writes files; how each of them fared.
///
/// # Errors
/// EINVAL if the call itself is wrong; then nothing was written.
///
/// # Safety
/// The rules for all calls.
unsafe fn write_files(
    tree: *const Tree,
    files: *const Write,
    count: usize,
    flags: u32,
) -> Result<Vec<Result<()>>> {
    // SAFETY: the caller's promise.
    let (tree, files) = unsafe { (reference(tree)?, array(files, count)?) };
    if flags & !(ESPALIER_NO_REPLACE | ESPALIER_NO_DIRECTORIES) != 0 {
        return Err(invalid("unknown flags"));
    }
    let how = WriteFlags {
        replace: flags & ESPALIER_NO_REPLACE == 0,
        directories: (flags & ESPALIER_NO_DIRECTORIES == 0).then_some(0o777),
    };
    // SAFETY: as above.
    let xattrs = files.iter().map(|file| unsafe { xattrs_of(file) }).collect::<Result<Vec<_>>>()?;
    // SAFETY: as above.
    let files = files.iter().map(|file| unsafe { as_write(file) }).collect::<Result<Vec<_>>>()?;
    let files: Vec<_> = files.iter().zip(&xattrs).map(|(file, xattrs)| file.with_xattrs(xattrs)).collect();
    Ok(tree.0.write_many(&files, how))
}

/// Makes all elements of an array for results this.
fn fill<T: Copy>(array: &mut [MaybeUninit<T>], value: T) {
    for place in array {
        place.write(value);
    }
}

/// # Safety
/// The rules for all calls.
unsafe fn xattrs_of(file: &Write) -> Result<Xattrs> {
    let mut all = Xattrs::default();
    // SAFETY: the caller's promise.
    for xattr in unsafe { array(file.xattrs, file.xattr_count) }? {
        // SAFETY: as above.
        let (name, value) = unsafe { (string(xattr.name)?, array(xattr.value, xattr.length)?) };
        all.push(name, value);
    }
    Ok(all)
}

/// # Safety
/// The rules for all calls.
unsafe fn as_write<'a>(file: &Write) -> Result<TreeWrite<'a>> {
    // SAFETY: the caller's promise.
    let (path, content) = unsafe { (string(file.path)?, array(file.content, file.length)?) };
    let mut write = match file.flags {
        0 => TreeWrite::file(path, content),
        ESPALIER_SYMLINK => TreeWrite::symlink(path, content),
        _ => return Err(invalid("a file has unknown flags")),
    };
    if let Some(mode) = id(file.mode) {
        write = write.with_mode(mode);
    }
    if file.mtime_ns != ESPALIER_KEEP {
        write = write.with_mtime(file.mtime_ns);
    }
    Ok(write.with_owner(id(file.uid), id(file.gid)))
}
