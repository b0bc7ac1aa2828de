//! For each invariant a tree that breaks it and nothing else, and what is said of it.

use super::*;
use crate::message::range_messages::RangeMessages;
use crate::model::op::RangeOp;
use crate::pieces::{Filter, PartBuilder};
use crate::tree::codec;
use crate::tree::part_slot::{PartSlot, PartSummary, StoredPart};
use crate::{Batch, FormatOptions, Key, Msn, OpenOptions, Store, Tuning};
use espalier_storage::{AlignedBuf, BLOCK, Device, Random, SimulatedDevice, SimulatedEnvironment};

const ID: IndexId = IndexId { volume: 1, index: 0 };

/// A store that lends its rooms, and trees made by hand.
struct Hand {
    store: Arc<Store>,
}

impl Hand {
    fn new() -> Self {
        let device = Arc::new(SimulatedDevice::new(16 << 20, 1));
        let env = Arc::new(SimulatedEnvironment::new(1));
        Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
        Self { store: Store::open(device, env, OpenOptions::default()).unwrap() }
    }

    fn trees(&self) -> &Arc<Trees> {
        &self.store.components.trees
    }

    /// A part of inserts.
    fn part(&self, keys: &str) -> Arc<ViewedPart> {
        self.part_of(keys, &Op::Insert(b"value".to_vec().into()))
    }

    /// A part with one message for each key (one byte each).
    fn part_of(&self, keys: &str, op: &Op) -> Arc<ViewedPart> {
        let mut builder = PartBuilder::new();
        keys.bytes().for_each(|key| builder.push(&[key], Msn(5), op).unwrap());
        Arc::new(ViewedPart::whole(PartSlot::new(&self.trees().memory, builder.finish())))
    }

    /// A part on the device, with a summary that `change` has changed.
    fn stored_part(&self, keys: &str, change: impl FnOnce(&mut PartSummary)) -> Arc<ViewedPart> {
        let part = self.part(keys);
        self.trees().store_parts(std::slice::from_ref(&part.slot)).unwrap();
        let StoredPart { handle, values } = part.slot.place().unwrap();
        let mut summary = part.slot.summary.clone();
        change(&mut summary);
        Arc::new(ViewedPart::whole(PartSlot::stored(summary, StoredPart { handle, values })))
    }

    fn run(&self, keys: &str) -> Arc<Run> {
        Arc::new(Run::of_parts(vec![self.part(keys)]))
    }

    /// What is found in the tree with the root `node`.
    fn problems(&self, node: Node) -> Vec<String> {
        let root = Root { height: node.height, slot: Some(NodeSlot::new(node)) };
        let (trees, mut progress) = (self.trees(), |_| ());
        let mut verifier = Verifier::new(trees, &mut progress);
        verifier.index(ID, &root);
        let (report, _) = verifier.finish();
        assert!(report.problems.iter().all(|problem| problem.index.is_none_or(|id| id == ID)));
        report.problems.into_iter().map(|problem| problem.message).collect()
    }

    /// That is found and nothing else.
    #[track_caller]
    fn found(&self, node: Node, words: &str) {
        let problems = self.problems(node);
        assert!(!problems.is_empty(), "nothing is found: {words}");
        assert!(problems.iter().all(|problem| problem.contains(words)), "{words}: {problems:#?}");
    }
}

/// What the tests break: keys a to f below one edge, p to r below another, with messages on the
/// way.
fn sound(hand: &Hand) -> (Vec<Key>, Vec<Edge>) {
    let (left, right) =
        (KeyRange { start: Key::default(), end: Some(key("m")) }, KeyRange::new(key("m"), key("z")));
    let leaf = |parts| Node::leaf(parts);
    let edges = vec![
        Edge {
            child: Some(Child::attach(&leaf(vec![hand.part("abc"), hand.part("def")]), &left)),
            runs: vec![hand.run("bd"), hand.run("ag")],
        },
        Edge { child: Some(Child::attach(&leaf(vec![hand.part("pqr")]), &right)), runs: Vec::new() },
        Edge::default(),
    ];
    (vec![key("m"), key("z")], edges)
}

fn key(text: &str) -> Key {
    text.as_bytes().into()
}

fn interior(pivots: Vec<Key>, edges: Vec<Edge>) -> Node {
    Node { height: 1, body: Body::Interior { pivots, edges } }
}

/// The sound tree after a change.
fn changed(hand: &Hand, change: impl FnOnce(&mut Vec<Key>, &mut Vec<Edge>)) -> Node {
    let (mut pivots, mut edges) = sound(hand);
    change(&mut pivots, &mut edges);
    interior(pivots, edges)
}

