use super::*;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use std::io::{IoSlice, PipeReader, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A descriptor that does not close before the other one has.
fn stuck() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // So little that what is sent does not fit into it.
    sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // Little as well: many of them together must not have more than the system gives to all.
    sockopt::set_socket_send_buffer_size(&sender, 32 << 10).unwrap();
    let receiver = listener.accept().unwrap().0;
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 10]).is_ok() {}
    sender.set_nonblocking(false).unwrap();
    sockopt::set_socket_linger(&sender, Some(Duration::from_secs(600))).unwrap();
    (sender.into(), receiver)
}

fn pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, writer.into())
}

/// Returns when the other end was closed.
fn wait_for_close(mut reader: PipeReader) {
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_does_not_close_holds_up_its_user_alone() {
    let closer = Closer::new((0, 0));
    let (descriptor, other_end) = stuck();
    closer.close(1, descriptor);
    let behind: Vec<PipeReader> = (0..MAX_WAITING_OF_USER)
        .map(|_| {
            let (reader, writer) = pipe();
            closer.close(1, writer);
            reader
        })
        .collect();
    let (reader, writer) = pipe();
    closer.close(2, writer);
    wait_for_close(reader);
    assert!(closer.is_behind_of(1) && closer.is_behind(1));
    assert!(!closer.is_behind_of(2) && !closer.is_behind(2) && !closer.is_full());
    // Nothing waits for it at the end of the server either, and nothing is forgotten.
    drop(closer);
    drop(other_end);
    behind.into_iter().for_each(wait_for_close);
}

#[test]
fn more_users_than_threads_have_their_turn_and_all_together_a_bound() {
    let closer = Closer::new((0, 0));
    let (descriptors, other_ends): (Vec<_>, Vec<_>) = (0..MAX_THREADS).map(|_| stuck()).unzip();
    for (uid, descriptor) in (0..).zip(descriptors) {
        closer.close(uid, descriptor);
    }
    // A thread that begins later could take what comes next instead.
    while !closer.lines.lock().all.values().all(|line| line.has_thread) {
        std::thread::yield_now();
    }
    let mut behind = Vec::new();
    while !closer.is_full() {
        let (reader, writer) = pipe();
        closer.close(1000 + behind.len() as u32, writer);
        behind.push(reader);
    }
    assert_eq!(behind.len(), 2 * MAX_WAITING - MAX_THREADS);
    assert!(closer.is_behind(7) && !closer.is_behind_of(7));
    drop(other_ends);
    behind.into_iter().for_each(wait_for_close);
}

#[test]
fn memory_and_directories_of_the_mount_close_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let opened = || OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
    let found = statx(opened(), c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).unwrap();
    let closer = Closer::new((found.stx_dev_major, found.stx_dev_minor));
    assert!(closer.closes_at_once(&opened()));
    assert!(closer.closes_at_once(&memfd_create("x", MemfdFlags::CLOEXEC).unwrap()));
    let file = std::fs::File::create(directory.path().join("f")).unwrap();
    assert!(!closer.closes_at_once(&file.into()));
    assert!(!closer.closes_at_once(&pipe().1));
    assert!(!Closer::new((0, 0)).closes_at_once(&opened()));
}

#[test]
fn a_connection_closes_at_once_unless_a_descriptor_was_not_read() {
    let send = |socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).map(drop)
    };
    let closer = Closer::new((0, 0));
    let connected = || {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Connection::new(one, 5, &closer), other)
    };
    let drained = |packets: &[&[u8]], last: Option<&OwnedFd>, is_left: bool| {
        let (connection, other) = connected();
        packets.iter().for_each(|packet| send(&other, packet, &[]).unwrap());
        if let Some(last) = last {
            send(&other, b"", &[last.as_fd()]).unwrap();
        }
        let other = (!is_left).then_some(other);
        connection.end();
        assert!(other.is_none_or(|other| send(&other, b"x", &[]).is_err()), "nothing comes later");
        connection.drain()
    };
    let (reader, writer) = pipe();
    for is_left in [false, true] {
        assert_eq!(drained(&[], None, is_left), Ok(true));
        assert_eq!(drained(&[b"", b"x", b"", b"packet"], None, is_left), Ok(true));
        assert_eq!(drained(&[], Some(&writer), is_left), Ok(false));
        assert_eq!(drained(&[b"", b"x", b""], Some(&writer), is_left), Ok(false));
    }
    let (connection, other) = connected();
    assert_eq!(connection.brings_descriptors(), Err(rustix::io::Errno::AGAIN));
    send(&other, b"x", &[]).unwrap();
    assert_eq!(connection.brings_descriptors(), Ok(false));
    drop(connection);
    let (connection, other) = connected();
    send(&other, b"x", &[writer.as_fd()]).unwrap();
    assert_eq!(connection.brings_descriptors(), Ok(true));
    drop((writer, connection));
    wait_for_close(reader);
}
