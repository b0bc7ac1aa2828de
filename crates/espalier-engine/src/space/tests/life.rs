//! Fresh, counted, dead: when blocks are taken and when they come back.

use super::*;

#[test]
fn a_new_store_opens_empty() {
    let device = simulated(1);
    let space = new_store(device.clone());
    assert_eq!(problems(&space, &HashMap::new()), Vec::<String>::new());
    assert_accounted(&space);
    let free = space.free_blocks();
    drop(space);
    let opened = Space::open(GuardedDevice::new(device, false), &OPTIONS).unwrap();
    assert_eq!(opened.space.free_blocks(), free);
    assert_eq!(opened.volumes, VolumeTable::default());
    assert!(opened.damaged.is_empty());
    assert_eq!(problems(&opened.space, &HashMap::new()), Vec::<String>::new());
}

#[test]
fn a_fresh_piece_goes_with_its_last_handle() {
    let space = new_store(simulated(1));
    let free = space.free_blocks();
    let value = write_piece(&space, 2, PieceKind::Values, Vec::new()).unwrap();
    let value_id = value.id();
    let node = write_piece(&space, 3, PieceKind::Node(0), vec![value]).unwrap();
    let again = space.handle(node.id());
    assert!(Arc::ptr_eq(&node, &again), "the handle that holds the value part is shared");
    assert_eq!(space.free_blocks(), free - 5);
    let id = node.id();
    drop(node);
    read_piece(&space, id);
    read_piece(&space, value_id);
    drop(again);
    assert_eq!(space.free_blocks(), free);
    assert!(space.locate(id).is_err() && space.locate(value_id).is_err());
    assert_accounted(&space);
}

