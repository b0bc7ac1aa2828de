use super::*;
use crate::model::types::*;

/// What the area of a directory of the root holds without a name, in each index.
fn rests(fs: &crate::FileSystem, name: &[u8]) -> [Vec<KeyRange>; 2] {
    let prefix = layout::content_prefix(b"", name);
    let areas = &fs.names.areas;
    let named = areas.links.count_below(&prefix).unwrap();
    [fs.volume.metadata(), fs.volume.data()].map(|index| {
        let all = KeyRange::prefix(&layout::area_files(&prefix));
        let names = layout::area_prefix(&prefix);
        areas.ranges_without_names(index, &names, all, named.keys().copied()).unwrap()
    })
}

#[test]
fn only_what_is_there_is_dropped_from_a_copied_area() {
    let options = OpenOptions { area_correction: AreaCorrection::Always, ..Default::default() };
    let (_, _, fs) = crate::test_support::empty_with(options);
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
    let rests = |name: &[u8]| rests(&fs, name);
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

#[test]
fn a_copied_area_is_corrected_when_room_is_short() {
    let (store, _, fs) = crate::test_support::empty();
    let caller = Caller::default();
    let file = |dir: NodeId, name: &[u8]| {
        let file = fs.mknod(dir, name, NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(file, 0, &[7; 5000], false).unwrap();
        file
    };
    let src = fs.mkdir(NodeId::ROOT, b"src", 0o755, &caller).unwrap().node;
    for n in 0..20 {
        let dir = if n % 5 == 0 { src } else { NodeId::ROOT };
        let linked = file(dir, format!("a{n}").as_bytes());
        fs.link(linked, dir, format!("b{n}").as_bytes()).unwrap();
    }
    for name in [&b"one"[..], b"two"] {
        fs.clone_tree(src, NodeId::ROOT, name, &caller).unwrap();
    }
    fs.background_tick().unwrap();
    assert!(rests(&fs, b"one")[0].len() > 3, "there is room: it shares all with its source");
    let filler = file(NodeId::ROOT, b"filler");
    let mut random = espalier_storage::Random::new(1);
    let mut noise = vec![0; 1 << 20];
    for block in 0.. {
        let (free, total) = fs.room();
        if free < total / 10 {
            break;
        }
        random.fill(&mut noise);
        fs.write(filler, block << 20, &noise, false).unwrap();
        store.checkpoint().unwrap();
    }
    fs.background_tick().unwrap();
    assert_eq!([rests(&fs, b"one"), rests(&fs, b"two")], [[vec![], vec![]], [vec![], vec![]]]);
    let two = fs.lookup(NodeId::ROOT, b"two").unwrap().node;
    let linked = fs.lookup(two, b"b5").unwrap();
    assert_eq!((linked.attr.nlink, linked.attr.size), (2, 5000));
    let report = crate::check(&store, "main", &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
}
