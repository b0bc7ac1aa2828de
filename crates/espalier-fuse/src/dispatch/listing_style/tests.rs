use super::*;
use ListedNodes::{All, AllButOneFile, Directories};

/// A listing of a directory that has files, from its first entry on.
fn list(styles: &ListingStyles, process: u32, directory: u64) -> ListedNodes {
    let nodes = styles.begin(process, true);
    if nodes != ListedNodes::All {
        styles.left_out(process, directory, nodes);
    }
    nodes
}

fn lists(styles: &ListingStyles, process: u32, directories: std::ops::Range<u64>) -> Vec<ListedNodes> {
    directories.map(|directory| list(styles, process, directory)).collect()
}

#[test]
fn a_process_that_asks_for_no_file_gets_directories() {
    let styles = ListingStyles::default();
    let expected = [All, AllButOneFile, AllButOneFile, AllButOneFile, Directories, Directories];
    assert_eq!(lists(&styles, 7, 0..6), expected);
    // The rest of a listing like its beginning.
    assert_eq!(styles.begin(7, false), Directories);
    // Others are not concerned.
    assert_eq!(lists(&styles, 8, 10..12), [All, AllButOneFile]);
    assert_eq!(styles.begin(8, false), All);
}

#[test]
fn a_process_that_asks_for_a_file_gets_all() {
    let styles = ListingStyles::default();
    lists(&styles, 7, 0..2);
    styles.asked_for_file(7, 1);
    let rest = LISTINGS_AFTER_ANSWER as usize;
    assert_eq!(lists(&styles, 7, 2..2 + rest as u64), vec![All; rest]);
    assert_eq!(list(&styles, 7, 1000), AllButOneFile);
    lists(&styles, 7, 1001..1003);
    assert_eq!(list(&styles, 7, 1003), Directories);
    // Any file, also of a directory that another process listed.
    styles.asked_for_file(7, 5000);
    assert_eq!(list(&styles, 7, 1004), All);
}

#[test]
fn another_thread_may_be_the_one_that_looks() {
    let styles = ListingStyles::default();
    lists(&styles, 7, 0..6);
    styles.asked_for_file(8, 100);
    assert_eq!(list(&styles, 7, 6), Directories);
    styles.asked_for_file(8, 4);
    assert_eq!(list(&styles, 7, 7), All);
}

#[test]
fn directories_without_files_prove_nothing() {
    let styles = ListingStyles::default();
    list(&styles, 7, 0);
    for _ in 0..10 {
        assert_eq!(styles.begin(7, true), AllButOneFile);
    }
}

#[test]
fn nothing_is_left_out_where_all_is_wanted() {
    let mut styles = ListingStyles::default();
    assert!(lists(&styles, 0, 0..10).iter().all(|nodes| *nodes == All), "of a process without a number");
    styles.give_all();
    assert!(lists(&styles, 7, 0..10).iter().all(|nodes| *nodes == All));
}

#[test]
fn few_processes_and_directories_are_remembered() {
    let styles = ListingStyles::default();
    for process in 1..1000 {
        lists(&styles, process, 0..8);
    }
    let table = styles.table.lock();
    assert_eq!((table.processes.len(), table.directories.len()), (MAX_PROCESSES, MAX_DIRECTORIES));
}
