use crate::error::Error;
use crate::processes::Processes;
use crate::testing::{Call, Ground, Hooked, Plain, with_late_process};
use std::fs::{create_dir, remove_file, rename, write};
use std::os::unix::fs::symlink;

/// A link comes to its place, by the owner of the directory above, say.
fn swap(ground: &Ground) {
    rename(ground.path("w"), ground.path("away")).unwrap();
    symlink("private", ground.path("w")).unwrap();
}

#[test]
fn a_link_that_takes_its_place_is_not_followed() {
    let ground = Ground::new();
    create_dir(ground.path("private")).unwrap();
    write(ground.path("private/secret"), "").unwrap();
    let is_swapped = || ground.path("away").exists();
    let at_clone = |call: Call| {
        if matches!(call, Call::Clone) && !is_swapped() {
            swap(&ground);
        }
        Ok(())
    };
    let mut workspace = ground.workspace.clone();
    workspace.checkpoint(&Hooked { before: at_clone, limited: false }, "").unwrap();
    let kept = workspace.checkpoint_dir(1);
    assert!(is_swapped() && kept.join("w").exists() && !kept.join("secret").exists());
    remove_file(ground.path("w")).unwrap();
    rename(ground.path("away"), ground.path("w")).unwrap();
    // What a crash left is removed before it is opened.
    create_dir(workspace.checkpoint_dir(2)).unwrap();
    let at_removal = |call: Call| {
        if matches!(call, Call::Remove) {
            swap(&ground);
        }
        Ok(())
    };
    workspace.checkpoint(&Hooked { before: at_removal, limited: false }, "").unwrap_err();
    assert!(is_swapped() && !workspace.checkpoint_dir(2).exists());
    assert_eq!(ground.record().checkpoints.len(), 1);
}

#[test]
fn a_process_that_came_meanwhile_keeps_an_undo_from_it() {
    let ground = Ground::new();
    ground.workspace.clone().checkpoint(&Plain, "").unwrap();
    let refused = with_late_process(&ground, "w", |trees, workspace| {
        workspace.undo(trees, None, &Processes::default(), false)
    });
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    assert_eq!(ground.record().checkpoints.len(), 1);
}
