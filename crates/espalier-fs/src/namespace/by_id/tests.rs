use super::{InMemory, hold_named};
use crate::model::types::{Caller, NodeId};

/// The kernel gives the last reference back between the look at the table and the reference.
#[test]
fn a_node_that_leaves_memory_meanwhile_is_not_stale() {
    let (_, _, fs) = crate::test_support::empty();
    let id = fs.mkdir(NodeId::ROOT, b"dir", 0o755, &Caller::default()).unwrap().node;
    let node = fs.names.nodes.get(id).unwrap();
    assert!(matches!(hold_named(&fs.names.lookup, node.clone()), InMemory::Named(_)));
    fs.forget(id, 1);
    assert!(fs.names.nodes.get(id).is_none());
    assert!(matches!(hold_named(&fs.names.lookup, node), InMemory::Left));
}
