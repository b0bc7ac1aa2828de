use super::*;
use crate::model::tree_limits::TreeLimits;
use proptest::prelude::*;

fn kind() -> impl Strategy<Value = FileKind> {
    (1u8..8).prop_map(|code| kind_from(code).expect("codes 1 to 7 are kinds"))
}

fn xattrs() -> impl Strategy<Value = Xattrs> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|v| XattrValue::Inline(v.into())),
        (0u32..65536).prop_map(XattrValue::Large),
    ];
    prop::collection::btree_map(prop::collection::vec(1u8.., 1..8).prop_map(Into::into), value, 0..4)
}

prop_compose! {
    fn inode()(
        kind in kind(), (sparse, reserved, uniform, area) in any::<(bool, bool, bool, bool)>(), mode in 0u32..0o10000, links: u32, uid: u32, gid: u32, number: u64,
        (delta, rdev) in any::<(u64, u64)>(), size in 0..=crate::model::types::MAX_FILE_SIZE, times: [i64; 4],
        target in prop::collection::vec(1u8.., 1..100), xattrs in xattrs(),
    ) -> Inode {
        Inode {
            kind, sparse, reserved: reserved && kind == FileKind::Regular, mode, links, owned_alone: uniform && kind == FileKind::Directory, has_link_area: area && kind == FileKind::Directory, uid, gid, number, delta, link_area_delta: delta ^ rdev, size, rdev, flags: FileFlags(uid & FileFlags::ALL.0),
            limits: LimitsField::of((kind == FileKind::Directory && uid % 3 == 0).then_some(TreeLimits { exclusive: (gid % 2 == 0).then_some(delta >> 1), total: (gid % 3 == 0).then_some(rdev >> 1) })),
            atime: times[0], mtime: times[1], ctime: times[2], btime: times[3],
            target: (kind == FileKind::Symlink).then(|| target.into()),
            xattrs: (!xattrs.is_empty()).then(|| Arc::new(xattrs)),
        }
    }
}

proptest! {
    #[test]
    fn inodes_come_back(inode in inode()) {
        prop_assert_eq!(Record::decode(&inode.encode()).ok(), Some(Record::Inode(inode)));
    }

    #[test]
    fn limits_that_are_none_are_told_from_the_rest(field in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = Inode::new(FileKind::Directory, 0o755, 1, 2, 3, 4).encode();
        push_field(&mut bytes, TAG_LIMITS, &[&field]);
        let Ok(Record::Inode(inode)) = Record::decode(&bytes) else { panic!("an inode") };
        let is_right = field.len() == 16 && field.iter().any(|byte| *byte != u8::MAX);
        prop_assert_eq!(inode.limits.get().is_some(), is_right);
        prop_assert_eq!(inode.limits == LimitsField::Malformed, !is_right);
        prop_assert_eq!(Inode { limits: LimitsField::Absent, ..inode }.uid, 1);
    }

    #[test]
    fn links_come_back(kind in kind(), id: u64, number: u64) {
        prop_assume!(kind != FileKind::Directory);
        let link = Link { kind, id, number };
        prop_assert_eq!(Record::decode(&link.encode()).ok(), Some(Record::Link(link)));
    }

    #[test]
    fn damage_gives_errors(inode in inode(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut bytes = inode.encode();
        let len = bytes.len();
        bytes[at.index(len)] = byte;
        let _ = Record::decode(&bytes);
        prop_assert!(Record::decode(&bytes[..cut.index(FIXED_RECORD_BYTES)]).is_err());
        let _ = Record::decode(&bytes[..cut.index(len)]);
    }

    #[test]
    fn noise_gives_errors(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Record::decode(&bytes), OrphanRecord::decode(&bytes), VolumeState::decode(&bytes));
    }
}

#[test]
fn small_records_come_back() {
    for longest_key in [None, Some(88)] {
        for flags_used in [FileFlags::default(), FileFlags::IMMUTABLE] {
            let state = VolumeState { next_number: 77, longest_key, flags_used };
            assert_eq!(VolumeState::decode(&state.encode()).ok(), Some(state));
        }
    }
    let odd = [
        &VolumeState { next_number: 1, longest_key: Some(2), flags_used: FileFlags::ALL }.encode()[..],
        b"x",
    ];
    assert!(VolumeState::decode(&odd.concat()).is_err());
    let base = crate::model::layout::entry_key(b"dir\x01", b"name");
    assert_eq!(decode_orphan(&encode_orphan(&base)).ok(), Some(&*base));
    assert!(decode_orphan(&encode_orphan(b"dir")).is_err());
}

#[test]
fn an_ordinary_inode_takes_64_bytes() {
    assert_eq!(Inode::new(FileKind::Regular, 0o644, 1, 1, 9, 0).encode().len(), 64);
}

#[test]
fn changes_within_a_tick_have_times_of_their_own() {
    let mut inode = Inode::new(FileKind::Regular, 0o644, 0, 0, 7, 1000);
    inode.set_ctime(1000);
    assert_eq!(inode.ctime, 1001);
    inode.set_ctime(1000);
    assert_eq!(inode.ctime, 1002);
    inode.set_ctime(TICK_NANOSECONDS + 1000);
    assert_eq!(inode.ctime, TICK_NANOSECONDS + 1000);
    // The clock was set back.
    inode.set_ctime(5);
    assert_eq!(inode.ctime, 5);
    assert_eq!(later_than(i64::MAX, i64::MAX), i64::MAX);
}
