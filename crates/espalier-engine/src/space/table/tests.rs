//! Tables against an ordered map, with reopening, damage, and readers beside the writer.

use super::super::byte_table;
use super::super::superblock::Geometry;
use super::*;
use espalier_storage::{MemoryDevice, Random};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;

const DEVICE: u64 = 32 << 20;

/// A table with a naive allocator: blocks freed by a write are free after the next.
struct Bench {
    device: Arc<GuardedDevice>,
    geometry: Geometry,
    table: Table,
    next: u64,
    free: Vec<u64>,
    freed: Vec<u64>,
    live: usize,
}

impl Bench {
    fn new(budget: usize) -> Self {
        Self::shaped(budget, true)
    }

    fn shaped(budget: usize, copies: bool) -> Self {
        let device = GuardedDevice::new(Arc::new(MemoryDevice::new(DEVICE)), false);
        let geometry = Geometry { copies, ..Geometry::new(DEVICE, None).unwrap() };
        let table = Table::new(TableId::Ntt, TableRoot::default(), device.clone(), geometry, budget);
        let next = geometry.data_start();
        Self { device, geometry, table, next, free: Vec::new(), freed: Vec::new(), live: 0 }
    }

    fn write(&mut self) -> TableRoot {
        self.free.append(&mut self.freed);
        self.freed = self.table.prune();
        for key in self.table.unassigned() {
            let block = self.take();
            // Now and then there is no room for a copy.
            let copy = if self.geometry.copies && key.number % 7 != 5 { self.take() } else { 0 };
            self.freed.extend(self.table.assign(key, block, copy));
        }
        self.live -= self.freed.len();
        let root = self.table.write().unwrap();
        self.table.count_placed();
        assert_eq!(self.table.placed(), Some(self.places().len() as u64));
        root
    }

    fn take(&mut self) -> u64 {
        self.live += 1;
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn reopen(&mut self, root: TableRoot, budget: usize) {
        self.table = Table::new(TableId::Ntt, root, self.device.clone(), self.geometry, budget);
    }

    /// Places of all pages, by walking.
    fn places(&self) -> Vec<(PageKey, Pointer)> {
        let mut places = Vec::new();
        self.table.walk(&mut |key, place, page| {
            page.unwrap();
            places.push((key, place));
        });
        places
    }

    /// How many blocks the pages take.
    fn taken(&self) -> usize {
        self.places().into_iter().map(|(_, place)| place.blocks().count()).sum()
    }
}

fn number(random: &mut Random) -> u64 {
    match random.below(6) {
        0 | 1 => random.below(3),
        2 => random.below(300),
        3 => random.below(70_000),
        4 => (1 << 40) + random.below(4),
        _ => u64::MAX - random.below(2),
    }
}

#[test]
fn agrees_with_an_ordered_map() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let mut bench = Bench::shaped(0, seed % 2 == 0);
        let mut model: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
        for _ in 0..400 {
            match random.below(10) {
                0 => {
                    let root = bench.write();
                    if random.one_in(2) {
                        bench.reopen(root, 0);
                    }
                    assert_eq!(bench.taken(), bench.live, "seed {seed}: pages leaked or lost");
                }
                1..4 => {
                    let key = number(&mut random);
                    bench.table.update(key, |page| page.fill(0)).unwrap();
                    model.remove(&key);
                }
                4..7 => {
                    let key = number(&mut random);
                    let value = [random.next_u64() | 1, key];
                    let write = |page: &mut [u8]| {
                        page[..8].copy_from_slice(&value[0].to_le_bytes());
                        page[4088..].copy_from_slice(&value[1].to_le_bytes());
                    };
                    bench.table.update(key, write).unwrap();
                    model.insert(key, value);
                }
                _ => {
                    let key = number(&mut random);
                    let page = bench.table.read(key).unwrap();
                    let words =
                        |page: &Page| [0, 4088].map(|at| super::super::page::read_u64(page.bytes(), at));
                    let found = page.map(|page| words(&page)).filter(|words| *words != [0, 0]);
                    assert_eq!(found, model.get(&key).copied(), "seed {seed}: page {key}");
                }
            }
        }
        let root = bench.write();
        bench.reopen(root, 0);
        let leaves: Vec<u64> =
            bench.places().into_iter().filter(|(key, _)| key.level == 0).map(|(key, _)| key.number).collect();
        assert_eq!(leaves, model.keys().copied().collect::<Vec<_>>(), "seed {seed}");
        assert!(
            bench.table.cached_bytes() <= 2 * usize::from(MAX_TABLE_HEIGHT) * BLOCK,
            "the cache is bounded"
        );
    }
}

