//! The channel between two servers of which one takes the mount of the other over: messages with
//! descriptors over a Unix socket.
//!
//! A message has 8 bytes in front: its kind, three zeros, and the length of the rest (32 bits,
//! little-endian). Descriptors go with the first byte.

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Descriptors of a message, at most.
const MAX_DESCRIPTORS: usize = 6;
/// Bytes of a message beside those in front, at most.
const MAX_BYTES: usize = 1 << 20;

/// What a message says, in the order in which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The server that has the mount: what it would hand over.
    Offer = 1,
    /// The other one: it understands that.
    Accept,
    /// The server that has the mount has paused it; here is everything.
    State,
    /// The other one is ready to serve, and has changed nothing.
    Ready,
    /// The server that has the mount goes on only if the other one dies before [`Kind::Taken`].
    Go,
    /// The other one has the mount from now on.
    Taken,
    /// Either: it gives up, and why.
    Failed,
}

/// A message.
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// One end of the channel.
pub(super) struct Channel(UnixStream);

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// The user and the process at the other end.
    pub(super) fn peer(&self) -> Result<(u32, i32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok((peer.uid.as_raw(), peer.pid.as_raw_nonzero().get()))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other end is gone.
    pub(super) fn send(&mut self, kind: Kind, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let mut front = [kind as u8, 0, 0, 0, 0, 0, 0, 0];
        front[4..].copy_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "too many descriptors");
        }
        let sent = sendmsg(&self.0, &[IoSlice::new(&front)], &mut control, SendFlags::NOSIGNAL)?;
        ensure!(sent == front.len(), "a message was cut off");
        Ok(self.0.write_all(bytes)?)
    }

    /// Waits for the next message, for `limit` at most.
    ///
    /// # Errors
    /// There is none in time, the other end is gone, or has given up.
    pub(super) fn receive(&mut self, limit: Option<Duration>) -> Result<Message> {
        self.0.set_read_timeout(limit)?;
        let mut front = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut front)], &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => bail!("it does not answer"),
                received => break received?.bytes,
            }
        };
        ensure!(received == front.len(), "it has ended");
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        let length = u32::from_le_bytes(front[4..].try_into()?) as usize;
        ensure!(length <= MAX_BYTES, "a message of {length} bytes is too long");
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).context("a message was cut off")?;
        let all = [Kind::Offer, Kind::Accept, Kind::State, Kind::Ready, Kind::Go, Kind::Taken, Kind::Failed];
        let kind =
            all.into_iter().find(|kind| *kind as u8 == front[0]).context("a message of unknown kind")?;
        Ok(Message { kind, bytes, descriptors })
    }

    /// Waits for a message of this kind.
    ///
    /// # Errors
    /// As for [`Channel::receive`]; another message: what it says, if the other end has given up.
    pub(super) fn expect(&mut self, kind: Kind, limit: Option<Duration>) -> Result<Message> {
        let message = self.receive(limit)?;
        match message.kind {
            Kind::Failed => bail!("{}", String::from_utf8_lossy(&message.bytes)),
            found if found == kind => Ok(message),
            found => bail!("{found:?} came in place of {kind:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_come_with_their_descriptors() -> Result<()> {
        let (one, other) = UnixStream::pair()?;
        let (mut one, mut other) = (Channel::new(one), Channel::new(other));
        let (mut reader, writer) = std::io::pipe()?;
        one.send(Kind::State, b"state", &[writer.as_fd()])?;
        one.send(Kind::Go, b"", &[])?;
        drop(writer);
        let state = other.expect(Kind::State, None)?;
        assert_eq!((state.bytes.as_slice(), state.descriptors.len()), (&b"state"[..], 1));
        std::fs::File::from(state.descriptors.into_iter().next().context("one")?).write_all(b"x")?;
        assert_eq!(reader.read(&mut [0; 2])?, 1);
        assert!(other.expect(Kind::Ready, None).is_err_and(|e| e.to_string() == "Go came in place of Ready"));
        one.send(Kind::Failed, b"no", &[])?;
        assert!(other.expect(Kind::Taken, None).is_err_and(|e| e.to_string() == "no"));
        assert!(other.receive(Some(Duration::from_millis(1))).is_err());
        drop(one);
        assert!(other.receive(None).is_err());
        Ok(())
    }
}
