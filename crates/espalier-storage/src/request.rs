//! What every device checks before it touches anything.

use crate::{BLOCK, Device, Error, ErrorKind, Operation, Result};

/// Checks a read: alignment by assertion, the range by an error.
pub fn check_read(device: &dyn Device, offset: u64, buffer: &[u8]) -> Result<()> {
    assert_aligned(Operation::Read, buffer);
    check_range(device, Operation::Read, offset, buffer.len() as u64)
}

/// Checks a write; returns its length.
pub fn check_write(device: &dyn Device, offset: u64, buffers: &[&[u8]]) -> Result<u64> {
    buffers.iter().for_each(|buffer| assert_aligned(Operation::Write, buffer));
    let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
    check_range(device, Operation::Write, offset, length)?;
    Ok(length)
}

/// Checks a discard.
pub fn check_discard(device: &dyn Device, offset: u64, length: u64) -> Result<()> {
    check_range(device, Operation::Discard, offset, length)
}

fn assert_aligned(operation: Operation, buffer: &[u8]) {
    assert!(
        buffer.is_empty() || (buffer.as_ptr().addr() | buffer.len()).is_multiple_of(BLOCK),
        "a buffer of a {operation} is not aligned to {BLOCK} bytes"
    );
}

fn check_range(device: &dyn Device, operation: Operation, offset: u64, length: u64) -> Result<()> {
    assert!((offset | length).is_multiple_of(BLOCK as u64), "a {operation} is not aligned to {BLOCK} bytes");
    if offset.checked_add(length).is_some_and(|end| end <= device.len()) {
        return Ok(());
    }
    let message = format!("the device has only {} bytes", device.len());
    Err(Error::new(ErrorKind::OutOfRange, operation, device.name(), message).at(offset, length))
}