#[test]
fn an_emptied_table_has_no_pages() {
    let mut bench = Bench::new(1 << 20);
    for number in [0, 5, 1000, 1 << 50] {
        bench.table.update(number, |page| page[0] = 1).unwrap();
    }
    bench.write();
    for number in [0, 5, 1000, 1 << 50] {
        bench.table.update(number, |page| page[0] = 0).unwrap();
    }
    assert_eq!(bench.write().block, 0);
    assert_eq!(bench.live, 0);
}

/// Damages block `block`, which holds the page `key`.
fn damage(bench: &Bench, places: &HashMap<PageKey, Pointer>, key: PageKey, block: u64, random: &mut Random) {
    let mut page = Page::zeroed();
    bench.device.read_at(block * BLOCK as u64, page.bytes_mut()).unwrap();
    match random.below(3) {
        0 => page.bytes_mut()[random.index(BLOCK)] ^= 1 << random.below(8),
        1 => random.fill(page.bytes_mut()),
        _ => {
            // A page of the same table in the wrong place.
            let other = places.iter().find(|(k, _)| **k != key).map(|(_, place)| place.block).unwrap();
            bench.device.read_at(other * BLOCK as u64, page.bytes_mut()).unwrap();
        }
    }
    bench.device.write_at(block * BLOCK as u64, &[page.bytes()]).unwrap();
}

#[test]
fn damage_of_a_page_is_an_error_and_of_one_copy_is_told() {
    for copies in [false, true] {
        let mut bench = Bench::shaped(1 << 20, copies);
        for number in 0..600u64 {
            let change = |page: &mut [u8]| page[..8].copy_from_slice(&(number + 1).to_le_bytes());
            bench.table.update(number, change).unwrap();
        }
        let root = bench.write();
        let places: HashMap<PageKey, Pointer> = bench.places().into_iter().collect();
        let mut random = Random::new(1);
        for (key, place) in &places {
            let mut good = Page::zeroed();
            bench.device.read_at(place.block * BLOCK as u64, good.bytes_mut()).unwrap();
            let leaf = key.number << (if copies { 7 } else { 8 } * u32::from(key.level));
            let mut blocks: Vec<u64> = place.blocks().collect();
            if random.one_in(2) {
                blocks.reverse();
            }
            for (damaged, block) in blocks.iter().enumerate() {
                damage(&bench, &places, *key, *block, &mut random);
                bench.reopen(root, 1 << 20);
                let found = bench.table.read(leaf);
                if damaged + 1 < blocks.len() {
                    assert!(found.is_ok_and(|page| page.is_some()), "there is another copy of {key:?}");
                    assert!(bench.table.damaged_copy(*key, *place).is_some());
                } else {
                    let error = found.err().unwrap_or_else(|| panic!("damage of {key:?} was not seen"));
                    assert_eq!(error.kind(), crate::ErrorKind::Damaged);
                    assert!(bench.table.damaged_copy(*key, *place).is_none(), "that is more than a copy");
                }
            }
            for block in blocks {
                bench.device.write_at(block * BLOCK as u64, &[good.bytes()]).unwrap();
            }
            assert!(bench.table.damaged_copy(*key, *place).is_none());
        }
    }
}

#[test]
fn pointers_outside_the_device_are_errors() {
    let bench = Bench::new(1 << 20);
    for block in [1, u64::MAX, u64::MAX / 2, DEVICE / BLOCK as u64] {
        for height in 0..=MAX_TABLE_HEIGHT {
            let root = TableRoot { block, copy: block, checksum: 5, height };
            let table = Table::new(TableId::Ntt, root, bench.device.clone(), bench.geometry, 0);
            assert_eq!(table.read(0).unwrap_err().kind(), crate::ErrorKind::Damaged);
            assert!(table.update(0, |_| ()).is_err());
        }
    }
}

#[test]
fn a_table_of_bytes_keeps_any_length() {
    let mut random = Random::new(3);
    let mut bench = Bench::new(1 << 20);
    for len in [0, 1, 4080, 4081, 100_000, 9000, 70_000, 0] {
        let mut bytes = vec![0; len];
        random.fill(&mut bytes[len / 2..]);
        byte_table::store(&bench.table, &bytes).unwrap();
        let root = bench.write();
        assert_eq!(bench.taken(), bench.live);
        bench.reopen(root, 1 << 20);
        assert_eq!(byte_table::load(&bench.table).unwrap(), bytes);
        byte_table::store(&bench.table, &bytes).unwrap();
        assert_eq!(bench.table.dirty_bytes(), 0, "the same again changes nothing");
    }
    assert!(byte_table::store(&bench.table, &vec![0; byte_table::MAX_STRING_BYTES + 1]).is_err());
}

