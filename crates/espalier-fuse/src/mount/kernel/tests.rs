use super::*;

#[test]
fn the_device_of_a_mount_is_that_of_the_topmost_one_there() {
    let table = b"22 1 0:20 / /proc rw - proc proc rw\n\
        30 1 0:41 / /mnt rw - fuse.espalier a.img rw\n\
        31 1 7:3 / /mnt rw - fuseblk.espalier /dev/loop3 rw\n\
        32 1 0:43 / /a\\040b rw - fuse.espalier a.img rw\n";
    let found = |point: &str| DeviceNumber::in_table(table, Path::new(point));
    assert_eq!(found("/mnt"), Some(DeviceNumber { major: 7, minor: 3 }));
    assert_eq!(found("/a b").map(DeviceNumber::connection), Some(43));
    // As the kernel prints `dev_t`.
    assert_eq!(found("/mnt").map(DeviceNumber::connection), Some(7 << 20 | 3));
    assert_eq!(found("/a"), None);
}
