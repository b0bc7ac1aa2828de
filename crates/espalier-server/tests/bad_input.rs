//! Clients that do not keep to the protocol, that stop, die and flood, and servers that go away:
//! each a clear error or the end of that session, and no other client is harmed.

mod common;
#[path = "common/raw.rs"]
mod raw;

use common::{Mounted, serve_if_asked};
use espalier_client::wire::{Call, Hello};
use espalier_client::{Client, Error, Links, Listing, Write, WriteFlags};
use raw::{AREA, Raw, address, hello, memory, request};
use rustix::fs::SealFlags;
use std::fs::{self, File};
use std::os::fd::AsFd;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

const KEPT: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A client that has nothing to do with the others is served.
fn check_served(client: &Client) {
    assert!(client.stat(".", Links::Follow).unwrap().is_directory());
}

#[test]
fn what_is_no_session_ends() {
    let mounted = Mounted::new("");
    let other = mounted.client();
    let root = File::open(mounted.path()).unwrap();
    fs::create_dir(mounted.path().join("d")).unwrap();
    let below = File::open(mounted.path().join("d")).unwrap();
    let good = memory(2 * u64::from(AREA), KEPT);
    let first = |packet: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]| {
        let raw = Raw::connect(&address(&root).1);
        assert!(raw.send(packet, descriptors));
        let answer = raw.receive();
        if let Some((head, _)) = &answer {
            assert!(head.errno != 0, "it was let in");
            assert!(raw.receive().is_none(), "and the session is over");
        }
        check_served(&other);
        answer.map(|(head, _)| head.errno.cast_signed())
    };
    let (token, _) = address(&root);
    let both = [root.as_fd(), good.as_fd()];
    // Nonsense, and what comes too early.
    assert_eq!(first(b"x", &[]), None);
    assert_eq!(first(&[0xff; 5000], &both), None);
    assert_eq!(first(&request(1, Call::Sync.number(), b""), &[]), Some(libc::EPROTO));
    assert_eq!(first(&request(1, Hello::NUMBER, b"short"), &both), Some(libc::EPROTO));
    // A version that does not exist.
    let future = Hello { versions: (7, 9), ..hello(token) };
    assert_eq!(first(&request(1, Hello::NUMBER, &future.encode()), &both), Some(libc::EPROTONOSUPPORT));
    // Descriptors: none, one, too many, of another kind.
    let words = request(1, Hello::NUMBER, &hello(token).encode());
    assert_eq!(first(&words, &[]), Some(libc::EPROTO));
    assert_eq!(first(&words, &both[..1]), Some(libc::EPROTO));
    assert_eq!(first(&words, &[root.as_fd(); 5]), None);
    let (pipe, _end) = std::io::pipe().unwrap();
    assert_eq!(first(&words, &[root.as_fd(), pipe.as_fd()]), Some(libc::EINVAL));
    assert_eq!(first(&words, &[root.as_fd(), root.as_fd()]), Some(libc::EINVAL));
    let (small, loose) = (memory(u64::from(AREA), KEPT), memory(2 * u64::from(AREA), SealFlags::GROW));
    assert_eq!(first(&words, &[root.as_fd(), small.as_fd()]), Some(libc::EINVAL));
    assert_eq!(first(&words, &[root.as_fd(), loose.as_fd()]), Some(libc::EINVAL));
    // A token that was made up, of another directory, for another descriptor, or used up.
    let made_up = request(1, Hello::NUMBER, &hello([9; 16]).encode());
    assert_eq!(first(&made_up, &both), Some(libc::ESTALE));
    assert_eq!(first(&words, &[below.as_fd(), good.as_fd()]), Some(libc::EXDEV));
    assert_eq!(first(&words, &both), Some(libc::ESTALE));
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = File::open(elsewhere.path()).unwrap();
    let words = request(1, Hello::NUMBER, &hello(address(&root).0).encode());
    assert_eq!(first(&words, &[elsewhere.as_fd(), good.as_fd()]), Some(libc::EXDEV));
    assert_eq!(first(&words, &[pipe.as_fd(), good.as_fd()]), Some(libc::ESTALE));
    drop((root, below, other));
    mounted.end();
}

