use super::flags::{init as bit, opcode};
use super::init::{InitParameters, negotiate};
use super::notify::Notification;
use super::*;
use proptest::prelude::*;

const DIALECT: Dialect = Dialect { minor: 45, flags: bit::SETXATTR_EXT };

fn message(opcode: u32, extensions: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((HEADER_BYTES as u32 + body.len() as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(77u64.to_ne_bytes());
    bytes.extend(5u64.to_ne_bytes());
    bytes.extend([1000u32, 100, 4242].iter().flat_map(|n| n.to_ne_bytes()));
    bytes.extend(extensions.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(body);
    bytes
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

#[test]
fn a_look_up_has_a_name() {
    let bytes = message(opcode::LOOKUP, 0, b"name\0");
    let (header, operation) = decode(&bytes, &DIALECT).unwrap();
    assert_eq!((header.unique, header.node, header.uid, header.gid, header.pid), (77, 5, 1000, 100, 4242));
    assert_eq!(operation, Operation::Lookup { name: b"name" });
    for body in [&b"name"[..], b"", b"\0"] {
        assert_eq!(decode(&message(opcode::LOOKUP, 0, body), &DIALECT).unwrap_err(), DecodeError::Name);
    }
}

#[test]
fn a_rename_has_two_names() {
    let body = [&9u64.to_ne_bytes()[..], &words(&[1, 0]), b"old\0new\0"].concat();
    let bytes = message(opcode::RENAME2, 0, &body);
    let expected = Operation::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 1 };
    assert_eq!(decode(&bytes, &DIALECT).unwrap().1, expected);
    assert!(decode(&bytes[..bytes.len() - 1], &DIALECT).is_err());
}

#[test]
fn a_write_has_the_data_that_it_says() {
    let head = |size: u32, bits: u32, opened: i32| {
        let end = words(&[0, 0, opened as u32, 0]);
        [&[0; 8][..], &4096u64.to_ne_bytes(), &words(&[size, bits]), &end].concat()
    };
    let write = |from_cache, kill_suid_sgid, sync| Operation::Write {
        offset: 4096,
        data: b"abc",
        from_cache,
        kill_suid_sgid,
        sync,
    };
    let cases = [
        (5, 0, write(true, true, None)),
        // Of what goes through its pages the kernel sees to it itself.
        (1, libc::O_SYNC, write(true, false, None)),
        (2, libc::O_WRONLY, write(false, false, None)),
        (2, libc::O_WRONLY | libc::O_DSYNC, write(false, false, Some(true))),
        (6, libc::O_SYNC, write(false, true, Some(false))),
    ];
    for (bits, opened, expected) in cases {
        let bytes = message(opcode::WRITE, 0, &[&head(3, bits, opened)[..], b"abc"].concat());
        assert_eq!(decode(&bytes, &DIALECT).unwrap().1, expected);
    }
    let bytes = message(opcode::WRITE, 0, &[&head(u32::MAX, 0, 0)[..], b"abc"].concat());
    assert!(matches!(decode(&bytes, &DIALECT), Err(DecodeError::Short { .. })));
}

#[test]
fn a_new_file_has_a_name_and_says_how_it_is_opened() {
    let bytes = message(opcode::CREATE, 0, &[&words(&[0o101, 0o100644, 0o22, 0])[..], b"new\0"].concat());
    let expected = Operation::Create { name: b"new", flags: 0o101, mode: 0o100644, umask: 0o22 };
    assert_eq!(decode(&bytes, &DIALECT).unwrap().1, expected);
    assert!(decode(&bytes[..bytes.len() - 1], &DIALECT).is_err());
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let bytes = message(opcode::BATCH_FORGET, 0, &[&words(&[u32::MAX, 0])[..], &[0; 64]].concat());
    assert!(decode(&bytes, &DIALECT).is_err());
    let bytes = message(opcode::MKDIR, u16::MAX, &[&words(&[0o755, 0])[..], b"d\0"].concat());
    assert!(matches!(decode(&bytes, &DIALECT), Err(DecodeError::Contradiction(_))));
    let bytes = message(opcode::SETXATTR, 0, &[&words(&[100, 0, 0, 0])[..], b"user.a\0value"].concat());
    assert!(decode(&bytes, &DIALECT).is_err());
}

#[test]
fn a_forget_list_is_as_long_as_it_says() {
    let entries: Vec<u8> = [3u64, 1, 4, 2].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let bytes = message(opcode::BATCH_FORGET, 0, &[&words(&[2, 0])[..], &entries].concat());
    let Operation::BatchForget(list) = decode(&bytes, &DIALECT).unwrap().1 else { panic!("no list") };
    assert_eq!(list.iter().collect::<Vec<_>>(), [(3, 1), (4, 2)]);
}

#[test]
fn what_is_not_offered_is_not_taken() {
    let init_parameters = InitParameters {
        flags: bit::POSIX_ACL | bit::OVER_IO_URING | bit::INIT_EXT,
        max_readahead: 1 << 20,
        max_write: 1 << 20,
        max_background: 64,
    };
    let mut request =
        InitRequest { major: 7, minor: 99, max_readahead: 0, flags: bit::POSIX_ACL | bit::INIT_EXT };
    let (dialect, body) = negotiate(&request, &init_parameters).unwrap();
    assert_eq!((dialect.minor, dialect.flags), (init::NEWEST_MINOR, bit::POSIX_ACL | bit::INIT_EXT));
    assert_eq!(body.len(), init::REPLY_BYTES);
    request.minor = init::OLDEST_MINOR - 1;
    assert_eq!(negotiate(&request, &init_parameters).unwrap_err(), (7, init::OLDEST_MINOR - 1));
}

#[test]
fn notifications_say_how_long_they_are() {
    let notifications = [
        Notification::Inode { node: 3, data: None },
        Notification::Inode { node: 3, data: Some((0, 0)) },
        Notification::Entry { parent: 1, name: b"name".to_vec(), expire: true },
        Notification::Epoch,
        Notification::Prune { nodes: vec![3, 5] },
    ];
    for notification in notifications {
        let bytes = notification.encode();
        assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
        assert_eq!(bytes[8..16], [0; 8], "notifications answer no request");
    }
}

#[test]
fn a_listing_holds_what_fits() {
    let mut out = [1; 100];
    let mut body = reply::Directory::new(&mut out, false);
    assert!(body.add(b"a", 2, 8, 1, None));
    assert!(body.add(b"name", 3, 4, 2, None));
    assert_eq!(body.len(), 64);
    assert!(!body.add(&[b'x'; 30], 3, 4, 3, None));
    assert!(body.add(b"last", 3, 4, 3, None));
    assert_eq!((body.len(), body.is_empty()), (96, false));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(
        opcode in prop_oneof![0u32..60, any::<u32>()],
        extensions in prop_oneof![Just(0u16), any::<u16>()],
        body in prop::collection::vec(prop_oneof![Just(0u8), Just(b'/'), any::<u8>()], 0..300),
        flags in any::<u64>(),
        cut in 0usize..400,
    ) {
        let bytes = message(opcode, extensions, &body);
        let dialect = Dialect { minor: 45, flags };
        if let Ok((_, Operation::BatchForget(list))) = decode(&bytes, &dialect) {
            prop_assert!(list.iter().count() * 16 <= body.len());
        }
        let _ = decode(&bytes[..cut.min(bytes.len())], &dialect);
        // As io_uring delivers it: an argument that is longer than it need be, and the rest apart.
        if let Ok(header) = Header::decode(&bytes) {
            let mut argument = body.clone();
            argument.resize(ARGUMENT_BYTES, 0);
            let _ = decode_parts(&header, &argument, &body, &dialect);
        }
    }
}

#[test]
fn a_reply_refers_to_what_it_names() {
    use super::flags::opcode::*;
    let zero = super::Moment { seconds: 0, nanoseconds: 0 };
    let attributes = reply::Attributes {
        ino: 1,
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        generation: 7,
        mode: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_size: 4096,
        follow: false,
    };
    let of = |opcode, body: &[u8]| reply::references(opcode, body).collect::<Vec<_>>();
    let mut out = [0; 1024];
    let length = reply::entry(&mut out, 9, &attributes);
    assert_eq!(of(LOOKUP, &out[..length]), [9]);
    assert_eq!(of(LINK, &out[..length]), [9]);
    assert_eq!(of(GETATTR, &out[..length]), []);
    let length = reply::no_entry(&mut out);
    assert_eq!(of(LOOKUP, &out[..length]), []);
    assert_eq!(of(LOOKUP, &[]), []);
    let mut body = reply::Directory::new(&mut out, true);
    assert!(body.add(b".", 1, 4, 1, None));
    assert!(body.add(b"a name of some length", 2, 4, 2, Some((7, &attributes))));
    assert!(body.add(b"b", 3, 4, 3, Some((8, &attributes))));
    let length = body.len();
    assert_eq!(of(READDIRPLUS, &out[..length]), [7, 8]);
    assert_eq!(of(READDIRPLUS, &out[..length - 1]), [7], "the last one is cut");
    assert_eq!(of(READDIR, &out[..length]), []);
}
