use super::*;
use crate::model::types::*;

#[test]
fn only_what_is_there_is_dropped_from_a_copied_area() {
    let (_, _, fs) = crate::test_support::empty();
    let caller = Caller::default();
    // Files with two names each, of which those of the first, the last and some between lie in
    // one tree.
    let dirs = [&b"in"[..], b"out"].map(|name| fs.mkdir(NodeId::ROOT, name, 0o755, &caller).unwrap().node);
    for n in 0..40u32 {
        let dir = dirs[usize::from(n % 13 / 3 == 1)];
        let file = fs.mknod(dir, format!("a{n}").as_bytes(), NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(file, 0, &[7; 5000], false).unwrap();
        fs.setxattr(file, b"user.large", &[1; 5000], XattrMode::Set, false).unwrap();
        fs.link(file, dir, format!("b{n}").as_bytes()).unwrap();
    }
    let rests = |name: &[u8]| {
        let prefix = layout::content_prefix(b"", name);
        let areas = &fs.names.areas;
        let named = areas.links.count_below(&prefix).unwrap();
        [fs.volume.metadata(), fs.volume.data()]
            .map(|index| areas.ranges_without_names(index, &prefix, &named).unwrap())
    };
    let read = |name: &[u8]| {
        let dir = fs.lookup(NodeId::ROOT, name).unwrap().node;
        let file = fs.lookup(dir, b"b12").unwrap().node;
        let mut data = [0; 5000];
        assert_eq!(fs.read(file, 0, &mut data).unwrap(), 5000);
        assert_eq!(fs.getxattr(file, b"user.large").unwrap(), [1; 5000]);
        data
    };
    let clone = |dir: NodeId, name: &[u8]| {
        fs.clone_tree(dir, NodeId::ROOT, name, &caller).unwrap();
        fs.lookup(fs.lookup(NodeId::ROOT, name).unwrap().node, b"a0").unwrap();
    };
    clone(dirs[0], b"first");
    let [metadata, data] = rests(b"first");
    assert_eq!((metadata.len(), &metadata), (3, &data), "one for each run of files of the other tree");
    fs.background_tick().unwrap();
    assert_eq!(rests(b"first"), [[], []]);
    assert_eq!(read(b"first"), [7; 5000]);
    // A copy of an area that holds nothing else.
    let first = fs.lookup(NodeId::ROOT, b"first").unwrap().node;
    clone(first, b"second");
    assert_eq!(rests(b"second"), [[], []]);
    fs.background_tick().unwrap();
    assert_eq!(read(b"second"), [7; 5000]);
}
