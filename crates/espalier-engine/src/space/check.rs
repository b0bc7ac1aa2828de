//! Verification: counts equal references, and every block is accounted for exactly once.

use super::allocator::Allocator;
use super::page::{PageKey, Pointer};
use super::piece_table::PieceEntry;
use super::superblock::read_superblocks;
use super::table::{Table, TableId};
use super::{Space, space_map};
use crate::model::ids::Delta;
use crate::{Extent, PieceId, PieceKind};
use std::collections::{HashMap, HashSet};

/// More problems of one sort than this are only counted.
const MAX_LISTED_PROBLEMS: usize = 100;

impl Space {
    /// Compares tables with each other and with what the tree refers to: `referenced` holds, for
    /// each piece, how many references a walk over all volumes found; `reclaim` the nodes with
    /// references that are still to be subtracted (they, too, must be in `referenced` with what
    /// they refer to). To be called when no checkpoint is under way. `progress` is told how many
    /// entries were looked at so far. Returns the problems, in words.
    pub(crate) fn check(
        &self,
        referenced: &HashMap<PieceId, Delta>,
        reclaim: &[PieceId],
        progress: &mut dyn FnMut(u64),
    ) -> Vec<String> {
        let _change = self.tables.begin_change();
        let mut check = Check {
            space: self,
            accounted: Allocator::new(self.geometry().blocks, Vec::new()),
            problems: Problems::default(),
            entries: 0,
            dead: 0,
        };
        match read_superblocks(&self.device) {
            Err(error) => check.problems.add(error.to_string()),
            Ok(found) => found.damaged.iter().for_each(|error| check.problems.add(only_a_copy(error))),
        }
        let mut unseen = referenced.clone();
        let reclaim: HashSet<PieceId> = reclaim.iter().copied().collect();
        check.entries(&mut unseen, &reclaim, progress);
        for (id, count) in unseen {
            let count = count.count;
            let message =
                format!("piece {id} has {count} references and is not in the node translation table");
            check.problems.add(message);
        }
        let tables = &self.tables;
        check.pages(&tables.volumes, TableId::Volumes);
        check.pages(&tables.reclaim, TableId::Reclaim);
        check.pages(&tables.map, TableId::SpaceMap);
        check.compare_map();
        let said = self.superblock().dead_values;
        if said != check.dead {
            let found = check.dead;
            check.problems.add(format!(
                "the superblock says that {said} bytes are dead in value parts, and {found} are"
            ));
        }
        check.problems.finish()
    }
}

impl Space {
    /// What cannot be read of superblocks and tables, and can be read in another place. Reads all
    /// tables.
    pub(crate) fn damaged_copies(&self) -> Vec<String> {
        let _change = self.tables.begin_change();
        let superblocks = read_superblocks(&self.device).map(|found| found.damaged).unwrap_or_default();
        let mut problems: Vec<String> = superblocks.iter().map(only_a_copy).collect();
        for table in self.tables.all() {
            table.walk(&mut |key, place, _| {
                problems.extend(table.damaged_copy(key, place).map(only_a_copy));
            });
        }
        problems
    }
}

struct Check<'a> {
    space: &'a Space,
    /// Blocks that tables and entries were found to occupy.
    accounted: Allocator,
    problems: Problems,
    entries: u64,
    /// Bytes of value parts that nothing refers to.
    dead: u64,
}

