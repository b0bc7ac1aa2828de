use super::*;

const STATUS: &str = "Name:\tcp\nUid:\t1000\t1001\t1002\t1003\nGid:\t50\t51\t52\t53\nGroups:\t4 24\n";

#[test]
fn the_ids_for_files_are_read() {
    assert_eq!(id_in(STATUS, "Uid:"), 1003);
    assert_eq!(id_in(STATUS, "Gid:"), 53);
}

#[test]
fn a_thread_that_cannot_be_seen_has_no_rights() {
    for status in ["", "Uid:\t1 2 3\n", "Uid:\ta b c d\n"] {
        assert_eq!(id_in(status, "Uid:"), UNKNOWN_ID, "{status}");
    }
    // The kernel gives no thread this number.
    assert_eq!(status(u32::MAX), "");
}

#[test]
fn capabilities_are_read() {
    let status = "Name:\tcp\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000010\n";
    assert!(has_capability(status, FSETID) && !has_capability(status, 3));
    assert!(!has_capability(STATUS, FSETID) && !has_capability("CapEff:\tx\n", FSETID));
}
