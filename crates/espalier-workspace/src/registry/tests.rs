use super::Registry;
use crate::error::Error;
use crate::testing::{Ground, copy_with_identifier};
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
