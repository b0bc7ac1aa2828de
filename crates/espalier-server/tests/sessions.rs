//! What sessions a client begins, and what memory it gives them. By itself: the test looks at what
//! the process has open.

mod common;

use common::Mounted;
use espalier_client::{Links, Listing, Piece, Write, WriteFlags};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn serves_when_asked() {
    common::serve_if_asked();
}

/// Of each session of this process: the number of its shared memory, and the blocks of 512 bytes
/// that are there of it.
fn sessions() -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for descriptor in fs::read_dir("/proc/self/fd").unwrap() {
        let path = descriptor.unwrap().path();
        // The descriptor of the listing itself is closed by now.
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.to_string_lossy().starts_with("/memfd:espalier-client") {
            let memory = fs::metadata(&path).unwrap();
            found.insert(memory.ino(), memory.blocks());
        }
    }
    found
}

#[test]
fn walks_use_the_session_of_the_last_one_and_only_reads_take_memory() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let first = sessions();
    assert_eq!(first.values().collect::<Vec<_>>(), [&0], "one session, of which no page is there");
    let names: Vec<String> = (0..3000).map(|n| format!("d{}/f{n:04}", n % 3)).collect();
    let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, "12")).collect();
    client.write_many(&files[..100], WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    assert_eq!(sessions(), first, "a request that fits into a packet takes no memory");
    client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    let written = sessions();
    assert!(written.keys().eq(first.keys()) && written.values().all(|blocks| (1..4096).contains(blocks)));
    for _ in 0..5 {
        let all = client.walk(".", &Listing::default()).unwrap();
        assert_eq!(all.map(Result::unwrap).count(), names.len() + 3);
        for directory in ["d0", "d1", "d2"] {
            assert_eq!(client.walk(directory, &Listing::default()).unwrap().count(), 1000);
        }
        assert!(client.walk("none", &Listing::default()).is_err());
    }
    assert_eq!(sessions(), written, "all walks came by one session, and the calls too");
    // Beside a walk a call needs another session, which is kept as well; and a walk that is left
    // gives its own up.
    let mut open = client.walk(".", &Listing::default()).unwrap();
    assert!(open.next().unwrap().is_ok());
    assert_eq!(client.stat("d0", Links::Stay).unwrap().size, 1000);
    let both = sessions();
    assert_eq!(both.len(), 2);
    drop(open);
    let second: BTreeMap<u64, u64> =
        both.into_iter().filter(|(number, _)| !first.contains_key(number)).collect();
    assert_eq!(sessions(), second);
    assert_eq!(client.walk("d0", &Listing::default()).unwrap().count(), 1000);
    assert_eq!(sessions(), second);
    // What an answer may need is there before the server writes it: 2 MiB.
    let read = |path: &[u8]| {
        let piece = Piece { path, offset: 0, length: 10 };
        client.read_many(&[piece], &mut |_, data| data.unwrap() == b"12").unwrap();
    };
    read(b"d0/f0000");
    let blocks: Vec<u64> = sessions().into_values().collect();
    assert_eq!(blocks, [4096]);
    // However much is read, one session is enough for it.
    let pieces: Vec<_> =
        names.iter().rev().map(|name| Piece { path: name.as_bytes(), offset: 0, length: 9 }).collect();
    for _ in 0..2 {
        let mut seen = vec![0; names.len()];
        let mut each = |at: usize, data: espalier_client::Result<&[u8]>| {
            seen[at] += 1;
            data.unwrap() == b"12"
        };
        client.read_many(&pieces, &mut each).unwrap();
        assert_eq!(seen, vec![1; names.len()]);
        assert_eq!(sessions().len(), 1);
    }
    assert_eq!(client.walk("d0", &Listing::default()).unwrap().count(), 1000);
    assert_eq!(sessions().len(), 1, "it is kept");
    drop(client);
    assert!(sessions().is_empty());
    mounted.end();
}