#[test]
fn a_pin_keeps_what_dies_after_it() {
    let space = new_store(simulated(1));
    let free = space.free_blocks();
    let piece = write_piece(&space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    let id = piece.id();
    let pin = space.deferred.pin();
    drop(piece);
    let later = space.deferred.pin();
    read_piece(&space, id);
    assert_accounted(&space);
    drop(pin);
    assert_eq!(space.free_blocks(), free, "the later pin does not need it");
    drop(later);
    assert!(space.locate(id).is_err());
}

/// A piece that lives from one checkpoint to the next.
fn lives_shortly(space: &Space) -> PieceId {
    let piece = write_piece(space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    space.count(&delta(&[(&piece, 1)])).unwrap();
    checkpoint(space).unwrap();
    space.note_checkpoint();
    space.count(&delta(&[(&piece, -1)])).unwrap();
    piece.id()
}

#[test]
fn a_pin_of_a_version_keeps_only_what_a_version_can_lead_to() {
    let space = new_store(simulated(1));
    let (version, other) = (space.deferred.pin_version(), space.deferred.pin());
    // The last of them is numbered before the last checkpoint ends that the version may have to do
    // with.
    let known: Vec<PieceId> = (0..4).map(|_| lives_shortly(&space)).collect();
    let unknown: Vec<PieceId> = (0..3).map(|_| lives_shortly(&space)).collect();
    checkpoint(&space).unwrap();
    space.note_checkpoint();
    known.iter().chain(&unknown).for_each(|id| read_piece(&space, *id));
    let free = space.free_blocks();
    drop(other);
    known.iter().for_each(|id| read_piece(&space, *id));
    assert!(unknown.iter().all(|id| space.locate(*id).is_err()));
    assert_eq!(space.free_blocks(), free + 9);
    let later = lives_shortly(&space);
    checkpoint(&space).unwrap();
    assert!(space.locate(later).is_err());
    assert_accounted(&space);
    drop(version);
    assert!(known.iter().all(|id| space.locate(*id).is_err()));
    assert_accounted(&space);
}

#[test]
fn what_a_version_comes_not_to_know_is_free_at_that_checkpoint() {
    let space = new_store(simulated(1));
    let version = space.deferred.pin_version();
    let waits = lives_shortly(&space);
    let unpinned = write_piece(&space, 1, PieceKind::KeyValue, Vec::new()).unwrap().id();
    for _ in 0..9 {
        checkpoint(&space).unwrap();
        space.note_checkpoint();
        read_piece(&space, waits);
        read_piece(&space, unpinned);
    }
    let newer = space.deferred.pin_version();
    let known = lives_shortly(&space);
    drop(version);
    assert!(space.locate(waits).is_err() && space.locate(unpinned).is_err());
    checkpoint(&space).unwrap();
    read_piece(&space, known);
    drop(newer);
    assert!(space.locate(known).is_err());
    assert_accounted(&space);
}

#[test]
fn a_counted_piece_outlives_its_handle_and_dies_with_its_count() {
    let space = new_store(simulated(1));
    let piece = write_piece(&space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    let id = piece.id();
    assert!(space.count(&delta(&[(&piece, 2)])).unwrap().is_empty());
    drop(piece);
    assert_accounted(&space);
    checkpoint(&space).unwrap();
    assert_eq!(problems(&space, &HashMap::from([(id, 2)])), Vec::<String>::new());
    assert!(!problems(&space, &HashMap::from([(id, 1)])).is_empty());
    assert!(!problems(&space, &HashMap::from([(id, 2), (PieceId(9999), 1)])).is_empty());

    space.count(&HashMap::from([(id, -1)])).unwrap();
    read_piece(&space, id);
    let pin = space.deferred.pin();
    space.count(&HashMap::from([(id, -1)])).unwrap();
    let free = space.free_blocks();
    read_piece(&space, id);
    assert_accounted(&space);
    checkpoint(&space).unwrap();
    read_piece(&space, id);
    assert_accounted(&space);
    drop(pin);
    assert!(space.locate(id).is_err());
    assert!(space.free_blocks() >= free + 3 - 2);
    assert_accounted(&space);
    assert_eq!(problems(&space, &HashMap::new()), Vec::<String>::new());
}

#[test]
fn the_superblock_on_the_device_keeps_what_it_needs() {
    let space = new_store(simulated(1));
    let piece = write_piece(&space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    let id = piece.id();
    space.count(&delta(&[(&piece, 1)])).unwrap();
    drop(piece);
    checkpoint(&space).unwrap();
    space.count(&HashMap::from([(id, -1)])).unwrap();
    let roots = space.write_tables(&VolumeTable::default(), &[]).unwrap();
    read_piece(&space, id);
    space.commit_superblock(Superblock { roots, ..space.superblock() }).unwrap();
    assert!(space.locate(id).is_err());
}

#[test]
fn what_dies_after_the_tables_were_written_waits_for_the_next_superblock() {
    let space = new_store(simulated(1));
    let piece = write_piece(&space, 3, PieceKind::KeyValue, Vec::new()).unwrap();
    let id = piece.id();
    space.count(&delta(&[(&piece, 1)])).unwrap();
    drop(piece);
    let roots = space.write_tables(&VolumeTable::default(), &[]).unwrap();
    space.count(&HashMap::from([(id, -1)])).unwrap();
    space.commit_superblock(Superblock { roots, ..space.superblock() }).unwrap();
    read_piece(&space, id);
    checkpoint(&space).unwrap();
    assert!(space.locate(id).is_err());
    assert_accounted(&space);
}

#[test]
fn a_handle_keeps_a_dead_piece_and_a_count_brings_it_back() {
    let space = new_store(simulated(1));
    let piece = write_piece(&space, 3, PieceKind::Values, Vec::new()).unwrap();
    let id = piece.id();
    space.count(&delta(&[(&piece, 1)])).unwrap();
    drop(piece);
    checkpoint(&space).unwrap();
    let handle = space.handle(id);
    space.count(&HashMap::from([(id, -1)])).unwrap();
    checkpoint(&space).unwrap();
    read_piece(&space, id);
    assert_accounted(&space);
    // A value that was read before its key went, and is written under another key after.
    space.count(&HashMap::from([(id, 1)])).unwrap();
    drop(handle);
    checkpoint(&space).unwrap();
    read_piece(&space, id);
    assert_eq!(problems(&space, &HashMap::from([(id, 1)])), Vec::<String>::new());
    space.count(&HashMap::from([(id, -1)])).unwrap();
    let handle = space.handle(id);
    checkpoint(&space).unwrap();
    read_piece(&space, id);
    drop(handle);
    assert!(space.locate(id).is_err());
    assert_accounted(&space);
}

#[test]
fn the_reclaim_list_survives() {
    let device = simulated(1);
    let space = new_store(device.clone());
    let part = write_piece(&space, 1, PieceKind::KeyValue, Vec::new()).unwrap();
    let node = write_piece(&space, 1, PieceKind::Node(3), vec![part.clone()]).unwrap();
    let (part_id, node_id) = (part.id(), node.id());
    space.count(&delta(&[(&part, 1), (&node, 1)])).unwrap();
    drop((part, node));
    checkpoint(&space).unwrap();
    assert_eq!(space.tables.references(node_id).unwrap(), Some(1));
    assert_eq!(space.count(&HashMap::from([(node_id, -1)])).unwrap(), vec![node_id]);
    let roots = space.write_tables(&VolumeTable::default(), &[node_id]).unwrap();
    space.commit_superblock(Superblock { roots, ..space.superblock() }).unwrap();
    drop(space);

    let OpenedSpace { space, reclaim, .. } =
        Space::open(GuardedDevice::new(device, false), &OPTIONS).unwrap();
    assert_eq!(reclaim, vec![node_id]);
    let references = HashMap::from([(part_id, 1)]);
    assert_eq!(problems_with(&space, &references, &reclaim), Vec::<String>::new());
    assert!(!problems(&space, &references).is_empty());
    read_piece(&space, node_id);
    space.count(&HashMap::from([(part_id, -1)])).unwrap();
    space.uncount_node(node_id).unwrap();
    checkpoint(&space).unwrap();
    assert!(space.locate(node_id).is_err() && space.locate(part_id).is_err());
    assert_accounted(&space);
    assert_eq!(problems(&space, &HashMap::new()), Vec::<String>::new());
    assert!(space.uncount_node(node_id).is_err(), "it is gone already");
    assert!(space.device.failure().is_some());
}

#[test]
fn recovery_adopts_what_the_log_names() {
    let device = simulated(1);
    let space = new_store(device.clone());
    let counted = write_piece(&space, 2, PieceKind::Values, Vec::new()).unwrap();
    space.count(&delta(&[(&counted, 1)])).unwrap();
    checkpoint(&space).unwrap();
    let logged = write_piece(&space, 2, PieceKind::Values, Vec::new()).unwrap();
    let places = [&counted, &logged].map(|piece| (piece.id(), space.locate(piece.id()).unwrap()));
    device.sync().unwrap();
    let crashed = device.crash();
    let OpenedSpace { space, .. } =
        Space::open(GuardedDevice::new(Arc::new(crashed), false), &OPTIONS).unwrap();
    let free = space.free_blocks();
    assert!(space.new_id() > logged.id(), "ids are not used again");
    let handles: Vec<_> = places
        .iter()
        .flat_map(|(id, at)| [space.adopt(*id, *at).unwrap(), space.adopt(*id, *at).unwrap()])
        .collect();
    assert_eq!(space.free_blocks(), free - 2);
    places.iter().for_each(|(id, _)| read_piece(&space, *id));
    assert_accounted(&space);
    for (id, at) in [(PieceId(77), places[0].1), (PieceId(78), places[1].1), (places[0].0, places[1].1)] {
        assert_eq!(space.adopt(id, at).unwrap_err().kind(), ErrorKind::Damaged, "it overlaps another");
    }
    let nonsense = Location { extent: Extent { start: u64::MAX, blocks: 9 }, ..places[0].1 };
    assert_eq!(space.adopt(PieceId(79), nonsense).unwrap_err().kind(), ErrorKind::Damaged);
    assert!(space.new_id() > logged.id());
    drop(handles);
    assert_eq!(space.free_blocks(), free);
    read_piece(&space, places[0].0);
    let far = PieceId(1 << 50);
    space.adopt(far, places[1].1).unwrap();
    assert!(space.new_id() > far);
}

#[test]
fn wrong_counts_latch_the_store() {
    for (count, change) in [(1, -2), (1, i64::from(u32::MAX)), (0, -1)] {
        let space = new_store(simulated(1));
        let piece = write_piece(&space, 1, PieceKind::KeyValue, Vec::new()).unwrap();
        space.count(&delta(&[(&piece, count)])).unwrap();
        assert_eq!(space.count(&delta(&[(&piece, change)])).unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(checkpoint(&space).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    let space = new_store(simulated(1));
    let mut pieces = Vec::new();
    let error = loop {
        match write_piece(&space, 1, PieceKind::KeyValue, Vec::new()) {
            Ok(piece) => pieces.push(piece),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let refused = space.reservations.reserve(1, Purpose::Growth, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    // The rest of the pool is enough to count them all, and to free them all.
    let all = |change: i64| pieces.iter().map(|piece| (piece.id(), change)).collect::<HashMap<_, _>>();
    space.count(&all(1)).unwrap();
    checkpoint(&space).unwrap();
    assert_accounted(&space);
    space.count(&all(-1)).unwrap();
    drop(pieces);
    checkpoint(&space).unwrap();
    assert_accounted(&space);
    assert!(space.free_blocks() * 10 >= (space.block_counts().total - space.block_counts().fixed) * 9);
    assert_eq!(problems(&space, &HashMap::new()), Vec::<String>::new());
}

#[test]
fn without_room_for_tables_nothing_is_lost() {
    let space = new_store(simulated(1));
    let piece = write_piece(&space, 1, PieceKind::KeyValue, Vec::new()).unwrap();
    let mut hog: Vec<Extent> = Vec::new();
    while let Ok(extent) = space.free_blocks.take_run(1, None, 0) {
        hog.push(extent);
    }
    // With each block more it gets a little further.
    space.count(&delta(&[(&piece, 1)])).unwrap();
    let roots = loop {
        match space.write_tables(&VolumeTable::default(), &[]) {
            Ok(roots) => break roots,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
        }
        space.give_back(hog.pop().unwrap());
    };
    space.commit_superblock(Superblock { roots, ..space.superblock() }).unwrap();
    hog.into_iter().for_each(|extent| space.give_back(extent));
    assert_accounted(&space);
    assert_eq!(problems(&space, &HashMap::from([(piece.id(), 1)])), Vec::<String>::new());
}

#[test]
fn reservations_add_up() {
    let space = new_store(simulated(1));
    let room = space.free_blocks() - space.reservations.pool();
    let mut a = space.reservations.reserve(room - 10, Purpose::Growth, 0).unwrap();
    let b = space.reservations.reserve(10, Purpose::Growth, 0).unwrap();
    assert!(space.reservations.reserve(1, Purpose::Growth, 0).is_err());
    assert!(space.reservations.reserve(u64::MAX, Purpose::Essential, 0).is_err());
    let pool = space.reservations.pool();
    let essential = space.reservations.reserve(pool - pool / 8 * 3, Purpose::Essential, 0).unwrap();
    assert!(space.reservations.reserve(1, Purpose::Essential, 0).is_err());
    let last = space.reservations.reserve(pool / 8 * 3 - pool / 16 * 5, Purpose::Last, 0).unwrap();
    assert!(space.reservations.reserve(1, Purpose::Last, 0).is_err());
    let clear = space.reservations.reserve(pool / 16 * 5 - pool / 6, Purpose::Clear, 0).unwrap();
    assert!(space.reservations.reserve(1, Purpose::Clear, 0).is_err());
    drop((essential, last, clear));
    a.absorb(b);
    assert_eq!(a.blocks(), room);
    drop(a);
    space.reservations.reserve(5, Purpose::Growth, 0).unwrap();
    assert_eq!(space.block_counts().reserved, 0);
}

/// Random histories: whatever happens, every block is accounted for, no living piece is
/// overwritten, and after each checkpoint the tables agree with the model.
#[test]
fn random_lives() {
    for seed in 0..25 {
        let mut random = Random::new(seed);
        let device = simulated(seed);
        let mut space = new_store(device.clone());
        let mut held: Vec<Arc<PieceHandle>> = Vec::new();
        let mut counts: BTreeMap<PieceId, i64> = BTreeMap::new();
        let mut pins: Vec<(Pin, Vec<PieceId>)> = Vec::new();
        for _ in 0..300 {
            match random.below(12) {
                0..5 => {
                    let kind = *random.choose(&[PieceKind::KeyValue, PieceKind::Values]);
                    let blocks = random.between(1..=12) as u32;
                    match write_piece(&space, blocks, kind, Vec::new()) {
                        Ok(piece) => held.push(piece),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NoSpace);
                            held.truncate(held.len() / 2);
                        }
                    }
                }
                5 if !held.is_empty() => drop(held.swap_remove(random.index(held.len()))),
                6 => {
                    let pin =
                        if random.one_in(2) { space.deferred.pin() } else { space.deferred.pin_version() };
                    pins.push((pin, counts.keys().copied().collect()));
                }
                7 if !pins.is_empty() => drop(pins.swap_remove(random.index(pins.len()))),
                8 if !counts.is_empty() => {
                    let ids: Vec<_> = counts.keys().copied().collect();
                    held.push(space.handle(*random.choose(&ids)));
                }
                9 | 10 => {
                    let mut deltas = HashMap::new();
                    for piece in &held {
                        if random.one_in(3) {
                            deltas.insert(piece.id(), random.below(3) as i64);
                        }
                    }
                    for (id, count) in &counts {
                        if random.one_in(3) {
                            deltas.insert(*id, -(random.between(1..=*count as u64) as i64));
                        }
                    }
                    space.count(&deltas).unwrap();
                    for (id, delta) in deltas {
                        *counts.entry(id).or_default() += delta;
                    }
                    counts.retain(|_, count| *count > 0);
                }
                11 => {
                    checkpoint(&space).unwrap();
                    space.note_checkpoint();
                    let references = counts.iter().map(|(id, count)| (*id, *count as u64)).collect();
                    assert_eq!(problems(&space, &references), Vec::<String>::new(), "seed {seed}");
                    if random.one_in(3) {
                        pins.clear();
                        held.clear();
                        space =
                            Space::open(GuardedDevice::new(device.clone(), false), &OPTIONS).unwrap().space;
                    }
                }
                _ => {}
            }
            assert_accounted(&space);
            held.iter().for_each(|piece| read_piece(&space, piece.id()));
            counts.keys().for_each(|id| read_piece(&space, *id));
            pins.iter().flat_map(|(_, ids)| ids).for_each(|id| read_piece(&space, *id));
        }
    }
}
