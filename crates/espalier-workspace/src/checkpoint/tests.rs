use crate::testing::{Call, Ground, Hooked};
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
