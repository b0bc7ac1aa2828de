//! Clients of a mount that the command has made: while its server is replaced, while it is
//! unmounted, and where they are not wanted.

mod common;

use common::{Place, espalier};
use espalier_client::{Client, Error, Links, Listing, Write, WriteFlags};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_client_goes_on_with_the_server_that_replaces_the_one_it_had() {
    let place = Place::with_image("256M");
    place.mount(&["-o", "transport=classic"]).ok();
    let client = Client::connect(&place.dir).unwrap();
    let mut walk = {
        let names: Vec<String> = (0..3000).map(|n| format!("many/{n:0>100}")).collect();
        let files: Vec<_> = names.iter().map(|name| Write::file(name, "")).collect();
        client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
        client.walk("many", &Listing::default()).unwrap()
    };
    assert!(walk.next().unwrap().is_ok());
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let busy = Client::connect(&place.dir).unwrap();
            let mut written = Vec::new();
            for number in 0u32.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let name = format!("busy/{number}");
                let result = busy.write_many(&[Write::file(&name, &name)], WriteFlags::default()).remove(0);
                match result {
                    Ok(()) => written.push(name),
                    // It may be there or not, and that is what it says.
                    Err(Error::Lost { may_have_changed: true, .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
                if let Some(name) = written.last() {
                    let asked_again = busy.stat(name, Links::Follow);
                    assert!(asked_again.is_ok(), "{name}: {asked_again:?}");
                }
            }
            written
        });
        for _ in 0..3 {
            let before = place.server();
            espalier(&["mount".as_ref(), "--replace".as_ref(), place.dir.as_os_str()]).ok();
            assert_ne!(place.server(), before);
            assert!(client.stat("many", Links::Follow).unwrap().is_directory());
        }
        done.store(true, Ordering::SeqCst);
        busy.join().unwrap()
    });
    assert!(!written.is_empty());
    for name in written {
        assert_eq!(fs::read(place.dir.join(&name)).unwrap(), name.as_bytes());
    }
    let end = walk.find(|entry| entry.is_err()).expect("a walk is of one server");
    assert!(matches!(end, Err(Error::Lost { may_have_changed: false, .. })), "{end:?}");
    drop((walk, client));
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn a_session_alone_does_not_keep_a_mount() {
    let place = Place::mounted("64M");
    let client = Client::connect(&place.dir).unwrap();
    client.write_at("f", b"data", 0, Some(0o644), false).unwrap();
    let busy = place.umount();
    assert_ne!(busy.code, Some(0), "the client has the directory open");
    drop(client);
    place.umount().ok();
    place.fsck().ok();
    place.mount(&["-o", "noclients"]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"data");
    match Client::connect(&place.dir) {
        Err(Error::NoServer(error)) => assert_eq!(error.raw_os_error(), Some(95), "EOPNOTSUPP"),
        other => panic!("{:?}", other.err()),
    }
    let elsewhere = Client::connect(place.base.path()).err().unwrap();
    assert!(matches!(elsewhere, Error::NoServer(_)), "{elsewhere}");
    place.umount().ok();
}

#[test]
fn a_watch_begins_at_a_snapshot_and_goes_on() {
    let place = Place::mounted("64M");
    let client = Client::connect(&place.dir).unwrap();
    client.make_directory("d/e", 0o755, true).unwrap();
    client.write_at("d/old", b"data", 0, Some(0o644), false).unwrap();
    let snapshot = |dir: &str, name: &str| {
        let dir = place.dir.join(dir);
        espalier(&["snapshot".as_ref(), "create".as_ref(), dir.as_os_str(), name.as_ref()]).ok();
    };
    snapshot("d", "own");
    snapshot("", "all");
    client.write_at("d/e/new", b"data", 0, Some(0o644), false).unwrap();
    fs::remove_file(place.dir.join("d/old")).unwrap();
    for since in ["d/.snapshots/own", ".snapshots/all/d"] {
        let mut watch = client.watch_since("d", since).unwrap();
        let long = std::time::Duration::from_secs(3600);
        let mut told = watch.wait(long).unwrap().paths;
        told.sort();
        assert_eq!(told, [b"e/new".to_vec(), b"old".to_vec()], "{since}");
        fs::write(place.dir.join("d/late"), "").unwrap();
        assert_eq!(watch.wait(long).unwrap().paths, [b"late"]);
        fs::remove_file(place.dir.join("d/late")).unwrap();
    }
    drop(client);
    place.umount().ok();
    place.fsck().ok();
}