fn ranged(start: &str, end: &str) -> Arc<Run> {
    let mut ranges = RangeMessages::default();
    ranges.insert(&KeyRange::new(key(start), key(end)), Msn(6), &RangeOp::Delete, false);
    Arc::new(Run::new(Vec::new(), ranges))
}

#[test]
fn a_sound_tree_has_no_problems() {
    let hand = Hand::new();
    assert_eq!(hand.problems(changed(&hand, |_, _| ())), [""; 0]);
    assert_eq!(hand.problems(Node::leaf(vec![hand.part("abc"), hand.part("d")])), [""; 0]);
    assert_eq!(hand.problems(changed(&hand, |_, edges| edges[0].runs.push(ranged("b", "m")))), [""; 0]);
    assert_eq!(hand.problems(Node::leaf(vec![hand.stored_part("abc", |_| ())])), [""; 0]);
}

#[test]
fn keys_out_of_order_are_found() {
    let hand = Hand::new();
    let words = "a key comes after a larger one, or twice";
    hand.found(Node::leaf(vec![hand.part("cd"), hand.part("ab")]), words);
    hand.found(Node::leaf(vec![hand.part("abc"), hand.part("cd")]), words);
    let disordered = |_: &mut Vec<Key>, edges: &mut Vec<Edge>| {
        let parts = vec![hand.part("bd"), hand.part("ce")];
        edges[0].runs.push(Arc::new(Run::of_parts(parts)));
    };
    hand.found(changed(&hand, disordered), words);
}

#[test]
fn keys_out_of_bounds_are_found() {
    let hand = Hand::new();
    let words = "a key lies outside of what its edge covers";
    // A message, an entry of the child, and a message on the last edge.
    hand.found(changed(&hand, |_, edges| edges[0].runs.push(hand.run("lm"))), words);
    hand.found(changed(&hand, |_, edges| edges[2].runs.push(hand.run("y"))), words);
    let strays = |_: &mut Vec<Key>, edges: &mut Vec<Edge>| {
        let all = KeyRange { start: Key::default(), end: Some(key("m")) };
        edges[0].child = Some(Child::attach(&Node::leaf(vec![hand.part("amn")]), &all));
    };
    hand.found(changed(&hand, strays), words);
    let ranges = "a range message reaches beyond its edge";
    hand.found(changed(&hand, |_, edges| edges[1].runs.push(ranged("l", "n"))), ranges);
    let mut part = hand.part("abc");
    Arc::make_mut(&mut part).first = key("b");
    hand.found(Node::leaf(vec![part]), "outside of what the header says of its part");
    let mut part = hand.part("abc");
    Arc::make_mut(&mut part).last = Some(key("b"));
    hand.found(Node::leaf(vec![part]), "outside of what the header says of its part");
}

#[test]
fn pivots_out_of_order_are_found() {
    let hand = Hand::new();
    let words = "covers no keys: pivots are out of order";
    hand.found(changed(&hand, |pivots, _| pivots[1] = key("m")).without_second_child(), words);
    hand.found(changed(&hand, |pivots, _| pivots[1] = key("k")).without_second_child(), words);
    hand.found(changed(&hand, |pivots, _| pivots.push(key("zz"))), "pivots and edges do not match");
}

impl Node {
    /// Without what lies below the second edge, which would be out of bounds as well.
    fn without_second_child(mut self) -> Self {
        if let Body::Interior { edges, .. } = &mut self.body {
            edges[1] = Edge::default();
        }
        self
    }
}

#[test]
fn what_is_not_lifted_is_found() {
    let hand = Hand::new();
    let edge = |to: &[u8], keys| {
        let node = Node::leaf(vec![hand.part(keys)]);
        let weight = node.weight();
        let child = Child { slot: NodeSlot::new(node), view: View::lifted(to), weight };
        Edge { child: Some(child), runs: Vec::new() }
    };
    let below = |edge| interior(vec![key("p/"), key("p0")], vec![Edge::default(), edge, Edge::default()]);
    // Keys between p/ and p0 begin with p/, which is stored in none of them.
    assert_eq!(hand.problems(below(edge(b"p/", "abc"))), [""; 0]);
    hand.found(below(edge(b"p", "/")), "not its lift");
    hand.found(below(edge(b"p/", "abc")).at_height(0), "a leaf has a child");
}

impl Node {
    fn at_height(self, height: u8) -> Self {
        Self { height, ..self }
    }
}

#[test]
fn wrong_heights_and_weights_are_found() {
    let hand = Hand::new();
    let slot = NodeSlot::new(Node::leaf(vec![hand.part("abc")]));
    let handle = hand.trees().write(&slot, &mut Vec::new()).unwrap();
    let weight = slot.load(hand.trees(), 0).unwrap().weight();
    let above = |height, weight| {
        let child = Child { slot: NodeSlot::stored(handle.clone()), view: View::identity(), weight };
        interior(Vec::new(), vec![Edge { child: Some(child), runs: Vec::new() }]).at_height(height)
    };
    assert_eq!(hand.problems(above(1, weight)), [""; 0]);
    hand.found(above(2, weight), "has height 0 where its parent needs 1");
    hand.found(above(1, weight + 1), "a child weighs");
}