impl Check<'_> {
    fn account(&mut self, extent: Extent, owner: &dyn Fn() -> String) {
        if !self.space.geometry().holds(extent) {
            self.problems.add(format!("{} lies at {extent}, outside the data region", owner()));
        } else if !self.accounted.take(extent) {
            self.problems.add(format!("{} shares {extent} with something else", owner()));
        }
    }

    /// Accounts for the places of a page; if one of two is damaged, that is a problem.
    fn page(&mut self, table: &Table, id: TableId, key: PageKey, place: Pointer) {
        for block in place.blocks() {
            let owner = || format!("{} page {} of level {}", id.name(), key.number, key.level);
            self.account(Extent { start: block, blocks: 1 }, &owner);
        }
        if let Some(problem) = table.damaged_copy(key, place) {
            self.problems.add(only_a_copy(problem));
        }
    }

    /// Accounts for the pages of a table; damaged ones are problems.
    fn pages(&mut self, table: &Table, id: TableId) {
        table.walk(&mut |key, place, page| {
            self.page(table, id, key, place);
            if let Err(error) = page {
                self.problems.add(error.to_string());
            }
        });
    }

    fn entries(
        &mut self,
        unseen: &mut HashMap<PieceId, Delta>,
        reclaim: &HashSet<PieceId>,
        progress: &mut dyn FnMut(u64),
    ) {
        let ntt = &self.space.tables.ntt;
        let table = ntt.pages();
        table.walk(&mut |key, place, page| {
            self.page(table, TableId::Ntt, key, place);
            let page = match page {
                Ok(page) => page,
                Err(error) => return self.problems.add(error.to_string()),
            };
            if key.level > 0 {
                return;
            }
            ntt.for_each_of(key.number, page.bytes(), &mut |entry| {
                self.entries += 1;
                match entry {
                    Ok((id, entry)) => {
                        self.entry(id, &entry, unseen.remove(&id).unwrap_or_default(), reclaim);
                    }
                    Err(error) => self.problems.add(error.to_string()),
                }
            });
            progress(self.entries);
        });
    }

    fn entry(&mut self, id: PieceId, entry: &PieceEntry, found: Delta, reclaim: &HashSet<PieceId>) {
        self.dead += entry.dead();
        let references = found.count;
        if i64::try_from(entry.live) != Ok(found.bytes) {
            self.problems
                .add(format!("piece {id} is said to have {} live bytes and has {}", entry.live, found.bytes));
        }
        match self.space.extent_lists.occupied(id, &entry.location) {
            Ok(extents) => {
                for extent in extents {
                    self.account(extent, &|| format!("piece {id}"));
                }
            }
            Err(error) => self.problems.add(error.to_string()),
        }
        if i64::from(entry.count) != references {
            self.problems.add(format!(
                "piece {id} is counted {} times and referred to {references} times",
                entry.count
            ));
        } else if references == 0
            && !(matches!(entry.location.kind, PieceKind::Node(_)) && reclaim.contains(&id))
        {
            self.problems.add(format!("piece {id} has no references and is not on the reclaim list"));
        }
    }

    fn compare_map(&mut self) {
        let words = match space_map::load(&self.space.tables.map, &self.space.geometry()) {
            Ok(words) => words,
            Err(error) => return self.problems.add(error.to_string()),
        };
        let used = self.space.free_blocks.lock();
        let start = self.space.geometry().data_start();
        for (number, committed) in words.into_iter().enumerate() {
            let first = number as u64 * 64;
            let data = if first + 64 <= start { 0 } else { u64::MAX << start.saturating_sub(first) };
            let inside =
                self.accounted.word(number) & data & bits_below(self.space.geometry().data_end(), first);
            self.bits(first, committed & !inside, "accounted for but occupied by nothing");
            self.bits(first, inside & !committed, "occupied but not accounted for");
            self.bits(first, committed & !used.word(number), "accounted for and could be allocated");
        }
    }

    fn bits(&mut self, first: u64, mut bits: u64, what: &str) {
        while bits != 0 {
            self.problems.add(format!("block {} is {what}", first + u64::from(bits.trailing_zeros())));
            bits &= bits - 1;
        }
    }
}

/// Says that nothing is lost.
fn only_a_copy(problem: impl std::fmt::Display) -> String {
    format!("{problem}; nothing is lost, for there is another: fsck --repair writes it anew")
}

/// The bits of the word that begins with block `first` which stand for blocks of the device.
fn bits_below(blocks: u64, first: u64) -> u64 {
    match blocks.saturating_sub(first) {
        0 => 0,
        count if count < 64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

/// A bounded list.
#[derive(Default)]
struct Problems {
    list: Vec<String>,
    more: usize,
}

impl Problems {
    fn add(&mut self, problem: String) {
        if self.list.len() < MAX_LISTED_PROBLEMS {
            self.list.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.list.push(format!("and {} more problems of space", self.more));
        }
        self.list
    }
}
