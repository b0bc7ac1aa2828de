use super::{Apply, ApplyOutcome};
use crate::error::Error;
use crate::testing::{Call, Ground, Hooked, Plain};
use crate::three_way::ConflictKind;
use std::cell::Cell;
use std::fs::{Permissions, create_dir, read_to_string, rename, set_permissions, write};
use std::os::unix::fs::{PermissionsExt, symlink};

/// A workspace with a new file, and a file of which it has changed the mode, and the original the
/// content. Outside of them is a directory with a file of the same name.
fn ground() -> Ground {
    let ground = Ground::new();
    write(ground.path("w/a"), "new").unwrap();
    let base = ground.workspace.base();
    for tree in [&ground.path("w"), &base, &ground.path("base")] {
        create_dir(tree.join("d")).unwrap();
        write(tree.join("d/f"), "old").unwrap();
    }
    set_permissions(ground.path("w/d/f"), Permissions::from_mode(0o755)).unwrap();
    write(ground.path("base/d/f"), "changed").unwrap();
    create_dir(ground.path("victim")).unwrap();
    write(ground.path("victim/f"), "a secret").unwrap();
    ground
}

/// Puts a link to the other directory in the place of one in the original.
fn swap(ground: &Ground) {
    rename(ground.path("base/d"), ground.path("base/away")).unwrap();
    symlink(ground.path("victim"), ground.path("base/d")).unwrap();
}

#[test]
fn a_link_in_the_place_of_a_directory_is_not_followed_while_files_are_staged() {
    let ground = ground();
    let clones = Cell::new(0);
    let before = |call: Call| {
        if let Call::Clone = call {
            clones.set(clones.get() + 1);
            // The workspace, and what is new: all was compared, and the other file comes next.
            if clones.get() == 2 {
                swap(&ground);
            }
        }
        Ok(())
    };
    let failed = Apply::default().run(&Hooked { before, limited: false }, &mut ground.workspace.clone());
    assert!(matches!(&failed, Err(Error::Meanwhile(path)) if path.ends_with("base/d/f")), "{failed:?}");
    assert_eq!(read_to_string(ground.path("victim/f")).unwrap(), "a secret");
    assert_eq!(read_to_string(ground.path("base/away/f")).unwrap(), "changed");
    assert!(!ground.path("base/a").exists());
}

#[test]
fn what_is_behind_a_link_is_not_compared() {
    let ground = ground();
    write(ground.path("w/d/f"), "changed here, too").unwrap();
    swap(&ground);
    let apply = Apply { check: true, merge: true, ..Apply::default() };
    let ApplyOutcome::Conflicts(found) = apply.run(&Plain, &mut ground.workspace.clone()).unwrap() else {
        panic!("no conflicts");
    };
    let kinds: Vec<_> =
        found.iter().map(|conflict| (conflict.path.to_str().unwrap(), conflict.kind)).collect();
    assert_eq!(kinds, [("d/f", ConflictKind::Deletion)]);
}
