//! Open files.

use crate::outcome::{guard, invalid};
use crate::types::{OpenFile, Stat, Tree, array, array_out, reference, store, string};
use espalier_tree::OpenHow;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

/// Opens a regular file. Flags are those of open: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT,
/// O_EXCL, O_TRUNC and O_CLOEXEC, which is always set; `mode` is that of a file that is made, less
/// the umask. The file stays the same whatever happens to its name. To be ended with
/// espalier_file_close. The errors are those of open; EINVAL for other flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_open(
    tree: *const Tree,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut OpenFile,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (tree, path) = unsafe { (reference(tree)?, string(path)?) };
        // SAFETY: as above.
        unsafe { store(file, std::ptr::null_mut()) }?;
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC;
        let access = flags & libc::O_ACCMODE;
        if flags & !known != 0 || ![libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR].contains(&access) {
            return Err(invalid("a file cannot be opened with these flags").of(path));
        }
        let how = OpenHow {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            create: (flags & libc::O_CREAT != 0).then_some(mode),
            exclusive: flags & libc::O_EXCL != 0,
            truncate: flags & libc::O_TRUNC != 0,
        };
        let opened = tree.0.open_file(path, &how)?;
        // SAFETY: as above.
        unsafe { store(file, Box::into_raw(Box::new(OpenFile(opened)))) }
    })
}

/// Reads up to `length` bytes at `offset`; `got` is how many there were, 0 at the end. The errors
/// are those of pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_read(
    file: *const OpenFile,
    offset: u64,
    out: *mut u8,
    length: usize,
    got: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the rules for all calls.
        let (file, memory) = unsafe { (reference(file)?, array_out(out, length)?) };
        // What is lent out to be read into holds bytes.
        memory.fill(MaybeUninit::new(0));
        // SAFETY: each byte was written just now.
        let out = unsafe { &mut *(ptr::from_mut(memory) as *mut [u8]) };
        let read = file.0.read_at(offset, out)?;
        // SAFETY: as above.
        unsafe { store(got, read) }
    })
}

/// Writes all of `data` at `offset`. The errors are those of pwrite; what was written before an
/// error stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_write(
    file: *const OpenFile,
    offset: u64,
    data: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { reference(file)?.0.write_at(offset, array(data, length)?) })
}

/// The attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_stat(file: *const OpenFile, stat: *mut Stat) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { store(stat, Stat::from(&reference(file)?.0.stat()?)) })
}

/// Gives an open file so many bytes. The errors are those of ftruncate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_truncate(file: *const OpenFile, size: u64) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { reference(file) }?.0.truncate(size))
}

/// Makes the content of an open file durable. EIO: the device fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_sync(file: *const OpenFile) -> c_int {
    // SAFETY: the rules for all calls.
    guard(|| unsafe { reference(file) }?.0.sync())
}

/// Ends an open file. What was written is not durable by that. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn espalier_file_close(file: *mut OpenFile) {
    guard(|| {
        if !file.is_null() {
            // SAFETY: it was made by espalier_file_open, and is used no more.
            drop(unsafe { Box::from_raw(file) });
        }
        Ok(())
    });
}
