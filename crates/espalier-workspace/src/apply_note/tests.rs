use super::{APPLIED, APPLYING, ApplyNote, FROZEN};
use crate::apply::{Apply, ApplyOutcome};
use crate::error::Error;
use crate::pinned::Pinned;
use crate::testing::{Call, Ground, Hooked, Plain};
use crate::trees::{Expected, Step};
use std::cell::Cell;
use std::fs::{
    Permissions, create_dir, create_dir_all, read_to_string, remove_file, rename, set_permissions, write,
};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A workspace with what an apply has left that was stopped right before its renames: one of what
/// the workspace has, `new`, is staged.
fn stopped(paths: &[PathBuf], step: &dyn Fn(&Path) -> Step) -> Ground {
    let ground = Ground::new();
    write(ground.path("w/new"), "new").unwrap();
    write(ground.path("w/more"), "more").unwrap();
    let scratch = ground.workspace.scratch().unwrap();
    Plain.copy(&ground.path("w"), &scratch.join(FROZEN));
    let staged = scratch.join("staged");
    create_dir(&staged).unwrap();
    let steps = [step(&staged)];
    let frozen = Pinned::open(&scratch.join(FROZEN)).unwrap();
    ApplyNote::write(&scratch, &frozen, (&steps, &staged), paths).unwrap();
    ground
}

/// What is staged enters.
fn enter(staged: &Path) -> Step {
    write(staged.join("0"), "new").unwrap();
    Step::Enter { place: b"new".into(), staged: b"0".into() }
}

/// The next command about the workspace.
#[track_caller]
fn next(ground: &Ground) {
    ground.workspace.clone().checkpoint(&Plain, "").unwrap();
    assert!(!ground.workspace.scratch_dir().exists());
}

/// The paths that differ from the base.
fn changed(ground: &Ground) -> Vec<String> {
    let differences = ground.workspace.differences(&Plain).unwrap();
    differences.iter().map(|one| one.path.display().to_string()).collect()
}

fn staged(ground: &Ground) -> PathBuf {
    ground.workspace.scratch_dir().join("staged")
}

#[test]
fn renames_that_were_not_made_are_not_followed() {
    let ground = stopped(&[], &enter);
    next(&ground);
    assert_eq!(changed(&ground), ["more", "new"]);
    assert_eq!(ground.record().applied, None);
}

#[test]
fn renames_that_were_made_are_followed_by_the_next_command() {
    let ground = stopped(&[], &enter);
    rename(staged(&ground).join("0"), ground.path("base/new")).unwrap();
    // Changes from then on are new ones.
    write(ground.path("w/later"), "").unwrap();
    next(&ground);
    assert_eq!(changed(&ground), ["later"]);
    assert!(ground.record().applied.is_some());
}

#[test]
fn only_the_paths_that_were_applied_are_in_the_base() {
    let ground = stopped(&["new".into()], &enter);
    rename(staged(&ground).join("0"), ground.path("base/new")).unwrap();
    // It stops again when the base has it.
    let renamed = |call: Call| match call {
        Call::RenameAll => Err(Error::Name("stop".into())),
        _ => Ok(()),
    };
    for _ in 0..2 {
        let stopped = ground.workspace.clone().checkpoint(&Hooked { before: renamed, limited: false }, "");
        assert!(stopped.is_err());
        assert_eq!(changed(&ground), ["more", "new"]);
    }
    next(&ground);
    assert_eq!(changed(&ground), ["more"]);
    assert!(ground.record().applied.is_some());
}

#[test]
fn a_command_that_changes_nothing_follows_them_too() {
    let ground = stopped(&[], &enter);
    rename(staged(&ground).join("0"), ground.path("base/new")).unwrap();
    ground.workspace.clone().tidy(&Plain).unwrap();
    assert_eq!(changed(&ground), [""; 0]);
}

