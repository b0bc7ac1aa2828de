use super::*;

const TABLE: &[u8] = b"\
28 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
61 28 0:54 / /mnt/my\\040work rw,nosuid,nodev shared:30 master:2 - fuse.espalier /a\\040b.img rw,user_id=0
62 28 0:54 /team/x /srv/x ro,relatime - fuse.espalier /a rw,user_id=0
63 28 0:54 / /srv/all rw,idmapped - fuse.espalier /a rw
64 28 0:54 / /srv/frozen rw - fuse.espalier /a ro,user_id=0
70 61 0:60 / /mnt/my\\040work/team/cache rw - tmpfs none rw
71 62 0:61 / /srv/x/deep/er rw - tmpfs none rw
broken line
72 61
";

#[test]
fn a_mount_is_found_by_its_number_and_its_options_count() {
    let table = MountTable::parse(TABLE);
    let plain = table.find(61).unwrap();
    assert_eq!(plain.point, b"/mnt/my work");
    assert!(!plain.is_read_only() && plain.translation().is_none());
    assert!(table.find(62).unwrap().is_read_only(), "by the option of the place");
    assert!(table.find(64).unwrap().is_read_only(), "by the option of the file system");
    assert_eq!(table.find(63).unwrap().translation(), Some("idmapped"));
    assert!(table.find(65).is_none() && table.find(72).is_none());
}

#[test]
fn what_is_mounted_below_a_directory_is_found_and_nothing_else() {
    let table = MountTable::parse(TABLE);
    let plain = table.find(61).unwrap();
    let hidden = Some(&b"/mnt/my work/team/cache"[..]);
    assert_eq!(table.mounted_below(plain, b"/"), hidden);
    assert_eq!(table.mounted_below(plain, b"/team"), hidden);
    for free in [&b"/team/cache"[..], b"/team/cache/in", b"/te", b"/team/cach", b"/other"] {
        assert_eq!(table.mounted_below(plain, free), None, "{}", String::from_utf8_lossy(free));
    }
    // The place shows a directory of the file system, in which the other mount lies deeper.
    let part = table.find(62).unwrap();
    let hidden = Some(&b"/srv/x/deep/er"[..]);
    assert_eq!(table.mounted_below(part, b"/team/x"), hidden);
    assert_eq!(table.mounted_below(part, b"/team/x/deep"), hidden);
    assert_eq!(table.mounted_below(part, b"/team/x/other"), None);
    assert_eq!(table.mounted_below(table.find(63).unwrap(), b"/"), None);
}