#[test]
fn what_breaks_the_protocol_ends_its_session_alone() {
    let mounted = Mounted::new("");
    let other = mounted.client();
    let root = File::open(mounted.path()).unwrap();
    let stat = Call::Stat { follow: true, paths: vec![b"."] };
    let good = request(2, stat.number(), &stat.encode());
    let mut longer = good.clone();
    longer.push(0);
    let mut in_memory = request(2, stat.number(), b"");
    in_memory[6] = 1;
    in_memory[8..12].copy_from_slice(&(AREA + 1).to_le_bytes());
    let count = request(2, stat.number(), &[1, 0xff, 0xff, 0xff, 0xff]);
    let bad: [&[u8]; 7] = [
        b"?",
        &longer,
        &good[..good.len() - 1],
        &in_memory,
        &count,
        &request(2, 999, b""),
        &request(2, Hello::NUMBER, &hello([0; 16]).encode()),
    ];
    for packet in bad {
        let raw = Raw::begin(&root);
        assert!(raw.send(&good, &[]));
        assert_eq!(raw.receive().unwrap().0.errno, 0);
        assert!(raw.send(packet, &[]));
        assert!(raw.receive().is_none(), "{packet:?}");
        check_served(&other);
    }
    let raw = Raw::begin(&root);
    assert!(raw.send(&good, &[root.as_fd()]), "a descriptor where none belongs");
    assert!(raw.receive().is_none());
    let raw = Raw::begin(&root);
    assert!(raw.send(&vec![1; 80 << 10], &[]), "more than a packet has");
    assert!(raw.receive().is_none());
    let raw = Raw::begin(&root);
    let more = request(3, Call::More.number(), b"");
    assert!(raw.send(&more, &[]));
    assert_eq!(raw.receive().unwrap().0.errno, libc::EBADF.cast_unsigned(), "no stream, but no breach");
    assert!(raw.send(&good, &[]) && raw.receive().is_some());
    drop((raw, root, other));
    mounted.end();
}