#[test]
fn the_record_has_the_time_if_the_base_follows_alone() {
    let ground = stopped(&[], &enter);
    let scratch = ground.workspace.scratch_dir();
    let base = ground.workspace.base();
    rename(scratch.join(APPLYING), scratch.join(APPLIED)).unwrap();
    rename(&base, scratch.join("old")).unwrap();
    rename(scratch.join(FROZEN), &base).unwrap();
    rename(scratch.join("old"), scratch.join(FROZEN)).unwrap();
    let number = base.metadata().unwrap().ino();
    next(&ground);
    assert_eq!(base.metadata().unwrap().ino(), number);
    assert!(ground.record().applied.is_some());
    assert_eq!(changed(&ground), [""; 0]);
}

#[test]
fn each_kind_of_step_is_a_proof() {
    let expected = Expected { number: 0, changed: 0 };
    let leave = |_: &Path| Step::Leave { place: b"base".into(), staged: b"0".into(), expected };
    let ground = stopped(&[], &leave);
    rename(ground.path("base/base"), staged(&ground).join("0")).unwrap();
    next(&ground);
    assert_eq!(changed(&ground), [""; 0]);

    let exchange = |staged: &Path| {
        write(staged.join("0"), "").unwrap();
        Step::Exchange { place: b"base".into(), staged: b"0".into(), expected }
    };
    let ground = stopped(&[], &exchange);
    write(staged(&ground).join("1"), "").unwrap();
    rename(staged(&ground).join("1"), staged(&ground).join("0")).unwrap();
    next(&ground);
    assert_eq!(changed(&ground), [""; 0]);

    let attributes = |staged: &Path| {
        create_dir_all(staged.join("0")).unwrap();
        Step::Attributes { place: b"d".into(), staged: b"0".into(), expected }
    };
    for is_made in [false, true] {
        let ground = stopped(&[], &attributes);
        if is_made {
            set_permissions(staged(&ground).join("0"), Permissions::from_mode(0o711)).unwrap();
        }
        next(&ground);
        assert_eq!(changed(&ground).is_empty(), is_made);
    }
}

#[test]
fn a_note_of_what_was_copied_says_nothing() {
    let ground = stopped(&[], &enter);
    let scratch = ground.workspace.scratch_dir();
    // All numbers are new.
    Plain.copy(&scratch.join(FROZEN), &scratch.join("copy"));
    std::fs::remove_dir_all(scratch.join(FROZEN)).unwrap();
    rename(scratch.join("copy"), scratch.join(FROZEN)).unwrap();
    remove_file(scratch.join("staged/0")).unwrap();
    next(&ground);
    assert_eq!(changed(&ground), ["more", "new"]);
}

#[test]
fn a_note_that_is_cut_off_says_nothing() {
    let ground = stopped(&[], &enter);
    let note = ground.workspace.scratch_dir().join(APPLYING);
    let text = read_to_string(&note).unwrap();
    write(&note, &text[..text.len() / 2]).unwrap();
    remove_file(staged(&ground).join("0")).unwrap();
    next(&ground);
    assert_eq!(changed(&ground), ["more", "new"]);
}

#[test]
fn an_apply_that_fails_leaves_no_note() {
    let ground = Ground::new();
    write(ground.path("w/new"), "new").unwrap();
    let was_noted = Cell::new(false);
    let before = |call: Call| {
        if let Call::RenameAll = call {
            was_noted.set(ground.workspace.scratch_dir().join(APPLYING).exists());
            return Err(Error::Name("stop".into()));
        }
        // Before anything that is staged goes.
        if let Call::Remove = call {
            assert!(!ground.workspace.scratch_dir().join(APPLYING).exists());
        }
        Ok(())
    };
    let failed = Apply::default().run(&Hooked { before, limited: true }, &mut ground.workspace.clone());
    assert!(failed.is_err() && was_noted.get());
    assert_eq!(ground.record().applied, None);
    let outcome = Apply::default().run(&Plain, &mut ground.workspace.clone()).unwrap();
    assert!(matches!(outcome, ApplyOutcome::Applied(applied) if applied.len() == 1));
    assert_eq!(changed(&ground), [""; 0]);
}
