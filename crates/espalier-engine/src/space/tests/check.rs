//! For each thing that tables must agree about a store in which they do not, and what is said of
//! it.

use super::*;
use crate::model::ids::Delta;

/// A part, a value part with 5000 bytes of which 3000 are live, and a node that refers to both.
struct Sample {
    space: Arc<Space>,
    part: PieceId,
    values: PieceId,
    node: PieceId,
    references: HashMap<PieceId, Delta>,
}

fn sample() -> Sample {
    let space = new_store(simulated(1));
    let part = write_piece(&space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    let values = write_piece(&space, 2, PieceKind::Values, Vec::new()).unwrap();
    let node = write_piece(&space, 1, PieceKind::Node(0), vec![part.clone(), values.clone()]).unwrap();
    let references = HashMap::from([
        (part.id(), Delta { count: 1, bytes: 0 }),
        (values.id(), Delta { count: 2, bytes: 3000 }),
        (node.id(), Delta { count: 1, bytes: 0 }),
    ]);
    space.count(&references).unwrap();
    let roots = space.write_tables(&VolumeTable::default(), &[]).unwrap();
    let dead_values = space.dead_value_bytes();
    space.commit_superblock(Superblock { roots, dead_values, ..space.superblock() }).unwrap();
    let (part, values, node) = (part.id(), values.id(), node.id());
    Sample { space, part, values, node, references }
}

impl Sample {
    fn problems(&self) -> Vec<String> {
        self.space.check(&self.references, &[], &mut |_| ())
    }

    fn entry(&self, id: PieceId) -> piece_table::PieceEntry {
        self.space.tables.ntt.get(id).unwrap().unwrap()
    }

    fn set(&self, id: PieceId, entry: piece_table::PieceEntry) {
        self.space.tables.ntt.set(id, Some(&entry)).unwrap();
    }

    fn extent(&self, id: PieceId) -> Extent {
        self.entry(id).location.extent
    }

    /// A block that nothing uses.
    fn free(&self) -> Extent {
        let extent = self.space.allocate(1, None).unwrap();
        self.space.give_back(extent);
        extent
    }
}

/// What `change` breaks is found, and told in these words.
#[track_caller]
fn broken(change: impl FnOnce(&mut Sample), words: &str) {
    let mut sample = sample();
    assert_eq!(sample.problems(), [""; 0]);
    change(&mut sample);
    let problems = sample.problems();
    assert!(!problems.is_empty(), "nothing is found: {words}");
    assert!(problems.iter().any(|problem| problem.contains(words)), "{words}: {problems:#?}");
}

#[test]
fn wrong_counts_are_found() {
    let more = |s: &mut Sample| s.references.get_mut(&s.part).unwrap().count = 2;
    broken(more, "is counted 1 times and referred to 2 times");
    let fewer = |s: &mut Sample| s.references.get_mut(&s.values).unwrap().count = 1;
    broken(fewer, "is counted 2 times and referred to 1 times");
    let none = |s: &mut Sample| assert!(s.references.remove(&s.node).is_some());
    broken(none, "is counted 1 times and referred to 0 times");
    let unknown = |s: &mut Sample| assert!(s.references.insert(PieceId(999), 1.into()).is_none());
    broken(unknown, "#999 has 1 references and is not in the node translation table");
    let dead = |s: &mut Sample| {
        s.set(s.node, piece_table::PieceEntry { count: 0, ..s.entry(s.node) });
        s.references.remove(&s.node);
    };
    broken(dead, "has no references and is not on the reclaim list");
    let unreferenced =
        |s: &mut Sample| s.set(s.part, piece_table::PieceEntry { count: 0, ..s.entry(s.part) });
    broken(unreferenced, "is a part and has no references");
}

#[test]
fn wrong_bytes_of_values_are_found() {
    let live = |s: &mut Sample| s.set(s.values, piece_table::PieceEntry { live: 3001, ..s.entry(s.values) });
    broken(live, "is said to have 3001 live bytes and has 3000");
    let dead = |s: &mut Sample| s.space.current.write().dead_values += 1;
    broken(dead, "bytes are dead in value parts, and");
}

#[test]
fn space_that_is_not_accounted_for_exactly_once_is_found() {
    let twice = |s: &mut Sample| {
        let location = crate::model::ids::Location { extent: s.extent(s.node), ..s.entry(s.node).location };
        s.set(s.part, piece_table::PieceEntry { location, ..s.entry(s.part) });
    };
    broken(twice, "shares blocks");
    broken(twice, "is accounted for but occupied by nothing");
    let nothing = |s: &mut Sample| space_map::mark(&s.space.tables.map, s.free(), true).unwrap();
    broken(nothing, "is accounted for but occupied by nothing");
    broken(nothing, "is accounted for and could be allocated");
    let unaccounted =
        |s: &mut Sample| space_map::mark(&s.space.tables.map, s.extent(s.values), false).unwrap();
    broken(unaccounted, "is occupied but not accounted for");
    let free = |s: &mut Sample| assert!(s.space.free_blocks.lock().release(s.extent(s.part)));
    broken(free, "is accounted for and could be allocated");
    let outside = |s: &mut Sample| {
        let entry = s.entry(s.part);
        let extent = Extent { start: s.space.geometry().blocks - 2, ..entry.location.extent };
        s.set(
            s.part,
            piece_table::PieceEntry {
                location: crate::model::ids::Location { extent, ..entry.location },
                ..entry
            },
        );
    };
    broken(outside, "cannot lie in 3 blocks");
}

#[test]
fn a_lost_copy_of_a_superblock_is_found() {
    let device = simulated(1);
    let space = new_store(device.clone());
    let lost = AlignedBuf::zeroed(BLOCK);
    device.write_at(16 * BLOCK as u64, &[&lost]).unwrap();
    let problems = space.check(&HashMap::new(), &[], &mut |_| ());
    assert!(problems.len() == 1 && problems[0].contains("nothing is lost"), "{problems:?}");
}
