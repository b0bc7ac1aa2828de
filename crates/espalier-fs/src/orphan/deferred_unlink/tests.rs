use crate::model::types::{Caller, NewNode, NodeId};

/// Otherwise recovery would delete the data that another file has in that place by then.
#[test]
fn the_place_of_data_that_cannot_be_removed_is_not_free() {
    let (store, _, fs) = crate::test_support::empty();
    let caller = Caller::default();
    let file = fs.mknod(NodeId::ROOT, b"file", NewNode::Regular, 0o644, &caller).unwrap().node;
    fs.write(file, 0, b"data", false).unwrap();
    fs.unlink(NodeId::ROOT, b"file").unwrap();
    store.close().unwrap();
    fs.forget(file, 1);
    let orphans = &fs.names.orphans;
    let waiting = || (orphans.detached.len(), orphans.deferred.waiting.lock().files.len());
    assert_eq!(waiting(), (1, 1));
    assert!(fs.names.nodes.get(file).is_some());
    orphans.deferred.remove_all();
    assert_eq!(waiting(), (1, 1));
}
