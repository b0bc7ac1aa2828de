use super::Registry;
use crate::error::Error;
use crate::gc::{Collect, Reason};
use crate::listing::Listed;
use crate::processes::Processes;
use crate::testing::{Ground, Plain, copy_with_identifier};
use std::os::unix::fs::MetadataExt;

#[test]
fn a_path_leads_to_a_workspace_that_was_moved() {
    let ground = Ground::new();
    let far = ground.move_far();
    let found = Registry::locate(&ground.top, far.join("w").as_os_str()).unwrap();
    assert_eq!((found.place(), ground.record().place), (far, "far/away/w".into()));
}

#[test]
fn a_copy_whose_number_fits_is_not_the_workspace() {
    let ground = Ground::new();
    let copy = ground.path("copy");
    copy_with_identifier(&ground.path("w"), &copy, &ground.workspace.record.id);
    for name in [&copy, &copy.join("w")] {
        let found = Registry::locate(&ground.top, name.as_os_str());
        assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
        // Not even if it is looked for where the workspace is not known.
        let found = Registry::locate("/proc".as_ref(), name.as_os_str());
        assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
    }
    assert_eq!(ground.record().place.to_str(), Some("w"));
    let found = Registry::locate("/proc".as_ref(), ground.path("w/w").as_os_str()).unwrap();
    assert_eq!(found.place().metadata().unwrap().ino(), ground.path("w").metadata().unwrap().ino());
}

#[test]
fn a_damaged_record_hides_no_other_workspace() {
    let ground = Ground::new();
    let damaged = ground.workspace.home.dir().join("fedcba9876543210");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("record"), "{").unwrap();
    let mut registry = Registry::around(&ground.top).unwrap();
    assert_eq!(registry.workspaces().len(), 1);
    assert!(registry.unreadable()[0].why.contains("not a record"), "{:?}", registry.unreadable());
    let kept = registry.collect(&Plain, &Processes::default(), Collect::default()).unwrap();
    assert_eq!((kept.len(), kept[0].reason, kept[0].kept.is_some()), (1, Reason::Unknown, true));
}

#[test]
fn a_workspace_that_cannot_be_looked_at_is_listed_with_the_reason() {
    let ground = Ground::new();
    let whole = ground.workspace.clone();
    let mut without_base = whole.clone();
    without_base.record.id = "fedcba9876543210".into();
    let listed = Listed::all(&Plain, &[without_base, whole], &Processes::default()).unwrap();
    assert_eq!((listed[0].changed, listed[0].problem.is_some()), (None, true));
    assert_eq!((listed[1].changed, &listed[1].problem), (Some(0), &None));
}
