//! A client that sends what it likes.
#![allow(dead_code, reason = "every test file uses a part of it")]

use espalier_client::wire::{Hello, IOC_CLIENT, ReplyHead, RequestHead, SOCKET_NAME_BYTES, TOKEN_BYTES};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of each area that it offers.
pub(crate) const AREA: u32 = 64 << 10;

/// A connection.
pub(crate) struct Raw {
    socket: OwnedFd,
}

/// The token and the name of the socket that the kernel gives for a directory.
pub(crate) fn address(directory: &File) -> ([u8; TOKEN_BYTES], Vec<u8>) {
    let mut answer = [0u8; TOKEN_BYTES + SOCKET_NAME_BYTES];
    // SAFETY: the number says how many bytes are written, and the array has so many.
    let asked = unsafe { libc::ioctl(directory.as_raw_fd(), IOC_CLIENT as libc::Ioctl, answer.as_mut_ptr()) };
    assert_eq!(asked, 0);
    let (token, name) = answer.split_at(TOKEN_BYTES);
    let end = name.iter().position(|byte| *byte == 0).unwrap();
    (token.try_into().unwrap(), name[..end].to_vec())
}

/// Memory as a client has to offer it.
pub(crate) fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, bytes).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

pub(crate) fn hello(token: [u8; TOKEN_BYTES]) -> Hello {
    Hello { versions: (1, 1), areas: (AREA, AREA), token, umask: 0o022 }
}

impl Raw {
    pub(crate) fn connect(name: &[u8]) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
        Self { socket }
    }

    /// A session that has begun in order.
    pub(crate) fn begin(directory: &File) -> Self {
        Self::try_begin(directory).unwrap()
    }

    /// As [`Raw::begin`]; the error number if the server refuses it.
    pub(crate) fn try_begin(directory: &File) -> Result<Self, i32> {
        let (token, name) = address(directory);
        let raw = Self::connect(&name);
        let memory = memory(2 * u64::from(AREA), SealFlags::SHRINK | SealFlags::GROW);
        let packet = request(1, Hello::NUMBER, &hello(token).encode());
        // If it is refused that may be before.
        let _ = raw.send(&packet, &[directory.as_fd(), memory.as_fd()]);
        match raw.receive().unwrap().0.errno {
            0 => Ok(raw),
            errno => Err(errno.cast_signed()),
        }
    }

    /// Sends a packet; false if the server has ended the session.
    pub(crate) fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags).is_ok()
    }

    /// As [`Raw::send`]; false also if the server has not taken what came before.
    pub(crate) fn try_send(&self, packet: &[u8]) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(packet)], &mut SendAncillaryBuffer::default(), flags).is_ok()
    }

    /// The next answer, waited for; `None` if the session has ended.
    pub(crate) fn receive(&self) -> Option<(ReplyHead, Vec<u8>)> {
        let mut packet = vec![0; 64 << 10];
        let (length, _) = recv(&self.socket, &mut packet[..], RecvFlags::empty()).ok()?;
        if length == 0 {
            return None;
        }
        let (head, body) = ReplyHead::decode(&packet[..length]).unwrap();
        Some((head, body.to_vec()))
    }
}

/// A packet with a request.
pub(crate) fn request(id: u32, call: u16, body: &[u8]) -> Vec<u8> {
    let head = RequestHead { id, call, in_memory: false, length: body.len() as u32 };
    [head.encode().0, body.to_vec()].concat()
}
