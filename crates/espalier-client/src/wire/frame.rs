//! The heads of packets.

use super::codec::{Malformed, Reader, Writer};

/// The body lies at the beginning of its area of the shared memory, not in the packet.
const IN_MEMORY: u16 = 1;
/// Of a reply: there is more of the stream.
const MORE: u16 = 2;

/// What a request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// Chosen by the client; the reply has it too.
    pub id: u32,
    /// The number of the call.
    pub call: u16,
    /// The body lies in the shared memory.
    pub in_memory: bool,
    /// Bytes of the body.
    pub length: u32,
}

impl RequestHead {
    /// Bytes of the head.
    pub const BYTES: usize = 12;

    /// The head, to which the body is appended if it is not in the shared memory.
    pub fn encode(&self) -> Writer {
        let mut out = Writer::default();
        out.u32(self.id);
        out.u16(self.call);
        out.u16(if self.in_memory { IN_MEMORY } else { 0 });
        out.u32(self.length);
        out
    }

    /// The head of a packet, and its body if that is in the packet.
    ///
    /// # Errors
    /// [`Malformed`], also if the packet is longer or shorter than it says.
    pub fn decode(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (head, body) = packet.split_at_checked(Self::BYTES).ok_or(Malformed("a request has no head"))?;
        let mut reader = Reader::new(head);
        let (id, call, flags, length) = (reader.u32()?, reader.u16()?, reader.u16()?, reader.u32()?);
        if flags & !IN_MEMORY != 0 {
            return Err(Malformed("a request has unknown flags"));
        }
        let in_memory = flags & IN_MEMORY != 0;
        check_body(in_memory, length, body)?;
        Ok((Self { id, call, in_memory, length }, body))
    }
}

/// What a reply begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    /// Of the request.
    pub id: u32,
    /// An error number of Linux, and the body is a message; 0: the call was carried out.
    pub errno: u32,
    /// The body lies in the shared memory.
    pub in_memory: bool,
    /// There is more of the stream.
    pub more: bool,
    /// Bytes of the body.
    pub length: u32,
}

impl ReplyHead {
    /// Bytes of the head.
    pub const BYTES: usize = 16;

    /// The head, to which the body is appended if it is not in the shared memory.
    pub fn encode(&self) -> Writer {
        let mut out = Writer::default();
        out.u32(self.id);
        out.u32(self.errno);
        out.u16(if self.in_memory { IN_MEMORY } else { 0 } | if self.more { MORE } else { 0 });
        out.u16(0);
        out.u32(self.length);
        out
    }

    /// The head of a packet, and its body if that is in the packet.
    ///
    /// # Errors
    /// [`Malformed`], also if the packet is longer or shorter than it says.
    pub fn decode(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (head, body) = packet.split_at_checked(Self::BYTES).ok_or(Malformed("a reply has no head"))?;
        let mut reader = Reader::new(head);
        let (id, errno, flags) = (reader.u32()?, reader.u32()?, reader.u16()?);
        let (reserved, length) = (reader.u16()?, reader.u32()?);
        if flags & !(IN_MEMORY | MORE) != 0 || reserved != 0 {
            return Err(Malformed("a reply has unknown flags"));
        }
        let in_memory = flags & IN_MEMORY != 0;
        check_body(in_memory, length, body)?;
        Ok((Self { id, errno, in_memory, more: flags & MORE != 0, length }, body))
    }
}

fn check_body(in_memory: bool, length: u32, body: &[u8]) -> Result<(), Malformed> {
    let expected = if in_memory { 0 } else { length as usize };
    if body.len() == expected { Ok(()) } else { Err(Malformed("a packet has another length than it says")) }
}
