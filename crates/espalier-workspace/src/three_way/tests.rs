//! The rule against one that is written in another way: as lists of what each side did.

use super::{ConflictKind, Decision, Pick, Side, Triple, decide};
use crate::entry::Kind;

/// What a side did to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Edit {
    Remove,
    Make(Side),
    Content(u32),
    Attributes(u32),
}

/// The edits that lead from one state to another.
fn edits(from: Option<Side>, to: Option<Side>) -> Vec<Edit> {
    match (from, to) {
        (None, None) => vec![],
        (Some(_), None) => vec![Edit::Remove],
        (None, Some(to)) => vec![Edit::Make(to)],
        (Some(from), Some(to)) if from.kind != to.kind => vec![Edit::Make(to)],
        (Some(from), Some(to)) => {
            let content = (from.content != to.content).then_some(Edit::Content(to.content));
            let attributes = (from.attributes != to.attributes).then_some(Edit::Attributes(to.attributes));
            content.into_iter().chain(attributes).collect()
        }
    }
}

/// The state after edits.
fn apply(mut state: Option<Side>, edits: &[Edit]) -> Option<Side> {
    for edit in edits {
        state = match (edit, state) {
            (Edit::Remove, _) => None,
            (Edit::Make(side), _) => Some(*side),
            (Edit::Content(content), Some(side)) => Some(Side { content: *content, ..side }),
            (Edit::Attributes(attributes), Some(side)) => Some(Side { attributes: *attributes, ..side }),
            (_, None) => unreachable!("there is something to edit"),
        };
    }
    state
}

/// Merges two lists of edits of one state: the union, if no two contradict each other.
fn merge(ours: &[Edit], theirs: &[Edit]) -> Result<Vec<Edit>, ConflictKind> {
    let mut all = ours.to_vec();
    let mut worst = None;
    for edit in theirs {
        let mut clash = None;
        for other in ours {
            let this = match (edit, other) {
                (a, b) if a == b => continue,
                (Edit::Remove, _) | (_, Edit::Remove) => ConflictKind::Deletion,
                (Edit::Make(a), Edit::Make(b)) if a.kind != b.kind => ConflictKind::Type,
                (Edit::Make(a), Edit::Make(b)) if a.content != b.content => ConflictKind::Content,
                (Edit::Make(_), Edit::Make(_)) => ConflictKind::Mode,
                // A replaced file is another kind of thing than an edited one.
                (Edit::Make(_), _) | (_, Edit::Make(_)) => ConflictKind::Type,
                (Edit::Content(_), Edit::Content(_)) => ConflictKind::Content,
                (Edit::Attributes(_), Edit::Attributes(_)) => ConflictKind::Mode,
                _ => continue,
            };
            clash = clash.or(Some(this));
        }
        worst = worst.or(clash);
        if !ours.contains(edit) {
            all.push(edit.clone());
        }
    }
    worst.map_or(Ok(all), Err)
}

fn sides() -> Vec<Option<Side>> {
    let mut all = vec![None];
    for kind in [Kind::File, Kind::Directory, Kind::Link] {
        let contents = if kind == Kind::Directory { 0..1 } else { 0..3 };
        for content in contents {
            all.extend((0..3).map(|attributes| Some(Side { kind, content, attributes })));
        }
    }
    all
}

#[test]
fn the_rule_is_that_of_merged_edits() {
    for base in sides() {
        for workspace in sides() {
            for target in sides() {
                let triple = Triple { base, workspace, target };
                let expected = merge(&edits(base, target), &edits(base, workspace));
                let result = match decide(triple) {
                    Decision::Keep => Ok(target),
                    Decision::Take => Ok(workspace),
                    Decision::Conflict(kind) => Err(kind),
                    Decision::Mix { content, attributes } => {
                        assert_ne!(content, attributes, "{triple:?}");
                        let of = |pick| if pick == Pick::Workspace { workspace } else { target };
                        let (content, attributes) = (of(content).unwrap(), of(attributes).unwrap());
                        Ok(Some(Side { attributes: attributes.attributes, ..content }))
                    }
                };
                let expected = expected.map(|edits| apply(base, &edits));
                assert_eq!(result, expected, "{triple:?}");
            }
        }
    }
}

#[test]
fn sides_can_be_exchanged() {
    for base in sides() {
        for workspace in sides() {
            for target in sides() {
                let here = decide(Triple { base, workspace, target });
                let there = decide(Triple { base, workspace: target, target: workspace });
                let conflicts = |d| matches!(d, Decision::Conflict(_));
                assert_eq!(conflicts(here), conflicts(there), "{base:?} {workspace:?} {target:?}");
            }
        }
    }
}
