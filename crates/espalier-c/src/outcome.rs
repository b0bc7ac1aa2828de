//! What a call returns: 0 or an error number, and a message for the thread that made it.

use espalier_tree::{Error, Result};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

thread_local! {
    /// The message of the last call of this thread that failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// What happened in the last call of this thread that failed, with the path that it was about. The
/// library's; it stays until the next call of the thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn espalier_message() -> *const c_char {
    // A thread that is ending has none any more.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library. The library's.
#[unsafe(no_mangle)]
pub extern "C" fn espalier_version() -> *const c_char {
    const VERSION: &std::ffi::CStr =
        match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Makes `call`; its error, or its panic, becomes a number and a message.
pub(crate) fn guard(call: impl FnOnce() -> Result<()>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(panic) => Error::new(libc::EIO, format!("a fault of the library: {}", shown(&*panic))),
    };
    keep(&error);
    number(&error)
}

/// The number of an error; never 0.
pub(crate) fn number(error: &Error) -> c_int {
    if error.errno() == 0 { libc::EIO } else { error.errno() }
}

/// Makes the text of an error the message of this thread.
pub(crate) fn keep(error: &Error) {
    let text = error.to_string().replace('\0', "\\0");
    // Without a NUL in it, it is a string of C.
    let text = CString::new(text).unwrap_or_default();
    let _ = MESSAGE.try_with(|message| message.replace(text));
}

fn shown(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The error of an argument that makes no sense.
pub(crate) fn invalid(message: &str) -> Error {
    Error::new(libc::EINVAL, message)
}

/// Memory of `malloc` with these bytes, and a NUL behind them.
///
/// # Errors
/// ENOMEM.
pub(crate) fn allocate(bytes: &[u8]) -> Result<*mut u8> {
    // SAFETY: malloc takes any length, and its result is looked at.
    let memory = unsafe { libc::malloc(bytes.len() + 1) }.cast::<u8>();
    if memory.is_null() {
        return Err(Error::new(libc::ENOMEM, "there is no memory for what was read"));
    }
    // SAFETY: the memory is new and has room for the bytes and one more.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
        memory.add(bytes.len()).write(0);
    }
    Ok(memory)
}
