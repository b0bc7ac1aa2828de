use crate::apply::{Apply, ApplyOutcome};
use crate::testing::{Call, Ground, Hooked, Plain, write_record};
use std::fs::{Permissions, create_dir, create_dir_all, read_dir, rename, set_permissions, write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where an apply stages in the original.
const STAGING: &str = "base/.espalier-0123456789abcdef";

/// A workspace with a new file, and a directory of the caller's that nothing is to come to.
fn ground() -> Ground {
    let ground = Ground::new();
    write(ground.path("w/new"), "new").unwrap();
    set_permissions(ground.path("w/new"), Permissions::from_mode(0o666)).unwrap();
    create_dir_all(ground.path("victim/staged")).unwrap();
    write(ground.path("victim/staged/0"), "precious").unwrap();
    set_permissions(ground.path("victim/staged/0"), Permissions::from_mode(0o600)).unwrap();
    ground
}

/// Applies, after `swap` as soon as `is_time`.
fn apply(ground: &Ground, is_time: &dyn Fn(Call) -> bool, swap: &dyn Fn()) {
    let before = |call: Call| {
        if !ground.path("swapped").exists() && is_time(call) {
            swap();
            write(ground.path("swapped"), "").unwrap();
        }
        Ok(())
    };
    let outcome = Apply::default().run(&Hooked { before, limited: true }, &mut ground.workspace.clone());
    assert!(matches!(outcome, Ok(ApplyOutcome::Applied(_))), "{outcome:?}");
    assert!(ground.path("swapped").exists());
    assert_victim_untouched(ground);
}

#[track_caller]
fn assert_victim_untouched(ground: &Ground) {
    let names =
        |dir: &Path| -> Vec<PathBuf> { read_dir(dir).unwrap().map(|one| one.unwrap().path()).collect() };
    let victim = ground.path("victim");
    assert_eq!(names(&victim), [victim.join("staged")]);
    assert_eq!(names(&victim.join("staged")), [victim.join("staged/0")]);
    let file = victim.join("staged/0").metadata().unwrap();
    assert_eq!((file.mode() & 0o777, file.size()), (0o600, 8));
}

/// Something is staged, and nothing has a place yet.
fn is_staging(ground: &Ground) -> bool {
    let found = ground.path(STAGING).symlink_metadata();
    if let Ok(found) = &found {
        assert_eq!(found.mode() & 0o777, 0o700);
    }
    found.is_ok()
}

#[test]
fn a_link_in_the_place_of_the_staging_directory_leads_nowhere() {
    for is_late in [false, true] {
        let ground = ground();
        let is_time = |call: Call| is_staging(&ground) && is_late == matches!(call, Call::RenameAll);
        apply(&ground, &is_time, &|| {
            rename(ground.path(STAGING), ground.path("base/away")).unwrap();
            symlink(ground.path("victim"), ground.path(STAGING)).unwrap();
        });
        assert_eq!(std::fs::read(ground.path("base/new")).unwrap(), b"new");
        assert!(ground.path(STAGING).is_symlink());
    }
}

#[test]
fn another_directory_in_the_place_of_the_staging_directory_stays() {
    let ground = ground();
    create_dir(ground.path("base/precious")).unwrap();
    write(ground.path("base/precious/file"), "").unwrap();
    apply(&ground, &|_| is_staging(&ground), &|| {
        rename(ground.path(STAGING), ground.path("base/away")).unwrap();
        rename(ground.path("base/precious"), ground.path(STAGING)).unwrap();
    });
    assert!(ground.path(STAGING).join("file").exists());
    // Nor does the next command after a crash remove it.
    let mut workspace = ground.workspace.clone();
    workspace.record.staging = Some(STAGING.into());
    workspace.record.staging_number = Some(ground.path("base/away").metadata().unwrap().ino());
    write_record(&workspace);
    workspace.checkpoint(&Plain, "").unwrap();
    assert!(ground.path(STAGING).join("file").exists());
    assert_eq!(ground.record().staging, None);
}

#[test]
fn a_link_in_the_place_of_the_target_leads_nowhere() {
    let ground = ground();
    apply(&ground, &|call| matches!(call, Call::RenameAll), &|| {
        rename(ground.path("base"), ground.path("away")).unwrap();
        symlink(ground.path("victim"), ground.path("base")).unwrap();
    });
    assert_eq!(std::fs::read(ground.path("away/new")).unwrap(), b"new");
}

#[test]
fn what_a_crash_has_left_in_the_target_goes() {
    let ground = ground();
    create_dir_all(ground.path(STAGING).join("staged/d")).unwrap();
    write(ground.path(STAGING).join("steps"), "").unwrap();
    let mut workspace = ground.workspace.clone();
    workspace.record.staging = Some(STAGING.into());
    workspace.record.staging_number = Some(ground.path(STAGING).metadata().unwrap().ino());
    write_record(&workspace);
    workspace.checkpoint(&Plain, "").unwrap();
    assert!(!ground.path(STAGING).exists());
    assert_eq!((ground.record().staging, ground.record().staging_number), (None, None));
}

#[test]
fn what_has_the_name_of_the_staging_directory_stops_no_apply_and_stays() {
    let ground = ground();
    create_dir(ground.path(STAGING)).unwrap();
    write(ground.path(STAGING).join("file"), "").unwrap();
    let second = format!("{STAGING}-2");
    let is_staged = |call: Call| {
        let staged = ground.path(&second).join("staged").symlink_metadata();
        // What may be kept of it is no other user's to read.
        matches!(call, Call::RenameAll) && staged.is_ok_and(|found| found.mode() & 0o777 == 0o700)
    };
    apply(&ground, &is_staged, &|| {});
    assert_eq!(std::fs::read(ground.path("base/new")).unwrap(), b"new");
    assert!(ground.path(STAGING).join("file").exists() && !ground.path(&second).exists());
}
