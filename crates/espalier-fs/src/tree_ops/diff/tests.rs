use crate::model::types::{Caller, NewNode, NodeId};

/// However soon after a clone: what tells is the time of the change.
#[test]
fn a_file_that_was_written_right_after_a_clone_is_changed() {
    let (_, _, fs) = crate::test_support::empty();
    let caller = Caller::default();
    for n in 0..20 {
        let (name, clone) = (format!("a{n}"), format!("b{n}"));
        let dir = fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &caller).unwrap().node;
        let file = fs.mknod(dir, b"file", NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(file, 0, b"old", false).unwrap();
        let clone = fs.clone_tree(dir, NodeId::ROOT, clone.as_bytes(), &caller).unwrap().node;
        fs.write(file, 0, b"new", false).unwrap();
        let first = fs.diff_trees(&fs, clone, dir, &caller).unwrap().next().unwrap();
        assert!(first.is_some(), "round {n}");
    }
}
