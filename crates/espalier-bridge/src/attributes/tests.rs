use super::*;

#[test]
fn every_kind_has_its_bits_in_a_mode_and_in_a_listing() {
    let bits = [
        libc::S_IFREG,
        libc::S_IFDIR,
        libc::S_IFLNK,
        libc::S_IFIFO,
        libc::S_IFSOCK,
        libc::S_IFCHR,
        libc::S_IFBLK,
    ];
    for (kind, bits) in FileKind::ALL.into_iter().zip(bits) {
        assert_eq!((kind.mode_bits(), FileKind::of_mode(bits | 0o4777)), (bits, Some(kind)));
        let listing = Listing { kinds: 1 << (bits >> 12), ..Listing::default() };
        assert_eq!(filter_of(&listing).kinds, Some(vec![kind]));
    }
    assert_eq!(filter_of(&Listing::default()), Filter::default());
    assert_eq!(listing_of(&Filter::default()), Listing::default());
    let two = 1 << (libc::S_IFREG >> 12) | 1 << (libc::S_IFSOCK >> 12);
    let listing =
        Listing { kinds: two, pattern: Some(b"*".to_vec()), size: Some(1..=2), modified: Some(-1..=3) };
    let filter = filter_of(&listing);
    assert_eq!(listing_of(&filter), listing);
    assert_eq!(filter.kinds, Some(vec![FileKind::Regular, FileKind::Socket]));
    assert_eq!(
        (filter.pattern, filter.size, filter.modified),
        (Some(b"*".to_vec()), Some(1..=2), Some(-1..=3))
    );
    assert_eq!(FileKind::of_mode(0o777), None);
    // Bits that no kind has let nothing through.
    assert_eq!(filter_of(&Listing { kinds: 1, ..Listing::default() }).kinds, Some(Vec::new()));
}

#[test]
fn attributes_keep_their_places() {
    let attr = Attr {
        ino: 1,
        kind: FileKind::Fifo,
        mode: 0o4755,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 5,
        size: 6,
        blocks: 7,
        blksize: 8,
        atime: 9,
        mtime: -10,
        ctime: 11,
        btime: 12,
    };
    let stat = stat_of(&attr);
    assert_eq!(stat.mode, libc::S_IFIFO | 0o4755);
    assert_eq!((stat.ino, stat.nlink, stat.uid, stat.gid, stat.rdev), (1, 2, 3, 4, 5));
    assert_eq!((stat.size, stat.blocks, stat.blksize), (6, 7, 8));
    assert_eq!((stat.atime, stat.mtime, stat.ctime, stat.btime), (9, -10, 11, 12));
}
