use super::{Plan, Prefer, Sides};
use crate::pinned::Pinned;
use crate::testing::Plain;
use std::fs::{create_dir_all, write};
use std::sync::Arc;

/// The paths in conflict when the workspace has removed a repository, of which the target has
/// changed `path` since.
fn conflicts(path: Option<&str>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let [base, workspace, target] = ["base", "workspace", "target"].map(|name| dir.path().join(name));
    for tree in [&base, &workspace, &target] {
        create_dir_all(tree).unwrap();
    }
    for tree in [&base, &target] {
        create_dir_all(tree.join("lib/.git/refs")).unwrap();
    }
    if let Some(path) = path {
        write(target.join(path), "a commit").unwrap();
    }
    let [base, workspace, target] =
        [base, workspace, target].map(|dir| Arc::new(Pinned::open(&dir).unwrap()));
    let sides = Sides { base, workspace, target };
    let plan = Plan::make(&Plain, &sides, &|_| true, Prefer::Neither).unwrap();
    plan.conflicts.iter().map(|conflict| conflict.path.display().to_string()).collect()
}

#[test]
fn a_repository_with_new_commits_is_not_removed() {
    assert_eq!(conflicts(None), [""; 0]);
    assert_eq!(conflicts(Some("lib/.git/refs/new")), ["lib/.git/refs/new"]);
    // The target's own repository, which stays.
    assert_eq!(conflicts(Some("lib/new")), ["lib/new"]);
}
