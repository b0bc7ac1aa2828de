use crate::error::Error;
use crate::gc::Collect;
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Ground, Plain, write_record};
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