#[test]
fn what_does_not_belong_into_a_leaf_is_found() {
    let hand = Hand::new();
    for op in [Op::Delete, Op::Patch { offset: 3, bytes: b"x".to_vec().into() }] {
        hand.found(Node::leaf(vec![hand.part("a"), hand.part_of("b", &op)]), "of a leaf holds a message");
    }
    let run = Run::new(vec![hand.part("a")], ranged("b", "c").ranges.clone());
    let leaf = Node { height: 0, body: Body::Leaf(Arc::new(run)) };
    hand.found(leaf, "a leaf holds range messages");
}

#[test]
fn headers_that_lie_about_parts_are_found() {
    let hand = Hand::new();
    let words = "says other things than the part";
    hand.found(Node::leaf(vec![hand.stored_part("abc", |summary| summary.entries = 4)]), words);
    hand.found(Node::leaf(vec![hand.stored_part("bc", |summary| summary.first = key("a"))]), words);
    hand.found(Node::leaf(vec![hand.stored_part("bc", |summary| summary.last = key("d"))]), words);
    let denies = hand.stored_part("abc", |summary| summary.filter = Filter::build(&[]));
    hand.found(Node::leaf(vec![denies]), "denies a key of it");
}

#[test]
fn a_header_with_parts_that_overlap_is_damaged() {
    let hand = Hand::new();
    let is_sound = |parts: [&str; 2]| {
        let leaf = Node::leaf(parts.map(|keys| hand.stored_part(keys, |_| ())).to_vec());
        let (body, _held) = codec::encode(&leaf).unwrap();
        codec::decode(PieceId(9), 0, &body, &*hand.trees().locator).is_ok()
    };
    assert!(is_sound(["abc", "def"]));
    assert!(!is_sound(["ac", "bd"]));
    assert!(!is_sound(["def", "abc"]));
}

/// A bit of every piece that a checkpoint counts, one after the other.
#[test]
fn damage_of_any_piece_is_found() {
    let env = Arc::new(SimulatedEnvironment::new(3));
    let device = Arc::new(SimulatedDevice::new(16 << 20, 3));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options = OpenOptions { tuning: Tuning::tiny(), memory: 4 << 20, ..OpenOptions::default() };
    let store = Store::open(device.clone(), env.clone(), options.clone()).unwrap();
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let mut random = Random::new(3);
    for n in 0..120 {
        let mut value = vec![0; [20, 300, 6000][n % 3]];
        random.fill(&mut value);
        let mut batch = Batch::new();
        batch.insert(index, format!("{n:04}").as_bytes(), value);
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    let pieces = store.components.space.tables.counted_from(0).unwrap();
    let mut all = Vec::new();
    let mut next = pieces;
    while let Some((page, found)) = next {
        all.extend(found.into_iter().map(|(id, _)| (id, store.components.trees.locator.locate(id).unwrap())));
        next = store.components.space.tables.counted_from(page + 1).unwrap();
    }
    drop(store);
    let kinds = |wanted: fn(&PieceKind) -> bool| all.iter().filter(|(_, at)| wanted(&at.kind)).count();
    assert!(kinds(|kind| matches!(kind, PieceKind::Node(0))) > 1);
    assert!(kinds(|kind| matches!(kind, PieceKind::Node(1..))) > 0);
    assert!(kinds(|kind| *kind == PieceKind::KeyValue) > 1 && kinds(|kind| *kind == PieceKind::Values) > 1);
    let image = device.image();
    let problems = |device: Arc<SimulatedDevice>| {
        let options = OpenOptions { read_only: true, ..options.clone() };
        Store::open(device, env.clone(), options).unwrap().verify(&mut |_| ()).unwrap().problems
    };
    assert_eq!(problems(Arc::new(SimulatedDevice::from_image(image.clone(), 1))), []);
    for (id, at) in all {
        let device = Arc::new(SimulatedDevice::from_image(image.clone(), 1));
        let byte = at.extent.byte_offset() + random.below(u64::from(at.len));
        let block = byte / BLOCK as u64 * BLOCK as u64;
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        device.read_at(block, &mut bytes).unwrap();
        bytes[(byte - block) as usize] ^= 1 << random.below(8);
        device.write_at(block, &[&bytes]).unwrap();
        assert_ne!(problems(device), [], "byte {byte}, in piece {id}, {at:?}");
    }
}