#[test]
fn pages_that_lie_together_are_read_together() {
    let mut bytes = vec![0; 100 * BLOCK];
    Random::new(5).fill(&mut bytes);
    let mut bench = Bench::new(1 << 20);
    byte_table::store(&bench.table, &bytes).unwrap();
    let root = bench.write();
    let reads = |bench: &Bench| {
        let before = bench.device.stats().reads;
        assert!(byte_table::load(&bench.table).unwrap() == bytes);
        bench.device.stats().reads - before
    };
    bench.reopen(root, 1 << 20);
    assert!(reads(&bench) < 12, "few reads for 101 pages");
    assert_eq!(reads(&bench), 0);
    // One that is damaged is read from its copy, and the others as before.
    let places = bench.places();
    let damaged = places.iter().find(|(key, place)| key.level == 0 && key.number > 50 && place.copy != 0);
    let at = damaged.unwrap().1.block * BLOCK as u64;
    bench.device.write_at(at, &[Page::zeroed().bytes()]).unwrap();
    bench.reopen(root, 1 << 20);
    assert!(reads(&bench) < 14, "few reads for 101 pages");
    // With hardly any memory each is read by itself.
    bench.reopen(root, 0);
    assert!(reads(&bench) > 90);
}

#[test]
fn pages_next_to_the_root_are_read_before_others_and_in_few_reads() {
    let mut bench = Bench::new(2 << 20);
    let numbers: Vec<u64> = (0..100).chain((1 << 30)..(1 << 30) + 50).collect();
    for number in &numbers {
        bench.table.update(*number, |page| page.fill(*number as u8 + 1)).unwrap();
    }
    let root = bench.write();
    let reads = |bench: &Bench, what: &dyn Fn()| {
        let before = bench.device.stats().reads;
        what();
        bench.device.stats().reads - before
    };
    let all = |bench: &Bench| {
        for number in &numbers {
            let page = bench.table.read(*number).unwrap().unwrap();
            assert!(page.bytes().iter().all(|byte| *byte == *number as u8 + 1), "page {number}");
        }
    };
    bench.reopen(root, 2 << 20);
    assert!(reads(&bench, &|| bench.table.prefetch_first(2 << 20)) < 20, "few reads for 150 pages");
    assert_eq!(reads(&bench, &|| all(&bench)), 0);
    assert_eq!(reads(&bench, &|| bench.table.prefetch_first(2 << 20)), 0);
    // As many as are wanted, from above, and never more than there is room for.
    for (most, budget, left) in [(20, 2 << 20, 100..150), (2 << 20, 0, 100..1000), (0, 2 << 20, 100..1000)] {
        bench.reopen(root, budget);
        bench.table.prefetch_first(most);
        assert!(left.contains(&reads(&bench, &|| all(&bench))), "{most} of {budget}");
    }
    // A reader that needs a damaged page meets the error.
    let places = bench.places();
    for (key, place) in places.iter().filter(|(key, _)| key.level == 0 && key.number % 10 == 3) {
        assert_ne!(place.block, 0, "{key:?}");
        for block in place.blocks() {
            bench.device.write_at(block * BLOCK as u64, &[Page::zeroed().bytes()]).unwrap();
        }
    }
    bench.reopen(root, 2 << 20);
    bench.table.prefetch_first(2 << 20);
    for number in &numbers {
        assert_eq!(bench.table.read(*number).is_err(), number % 10 == 3, "page {number}");
    }
    // An empty table has nothing to read.
    bench.reopen(TableRoot::default(), 2 << 20);
    bench.table.prefetch_first(2 << 20);
}

/// Readers with a tiny cache must see each page's old or new content while a writer moves pages
/// about and their old blocks are written over at once.
#[test]
fn readers_beside_the_writer() {
    let mut bench = Bench::new(0);
    for number in 0..1000 {
        bench.table.update(number, |page| page.fill(1)).unwrap();
    }
    bench.write();
    let done = AtomicBool::new(false);
    let table = &bench.table;
    let device = &bench.device;
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let done = &done;
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while !done.load(Ordering::Relaxed) {
                    let page = table.read(random.below(1000)).unwrap().expect("every page is there");
                    assert!(page.bytes().iter().all(|byte| *byte == page.bytes()[0]));
                }
            });
        }
        let mut random = Random::new(9);
        let mut next = bench.next;
        let mut free: Vec<u64> = Vec::new();
        for round in 0..60 {
            for _ in 0..20 {
                table.update(random.below(1000), |page| page.fill(round + 1)).unwrap();
            }
            let mut freed = table.prune();
            for key in table.unassigned() {
                let block = free.pop().unwrap_or_else(|| {
                    next += 1;
                    next - 1
                });
                freed.extend(table.assign(key, block, 0));
            }
            table.write().unwrap();
            for block in &freed {
                device.write_at(block * BLOCK as u64, &[Page::zeroed().bytes()]).unwrap();
            }
            free.append(&mut freed);
        }
        done.store(true, Ordering::Relaxed);
    });
}
