use crate::discard::Discard;
use crate::error::Error;
use crate::gc::Collect;
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Ground, Plain, sh, with_late_process, write_record};
use crate::trees::Trees;
use crate::workspace::{Workspace, attribute, identifier};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{create_dir, rename};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

fn number(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

/// A crash has come after the intention was recorded, and, if that `came_far`, after the exchange.
fn interrupted(came_far: bool) -> Ground {
    let mut ground = Ground::new();
    let (w, base) = (ground.path("w"), ground.path("base"));
    ground.workspace.record.promoting = true;
    ground.workspace.record.promoting_numbers = Some((number(&w), number(&base)));
    write_record(&ground.workspace);
    if came_far {
        renameat_with(CWD, &w, CWD, &base, RenameFlags::EXCHANGE).unwrap();
    }
    ground
}

fn found(ground: &Ground) -> Result<Workspace, Error> {
    Registry::locate(&ground.top, "w".as_ref())
}

/// All attributes, and the record.
fn state(ground: &Ground) -> String {
    let of = |name: &str| (number(&ground.path(name)), attribute(&ground.path(name)));
    let names = ground.top.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<_> = names.filter(|name| !name.starts_with('.')).map(|n| (of(&n), n)).collect();
    all.sort();
    format!("{all:?} {:?}", ground.record())
}

#[test]
fn a_promotion_is_its_own_inverse() {
    let ground = Ground::new();
    let before = state(&ground);
    for (at_place, at_original) in [("base", "w"), ("w", "base")] {
        let mut workspace = found(&ground).unwrap();
        workspace.promote(&Plain, &Processes::default(), false).unwrap();
        assert!(ground.path("w").join(at_place).exists() && ground.path("base").join(at_original).exists());
        assert_eq!(identifier(&ground.path("base")), None);
    }
    assert_eq!(state(&ground), before);
}

#[test]
fn a_process_that_came_meanwhile_keeps_a_promotion_from_it() {
    for dir in ["w", "base"] {
        let ground = Ground::new();
        let refused = with_late_process(&ground, dir, |trees, workspace| {
            workspace.promote(trees, &Processes::default(), false)
        });
        assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
        assert!(ground.path("w/w").exists() && !ground.record().promoting);
    }
}

/// Also if a crash came in between.
#[test]
fn a_former_original_has_neither_a_time_to_live_nor_a_process() {
    for (expires, process) in [(Some(1), None), (None, Some((i32::MAX, 1)))] {
        for crashes in [false, true] {
            let mut ground = if crashes { interrupted(true) } else { Ground::new() };
            (ground.workspace.record.expires, ground.workspace.record.process) = (expires, process);
            write_record(&ground.workspace);
            if !crashes {
                let promoted = ground.workspace.promote(&Plain, &Processes::default(), false).unwrap();
                assert!(promoted.kept_from_gc);
            }
            let mut registry = Registry::around(&ground.top).unwrap();
            let gone = registry.collect(&Plain, &Processes::default(), Collect::default()).unwrap();
            assert!(gone.is_empty() && ground.path("w/base").exists(), "{gone:?}");
            assert_eq!((ground.record().expires, ground.record().process), (None, None));
        }
    }
    // Nothing is said of what had neither.
    let promoted = Ground::new().workspace.promote(&Plain, &Processes::default(), false).unwrap();
    assert!(!promoted.kept_from_gc);
}

#[test]
fn a_promotion_that_was_interrupted_is_completed_or_forgotten() {
    for (came_far, at_place) in [(false, "w"), (true, "base")] {
        let ground = interrupted(came_far);
        found(&ground).unwrap();
        let record = ground.record();
        assert_eq!((record.promoting, record.promoting_numbers), (false, None));
        assert_eq!(record.original_number, Some(number(&ground.path("base"))));
        assert!(ground.path("w").join(at_place).exists());
        assert_eq!(identifier(&ground.path("w")).as_ref(), Some(&ground.workspace.record.id));
        assert_eq!(attribute(&ground.path("base")), None);
    }
}

/// Nothing is changed by any command, and the commands say why.
#[track_caller]
fn assert_left_alone(ground: &Ground, paths: &[&str]) {
    let before = state(ground);
    let is_interrupted = |error: &Error| matches!(error, Error::Interrupted { .. });
    let error = found(ground).unwrap_err();
    assert!(is_interrupted(&error), "{error}");
    for path in paths {
        let error = Registry::locate(&ground.top, ground.path(path).as_os_str()).unwrap_err();
        assert!(is_interrupted(&error), "{path}: {error}");
    }
    let error = ground.workspace.clone().checkpoint(&Plain, "").unwrap_err();
    assert!(is_interrupted(&error), "{error}");
    let mut registry = Registry::around(&ground.top).unwrap();
    assert!(registry.workspaces().is_empty());
    let kept = registry.collect(&Plain, &Processes::default(), Collect::default()).unwrap();
    assert!(kept[0].kept.as_ref().is_some_and(|why| why.contains("promotion")), "{kept:?}");
    assert_eq!(state(ground), before);
}

#[test]
fn what_was_moved_after_the_exchange_is_left_alone() {
    let ground = interrupted(true);
    rename(ground.path("base"), ground.path("trunk")).unwrap();
    assert_left_alone(&ground, &["trunk"]);
    // Also if something else is there.
    create_dir(ground.path("base")).unwrap();
    assert_left_alone(&ground, &["trunk"]);
    // Put back, the promotion is completed.
    std::fs::remove_dir(ground.path("base")).unwrap();
    rename(ground.path("trunk"), ground.path("base")).unwrap();
    assert_eq!(found(&ground).unwrap().place(), ground.path("w"));
    assert_eq!(attribute(&ground.path("base")), None);
}

#[test]
fn what_took_the_place_of_a_workspace_after_the_exchange_is_left_alone() {
    let ground = interrupted(true);
    rename(ground.path("w"), ground.path("old")).unwrap();
    assert_left_alone(&ground, &["base"]);
    create_dir(ground.path("w")).unwrap();
    assert_left_alone(&ground, &["base"]);
    std::fs::remove_dir(ground.path("w")).unwrap();
    symlink("old", ground.path("w")).unwrap();
    assert_left_alone(&ground, &["base"]);
    // Moved back by hand, it is the workspace that it was.
    std::fs::remove_file(ground.path("w")).unwrap();
    rename(ground.path("base"), ground.path("w")).unwrap();
    rename(ground.path("old"), ground.path("base")).unwrap();
    assert!(found(&ground).unwrap().place().join("w").exists());
    assert!(!ground.record().promoting);
}

#[test]
fn what_cannot_be_completed_is_forgotten_when_that_is_said() {
    let ground = interrupted(true);
    rename(ground.path("base"), ground.path("trunk")).unwrap();
    let mut registry = Registry::around(&ground.top).unwrap();
    let collect = Collect { missing: true, ..Collect::default() };
    let gone = registry.collect(&Plain, &Processes::default(), collect).unwrap();
    assert_eq!((gone.len(), &gone[0].kept), (1, &None));
    assert!(!ground.workspace.dir().exists() && ground.path("trunk/w").exists());
}

#[test]
fn a_link_to_the_original_is_not_exchanged() {
    let ground = Ground::new();
    rename(ground.path("base"), ground.path("trunk")).unwrap();
    symlink("trunk", ground.path("base")).unwrap();
    let refused = found(&ground).unwrap().promote(&Plain, &Processes::default(), false);
    assert!(matches!(refused, Err(Error::Unsuitable(_))), "{refused:?}");
    assert!(ground.path("base").is_symlink() && !ground.record().promoting);
}

const REPOSITORY: &str = "git init -q; echo 1 >f; git add .; git commit -qm first";

/// Branch and first line of the log of a work tree, and the repository that it belongs to.
fn told(ground: &Ground, tree: &str) -> String {
    sh(
        &ground.path(tree),
        "git fsck --strict 2>&1; git status --short; git log --oneline --format=%D/%s -1; \
         cd $(git rev-parse --git-common-dir); pwd",
    )
}

/// With its branch, and a commit that only its repository has, each stays a worktree of that.
#[test]
fn linked_worktrees_stay_with_their_repository() {
    let ground = Ground::new();
    sh(&ground.path("base"), REPOSITORY);
    for copy in [ground.path("w"), ground.workspace.base()] {
        Plain.clone_tree(&ground.path("base"), &copy).unwrap();
        sh(&copy, "rm -f w");
    }
    let add = "git worktree add -q -b $1 $2; cd $2; git commit -q --allow-empty -m $1";
    for (tree, branch, place) in
        [("base", "outer", "../outer"), ("base", "inner", "trees/inner"), ("w", "own", "../own")]
    {
        sh(&ground.path(tree), &format!("set {branch} {place}; {add}"));
    }
    let of = |repository: &str, branch: &str| {
        format!("HEAD -> {branch}/{branch}\n{}\n", ground.path(repository).join(".git").display())
    };
    for (original, place) in [("w", "base"), ("base", "w")] {
        found(&ground).unwrap().promote(&Plain, &Processes::default(), false).unwrap();
        // What was the original is at the place of the workspace after the first time.
        let (first, second) = if original == "w" { ("w", "base") } else { ("base", "w") };
        assert_eq!(told(&ground, "outer"), of(first, "outer"), "{place}");
        assert_eq!(told(&ground, &format!("{first}/trees/inner")), of(first, "inner"), "{place}");
        assert_eq!(told(&ground, "own"), of(second, "own"), "{place}");
        let pruned = sh(&ground.path(first), "git worktree prune -v; git worktree list | wc -l");
        assert_eq!(pruned, "3\n");
    }
    // They would be cut off.
    sh(&ground.path("base"), "git fetch -q ../w own:own");
    let refused = Discard::default().run(&Plain, &mut found(&ground).unwrap(), &Processes::default());
    let refused = refused.unwrap_err();
    let Error::Worktrees { worktrees, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*worktrees, [ground.path("own")]);
    sh(&ground.path("own"), "git worktree remove .");
    Discard::default().run(&Plain, &mut found(&ground).unwrap(), &Processes::default()).unwrap();
}

#[test]
fn a_linked_worktree_is_registered_where_it_is() {
    let ground = Ground::new();
    sh(
        &ground.top,
        &format!(
            "git init -q repository; cd repository; {REPOSITORY}; for t in base w; do \
             git worktree add -q --detach ../linked-$t; mv ../linked-$t/.git ../linked-$t/f ../$t; \
             (cd ../$t; git worktree repair; git commit -q --allow-empty -m $t); done"
        ),
    );
    for (at_base, at_w) in [("w", "base"), ("base", "w")] {
        found(&ground).unwrap().promote(&Plain, &Processes::default(), false).unwrap();
        for (tree, subject) in [("base", at_base), ("w", at_w)] {
            let registered =
                sh(&ground.path(tree), "git log --format=%s -1; cat $(git rev-parse --git-dir)/gitdir");
            assert_eq!(registered, format!("{subject}\n{}\n", ground.path(tree).join(".git").display()));
        }
    }
}
