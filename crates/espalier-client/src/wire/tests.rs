use super::*;
use proptest::prelude::*;
use std::ops::Range;

/// One of each call.
fn calls() -> Vec<Call<'static>> {
    let listing =
        Listing { pattern: Some(b"*.rs".to_vec()), kinds: 1 << 8, size: Some(1..=9), modified: Some(-5..=7) };
    let file = WriteItem {
        path: b"a/b",
        content: b"data",
        is_symlink: false,
        mode: Some(0o640),
        uid: None,
        gid: Some(7),
        mtime: Some(-1),
    };
    let how = WriteFlags { replace: false, directories: None };
    vec![
        Call::Stat { follow: true, paths: vec![b"a", b""] },
        Call::Read { pieces: vec![Piece { path: b"f", offset: 3, length: u64::MAX }] },
        Call::Walk { path: b".", listing },
        Call::More,
        Call::End,
        Call::WriteMany { how, files: vec![file, WriteItem { is_symlink: true, mtime: None, ..file }] },
        Call::WriteAt { path: b"f", create: Some(0o600), truncate: true, offset: 9, data: b"xyz" },
        Call::MakeDirectory { path: b"d", mode: 0o755, parents: true },
        Call::Symlink { target: b"t", path: b"l" },
        Call::Link { old: b"a", new: b"b" },
        Call::Unlink { path: b"a" },
        Call::RemoveDirectory { path: b"a" },
        Call::Rename { old: b"a", new: b"b", how: 2 },
        Call::SetMode { path: b"a", mode: 0o4755 },
        Call::SetOwner { path: b"a", uid: 1, gid: u32::MAX, follow: false },
        Call::SetTimes { path: b"a", atime: Time::Now, mtime: Time::At(-9), follow: true },
        Call::Truncate { path: b"a", size: 1 << 40 },
        Call::ReadLink { path: b"a" },
        Call::RemoveTree { path: b"a" },
        Call::CloneTree { old: b"a", new: b"b" },
        Call::OwnTree { path: b"a", uid: 1, gid: 2 },
        Call::ModeTree { path: b"a", bits: [1, 2, 3, 4, 5] },
        Call::Changes { path: b"a", position: b"espalier:1:2:3" },
        Call::Sync,
    ]
}