#[test]
fn who_floods_stops_or_dies_harms_no_other() {
    let mounted = Mounted::new("");
    let other = mounted.client();
    let names: Vec<String> = (0..3000).map(|n| format!("d/{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| Write::file(name, "x")).collect();
    other.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    let root = File::open(mounted.path()).unwrap();
    let listing = Listing::default();
    let walk = Call::Walk { path: b".", listing };
    let walk = request(2, walk.number(), &walk.encode());
    // Asks and does not take the answers, until the server ends the session or takes no more.
    let flooders: Vec<Raw> = (0..4).map(|_| Raw::begin(&root)).collect();
    for flooder in &flooders {
        for _ in 0..200 {
            if !flooder.try_send(&walk) {
                break;
            }
        }
        check_served(&other);
    }
    // Begins and says nothing more; asks for a walk and is gone.
    let silent: Vec<Raw> = (0..20).map(|_| Raw::begin(&root)).collect();
    for _ in 0..10 {
        let gone = Raw::begin(&root);
        assert!(gone.send(&walk, &[]));
    }
    check_served(&other);
    // Connections without a session give way to later ones, and take no place of a session.
    let name = address(&root).1;
    let idle: Vec<Raw> = (0..130).map(|_| Raw::connect(&name)).collect();
    check_served(&other);
    check_served(&Client::connect(mounted.path()).unwrap());
    assert!(idle[..110].iter().all(|idle| idle.receive().is_none()));
    // Sessions fill what is left; then there is an error, and room again when they are gone.
    let mut begun = Vec::new();
    let refused = loop {
        match Raw::try_begin(&root) {
            Ok(raw) if begun.len() < 130 => begun.push(raw),
            end => break end.err(),
        }
    };
    assert_eq!(refused, Some(libc::EMFILE));
    check_served(&other);
    drop((idle, begun));
    drop((flooders, silent));
    let later = Client::connect(mounted.path()).unwrap();
    check_served(&later);
    assert_eq!(other.walk("d", &Listing::default()).unwrap().count(), names.len());
    drop((later, other, root));
    mounted.end();
}

#[test]
fn a_connection_without_a_session_ends_after_a_time() {
    let mounted = Mounted::new("").with_hello_limit(1000);
    let root = File::open(mounted.path()).unwrap();
    let session = Raw::begin(&root);
    let silent = Raw::connect(&address(&root).1);
    assert!(silent.receive().is_none());
    assert!(!silent.send(b"x", &[]));
    let stat = Call::Stat { follow: true, paths: vec![b"."] };
    assert!(session.send(&request(2, stat.number(), &stat.encode()), &[]));
    assert_eq!(session.receive().unwrap().0.errno, 0, "a session may be silent");
    drop((session, root));
    mounted.end();
}

#[test]
fn that_no_descriptor_is_left_is_told_once_and_passes() {
    let mut mounted = Mounted::new("");
    let other = mounted.client();
    let root = File::open(mounted.path()).unwrap();
    let name = address(&root).1;
    let usual = mounted.limit_descriptors(3);
    let waiting = Raw::connect(&name);
    mounted.wait_for("cannot be accepted");
    check_served(&other);
    mounted.limit_descriptors(usual);
    assert!(waiting.send(b"nonsense", &[]));
    assert!(waiting.receive().is_none());
    check_served(&mounted.client());
    drop((other, root));
    let said = mounted.end();
    assert!(!said.contains("cannot be accepted"), "{said}");
}

#[test]
fn a_server_that_is_killed_is_told_of_and_the_next_one_is_found() {
    let mut mounted = Mounted::new("");
    let client = mounted.client();
    client.write_at("f", b"kept", 0, Some(0o644), false).unwrap();
    client.sync().unwrap();
    let walk = client.walk(".", &Listing::default()).unwrap();
    mounted.kill();
    match client.write_at("f", b"lost", 0, None, false) {
        Err(Error::Lost { may_have_changed: true, .. } | Error::NoServer(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.read("f"), Err(Error::NoServer(_))));
    let files = [Write::file("a", "x"), Write::file("b", "x")];
    let results = client.write_many(&files, WriteFlags::default());
    assert!(results.iter().all(|result| matches!(result, Err(Error::NoServer(_)))));
    // Its one piece had come before; that it was the last one may not have.
    let rest: Vec<_> = walk.collect();
    assert!(rest[0].is_ok() && rest[1..].iter().all(|end| matches!(end, Err(Error::Lost { .. }))));
    assert!(rest.len() <= 2);
    mounted.serve_again("");
    let client = mounted.client();
    assert_eq!(client.read("f").unwrap(), b"kept");
    drop(client);
    mounted.end();
}

#[test]
fn a_full_store_says_which_files_are_there() {
    let mounted = Mounted::of_size(40 << 20, "");
    let client = mounted.client();
    let mut next = 7u64;
    let mut noise = || {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        next.to_le_bytes()
    };
    let data: Vec<u8> = (0..32_768).flat_map(|_| noise()).collect();
    let names: Vec<String> = (0..190).map(|n| format!("d{}/f{n}", n / 40)).collect();
    let files: Vec<_> = names.iter().map(|name| Write::file(name, &data)).collect();
    let results = client.write_many(&files, WriteFlags::default());
    let (mut there, mut full) = (0, 0);
    for (name, result) in names.iter().zip(&results) {
        let kernel = fs::read(mounted.path().join(name));
        match result {
            Ok(()) => {
                assert!(kernel.unwrap() == data, "{name}");
                there += 1;
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "{name}");
                assert!(kernel.is_err(), "{name}");
                full += 1;
            }
        }
    }
    assert!(there > 20 && full > 20, "{there} are there, {full} are not");
    let all = client.walk(".", &Listing::default()).unwrap();
    assert_eq!(all.filter(|entry| entry.as_ref().unwrap().stat.is_file()).count(), there);
    // Removing makes room.
    client.remove_tree("d0").unwrap();
    for _ in 0..10 {
        client.sync().unwrap();
    }
    client.write_at("small", b"x", 0, Some(0o644), false).unwrap();
    drop(client);
    mounted.end();
}
