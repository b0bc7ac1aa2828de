//! Circles in a graph.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// The sets of at least two nodes that all reach each other.
pub(crate) fn circles<N: Ord + Copy + Debug>(arrows: &BTreeSet<(N, N)>) -> Vec<Vec<N>> {
    let mut search =
        Search { after: BTreeMap::new(), seen: BTreeMap::new(), stack: Vec::new(), circles: vec![] };
    for (from, to) in arrows {
        search.after.entry(*from).or_default().push(*to);
        search.after.entry(*to).or_default();
    }
    let nodes: Vec<N> = search.after.keys().copied().collect();
    for node in nodes {
        if !search.seen.contains_key(&node) {
            search.visit(node);
        }
    }
    search.circles
}

/// Tarjan's search for strongly connected components.
struct Search<N> {
    after: BTreeMap<N, Vec<N>>,
    /// The number of each node in the order of the search, and the lowest that it reaches.
    seen: BTreeMap<N, (usize, usize)>,
    stack: Vec<N>,
    circles: Vec<Vec<N>>,
}

impl<N: Ord + Copy> Search<N> {
    fn visit(&mut self, node: N) -> usize {
        let number = self.seen.len();
        let mut lowest = number;
        self.seen.insert(node, (number, number));
        self.stack.push(node);
        for next in self.after[&node].clone() {
            match self.seen.get(&next) {
                None => lowest = lowest.min(self.visit(next)),
                Some((number, _)) if self.stack.contains(&next) => lowest = lowest.min(*number),
                Some(_) => {}
            }
        }
        self.seen.insert(node, (number, lowest));
        if lowest == number {
            let at = self.stack.iter().position(|one| *one == node).unwrap_or(0);
            let mut circle = self.stack.split_off(at);
            circle.sort();
            if circle.len() > 1 {
                self.circles.push(circle);
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::circles;

    #[test]
    fn circles_are_found_and_chains_are_none() {
        assert!(circles(&[(1, 2), (2, 3), (1, 3)].into()).is_empty());
        assert_eq!(circles(&[(1, 2), (2, 1), (2, 3), (3, 4)].into()), [vec![1, 2]]);
        let found = circles(&[(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (5, 6)].into());
        assert_eq!(found, [vec![4, 5], vec![1, 2, 3]]);
    }
}