/// One of each call of the second version, in the order of their numbers.
fn with_later_calls(mut calls: Vec<Call<'static>>) -> Vec<Call<'static>> {
    let plain = NewItem::plain(WriteItem {
        path: b"a/b",
        content: b"data",
        is_symlink: false,
        mode: None,
        uid: Some(4),
        gid: None,
        mtime: None,
    });
    // user.a = v, and 1..3 and 7..9.
    let xattrs = b"\x06\0\0\0user.a\x01\0\0\0v";
    let mut encoded = Writer::default();
    encoded.bytes(xattrs);
    let encoded: &'static [u8] = encoded.0.leak();
    let xattrs = XattrList::decode(&mut Reader::new(encoded)).unwrap();
    assert_eq!(xattrs.iter().collect::<Vec<_>>(), [(&b"user.a"[..], &b"v"[..])]);
    let ranges: &'static [u8] = RangeList::put_together([1..3, 7..9]).leak();
    let sparse = NewItem { sparse: Some((20, RangeList::of(ranges))), xattrs, ..plain };
    let mut node = NewItem { node: Some((libc::S_IFCHR, 0x501)), atime: Some(-3), ..plain };
    node.file.content = b"";
    let asked = Aspects { xattrs: true, extents: true, ..Aspects::default() };
    let how = WriteFlags::default();
    calls.extend([
        Call::Diff { old: b".snapshots/s", new: b"" },
        Call::Describe { follow: false, asked, paths: vec![b"x", b"y"] },
        Call::MakeMany { how, files: vec![plain, sparse, node] },
        Call::SetXattr { path: b"a", name: b"user.b", value: b"", how: 2, follow: true },
        Call::RemoveXattr { path: b"a", name: b"user.b", follow: false },
        Call::Wait { path: b"d", position: b"espalier:1:2:3" },
    ]);
    calls
}

#[test]
fn new_files_that_are_none_are_refused() {
    let calls = with_later_calls(Vec::new());
    let Call::MakeMany { how, files } = &calls[2] else { panic!("another order") };
    let refused = |change: &dyn Fn(&mut NewItem<'_>)| {
        let mut file = files[0];
        change(&mut file);
        let body = Call::MakeMany { how: *how, files: vec![file] }.encode();
        assert!(Call::decode(28, &body).is_err(), "{file:?}");
    };
    refused(&|file| file.node = Some((libc::S_IFDIR, 0)));
    refused(&|file| file.node = Some((libc::S_IFIFO, 0)));
    refused(&|file| file.sparse = Some((20, RangeList::default())));
    refused(&|file| {
        file.sparse = Some((2, RangeList::of(&[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0])))
    });
    refused(&|file| {
        file.node = Some((libc::S_IFIFO, 0));
        file.file.content = b"";
        file.file.is_symlink = true;
    });
    for bad in [vec![5..5, 7..8], vec![4..8, 6..9], vec![8..9, 1..2], vec![1..2, Range { start: 9, end: 3 }]]
    {
        let encoded = RangeList::put_together(bad.iter().cloned());
        let mut out = Writer::default();
        RangeList::of(&encoded).encode(&mut out);
        assert!(RangeList::decode(&mut Reader::new(&out.0)).is_err(), "{bad:?}");
    }
}

#[test]
fn calls_come_back_and_cut_or_longer_ones_are_refused() {
    for (place, call) in with_later_calls(calls()).into_iter().enumerate() {
        let (number, body) = (call.number(), call.encode());
        assert_eq!(usize::from(number), place + 2, "numbers are given out in order");
        assert_eq!(Call::first_version(number), if number <= 25 { 1 } else { 2 });
        assert_eq!(Call::decode(number, &body), Ok(call.clone()));
        for end in 0..body.len() {
            assert!(Call::decode(number, &body[..end]).is_err(), "{call:?} cut at {end}");
        }
        assert!(Call::decode(number, &[&body[..], b"x"].concat()).is_err(), "{call:?}");
    }
}

#[test]
fn nothing_is_allocated_for_what_a_message_only_says() {
    for number in [2, 3, 7, 27, 28] {
        let mut body = vec![0; 5];
        body.extend([0xff; 8]);
        assert!(Call::decode(number, &body).is_err());
        assert!(Call::decode(number, &[0xff; 4]).is_err());
    }
}

#[test]
fn a_session_begins_with_the_right_words_and_areas() {
    let hello = Hello { versions: (1, 3), areas: (64 << 10, 2 << 20), token: [7; 16], umask: 0o22 };
    let body = hello.encode();
    assert_eq!(Hello::decode(&body), Ok(hello));
    assert!((0..body.len()).all(|end| Hello::decode(&body[..end]).is_err()));
    for areas in [(0, 1 << 20), (1 << 20, u32::MAX)] {
        assert!(Hello::decode(&Hello { areas, ..hello }.encode()).is_err());
    }
    let mut other = body;
    other[0] ^= 1;
    assert!(Hello::decode(&other).is_err());
}

#[test]
fn heads_and_answers_come_back() {
    for in_memory in [false, true] {
        let head = RequestHead { id: 9, call: 3, in_memory, length: 2 };
        let mut packet = head.encode().0;
        packet.extend_from_slice(if in_memory { b"" } else { b"ab" });
        assert_eq!(RequestHead::decode(&packet).unwrap().0, head);
        packet.push(0);
        assert!(RequestHead::decode(&packet).is_err());
        let head = ReplyHead { id: 9, errno: 2, in_memory, more: in_memory, length: 2 };
        let mut packet = head.encode().0;
        packet.extend_from_slice(if in_memory { b"" } else { b"ab" });
        assert_eq!(ReplyHead::decode(&packet).unwrap().0, head);
        packet.pop();
        assert!(ReplyHead::decode(&packet).is_err());
    }
    let stat = Stat { ino: 1, mode: 0o100644, size: 5, btime: -3, ..Stat::default() };
    let mut out = Writer::default();
    stat.encode(&mut out);
    assert_eq!(out.0.len(), Stat::BYTES);
    assert_eq!(Stat::decode(&mut Reader::new(&out.0)), Ok(stat));
    let mut out = Writer::default();
    let item = WalkItem { path: b"p", stat, is_closed: true };
    item.encode(&mut out);
    assert_eq!(WalkItem::decode(&mut Reader::new(&out.0)), Ok(item));
    let mut out = Writer::default();
    let item = ReadItem { index: 3, errno: 0, data: b"abc" };
    item.encode(&mut out);
    assert_eq!(out.0.len(), ReadItem::HEAD_BYTES + 3);
    assert_eq!(ReadItem::decode(&mut Reader::new(&out.0)), Ok(item));
    let mut out = Writer::default();
    let head = ChangesHead { position: b"here", everything: true };
    head.encode(&mut out);
    assert_eq!(ChangesHead::decode(&mut Reader::new(&out.0)), Ok(head.clone()));
    let mut out = Writer::default();
    let head = WaitHead { exact: b"now", changes: head };
    head.encode(&mut out);
    assert_eq!(WaitHead::decode(&mut Reader::new(&out.0)), Ok(head));
    for change in [Change::Added, Change::Removed, Change::Changed] {
        let mut out = Writer::default();
        let item = DiffItem { change, path: b"a/b" };
        item.encode(&mut out);
        assert_eq!(DiffItem::decode(&mut Reader::new(&out.0)), Ok(item));
    }
    let ranges = RangeList::put_together(std::iter::once(0..5));
    let item = DetailItem {
        stat: Some(stat),
        target: b"t",
        extents: (9, RangeList::of(&ranges)),
        ..DetailItem::default()
    };
    let all = Aspects { attributes: true, xattrs: true, target: true, extents: true };
    let mut out = Writer::default();
    item.encode(all, &mut out);
    assert_eq!(DetailItem::decode(all, &out.0), Ok(item));
    assert!((0..out.0.len()).all(|end| DetailItem::decode(all, &out.0[..end]).is_err()));
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Hello::decode(&bytes);
        let _ = ReplyHead::decode(&bytes);
        let _ = WelcomeFlags::decode(&bytes);
        if let Ok((head, body)) = RequestHead::decode(&bytes) {
            let _ = Call::decode(head.call, body);
        }
        for number in 0..33 {
            if let Ok(call) = Call::decode(number, &bytes) {
                let bytes = call.encode();
                prop_assert_eq!(Call::decode(number, &bytes), Ok(call.clone()));
            }
        }
    }
}
