//! INIT: the first message of a connection, which agrees on what the later ones mean.

use super::buffer::Buffer;
use super::device::Device;
use crate::protocol::{self, Dialect, InitRequest, init};
use std::io;

/// Bytes that a WRITE carries or a READ returns at most.
pub(super) fn payload_bytes(init_parameters: &init::InitParameters) -> usize {
    (init_parameters.max_write as usize).max(8192).next_multiple_of(4096)
}

/// Waits for INIT and answers it.
///
/// # Errors
/// A kernel whose protocol is too old, or a device that fails.
pub(super) fn greet(device: &Device, init_parameters: &init::InitParameters) -> io::Result<Dialect> {
    let mut buffer = Buffer::new(payload_bytes(init_parameters) + 4096)?;
    let buffer = buffer.bytes();
    loop {
        let length = match device.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let message = &buffer[..length];
        let Ok((header, operation)) = protocol::decode(message, &Dialect::default()) else {
            return Err(io::Error::other("the first message on the FUSE device is no FUSE request"));
        };
        let protocol::Operation::Init(request) = operation else {
            device.reply(header.unique, Err(libc::EIO))?;
            continue;
        };
        if request.major > init::MAJOR {
            // The kernel asks again, in the major version that this answer names.
            let mut body = [0; init::REPLY_BYTES];
            body[..4].copy_from_slice(&init::MAJOR.to_ne_bytes());
            device.reply(header.unique, Ok(&body))?;
            continue;
        }
        return answer(device, header.unique, &request, init_parameters);
    }
}

fn answer(
    device: &Device,
    unique: u64,
    request: &InitRequest,
    init_parameters: &init::InitParameters,
) -> io::Result<Dialect> {
    match init::negotiate(request, init_parameters) {
        Ok((dialect, body)) => {
            tracing::debug!(
                minor = dialect.minor,
                flags = format_args!("{:#x}", dialect.flags),
                "FUSE agreed on"
            );
            device.reply(unique, Ok(&body))?;
            Ok(dialect)
        }
        Err((major, minor)) => {
            device.reply(unique, Err(libc::EPROTO))?;
            Err(io::Error::other(format!(
                "the kernel speaks FUSE {major}.{minor}; {}.{} (Linux 5.4) or later is needed",
                init::MAJOR,
                init::OLDEST_MINOR
            )))
        }
    }
}
