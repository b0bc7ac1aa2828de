use crate::apply::Apply;
use crate::discard::Discard;
use crate::error::Error;
use crate::gc::Collect;
use crate::processes::Processes;
use crate::record::Top;
use crate::registry::Registry;
use crate::testing::{Ground, Plain, write_record};
use crate::workspace::{Workspace, attribute, set_identifier};
use std::fs::{Permissions, create_dir, rename, set_permissions, write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

/// Another user.
const OTHER: u32 = 4321;

fn number(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// A workspace in a directory that all may write, with a checkpoint, changes, and its time over. It
/// is not where it was any more.
fn shared() -> Ground {
    let mut ground = Ground::new();
    set_permissions(&ground.top, Permissions::from_mode(0o777)).unwrap();
    ground.workspace.checkpoint(&Plain, "").unwrap();
    ground.workspace.record.expires = Some(1);
    write_record(&ground.workspace);
    ground.move_far();
    ground
}

/// What `owner` puts at `w`: a directory that says of itself that it is the workspace.
fn forge(ground: &Ground, owner: u32) {
    create_dir(ground.path("w")).unwrap();
    write(ground.path("w/precious"), "").unwrap();
    set_identifier(&ground.path("w"), &ground.workspace.record.id).unwrap();
    chown(ground.path("w"), Some(owner), None).unwrap();
}

/// No command touches what is at `w`, neither by the name nor by a path below, nor if it was found
/// before it took the place; nor by the path, unless it has the owner of the workspace.
#[track_caller]
fn assert_refused(ground: &Ground) {
    let is_owners = ground.path("w").metadata().unwrap().uid() != OTHER;
    let before = (number(&ground.path("w")), attribute(&ground.path("w")), ground.record());
    let unused = &Processes::default();
    let refused = |done: Result<(), Error>| match done {
        Err(Error::Gone(_) | Error::NotFound { .. }) => {}
        done => panic!("{done:?}"),
    };
    type Command<'a> = (&'static str, &'a dyn Fn(&mut Workspace) -> Result<(), Error>);
    let commands: [Command<'_>; 5] = [
        ("discard", &|workspace| Discard { force: true }.run(&Plain, workspace, unused)),
        ("apply", &|workspace| Apply { check: true, ..Apply::default() }.run(&Plain, workspace).map(drop)),
        ("undo", &|workspace| workspace.undo(&Plain, None, unused, true).map(drop)),
        ("promote", &|workspace| workspace.promote(&Plain, unused, true).map(drop)),
        ("checkpoint", &|workspace| workspace.checkpoint(&Plain, "").map(drop)),
    ];
    for (what, command) in commands {
        println!("{what}");
        refused(command(&mut ground.workspace.clone()));
        let (place, below) = (ground.path("w"), ground.path("w/precious"));
        let names = ["w".as_ref(), below.as_os_str(), place.as_os_str()];
        for name in &names[..names.len() - usize::from(is_owners)] {
            let found = Registry::locate(&ground.top, name);
            refused(found.and_then(|mut found| command(&mut found)));
        }
    }
    let mut registry = Registry::around(&ground.top).unwrap();
    assert!(registry.workspaces().is_empty());
    let collected = registry.collect(&Plain, unused, Collect::default()).unwrap();
    assert_eq!(collected.len(), usize::from(is_owners), "{collected:?}");
    assert!(collected.iter().all(|one| one.kept.as_ref().is_some_and(|why| why.contains("a copy of it"))));
    let mut after = (number(&ground.path("w")), attribute(&ground.path("w")), ground.record());
    after.2.missing = None;
    assert_eq!(after, before);
    assert!(ground.path("w/precious").exists() && ground.path("far/away/w/w").exists());
}

#[test]
fn a_directory_with_a_forged_identifier_is_refused_by_every_command() {
    let ground = shared();
    forge(&ground, 0);
    assert_refused(&ground);
    chown(ground.path("w"), Some(OTHER), None).unwrap();
    assert_refused(&ground);
    // The workspace is found beside it, whichever is seen first.
    rename(ground.path("far/away/w"), ground.path("moved")).unwrap();
    let found = Registry::around(&ground.top).unwrap();
    assert_eq!(found.workspaces()[0].place(), ground.path("moved"));
}

#[test]
fn a_directory_with_a_copied_identifier_is_refused_by_every_command() {
    let ground = shared();
    Plain.copy(&ground.path("far/away/w"), &ground.path("w"));
    write(ground.path("w/precious"), "").unwrap();
    assert_eq!(attribute(&ground.path("w")), attribute(&ground.path("far/away/w")));
    assert_refused(&ground);
}

#[test]
fn what_takes_the_place_of_a_workspace_while_a_command_runs_is_put_back() {
    let mut ground = shared();
    forge(&ground, OTHER);
    let lock = ground.workspace.clone().lock_data().unwrap();
    let refused = ground.workspace.remove(&Plain, lock);
    assert!(matches!(refused, Err(Error::Gone(_))), "{refused:?}");
    assert!(ground.path("w/precious").exists() && ground.workspace.dir().exists());
    // Nor a link to the workspace itself.
    std::fs::remove_dir_all(ground.path("w")).unwrap();
    symlink("far/away/w", ground.path("w")).unwrap();
    let lock = ground.workspace.clone().lock_data().unwrap();
    ground.workspace.remove(&Plain, lock).unwrap_err();
    assert!(ground.path("w").is_symlink() && ground.path("far/away/w/w").exists());
    ground.workspace.open_top().unwrap_err();
}

#[test]
fn a_record_of_an_earlier_version_is_read_and_gets_the_number() {
    let mut ground = Ground::new();
    let top = ground.workspace.record.top.take();
    ground.workspace.record.data_number = None;
    write_record(&ground.workspace);
    let file = ground.workspace.dir().join("record");
    let text = std::fs::read_to_string(&file).unwrap();
    let is_new =
        |line: &&str| ["\"top\"", "\"undoing\"", "\"data_number\""].iter().any(|name| line.contains(name));
    let old: Vec<&str> = text.lines().filter(|line| !is_new(line)).collect();
    assert!(old.len() + 3 == text.lines().count());
    write(&file, old.join("\n")).unwrap();
    Registry::locate(&ground.top, "w".as_ref()).unwrap().checkpoint(&Plain, "").unwrap();
    assert_eq!((ground.record().top, ground.record().data_number.is_some()), (top, true));
}

#[test]
fn the_number_follows_undo_and_promotion() {
    let ground = Ground::new();
    let unused = Processes::default();
    let recorded = || ground.record().top.unwrap().number;
    let find = || Registry::locate(&ground.top, "w".as_ref()).unwrap();
    find().checkpoint(&Plain, "").unwrap();
    find().undo(&Plain, None, &unused, false).unwrap();
    assert_eq!((recorded(), ground.record().undoing), (number(&ground.path("w")), None));
    let original = number(&ground.path("base"));
    find().promote(&Plain, &unused, false).unwrap();
    assert_eq!((recorded(), number(&ground.path("w"))), (original, original));
    // What was the workspace is none, whatever it says.
    set_identifier(&ground.path("base"), &ground.workspace.record.id).unwrap();
    let found = Registry::locate(&ground.top, ground.path("base").as_os_str());
    assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
}

#[test]
fn an_undo_that_a_crash_interrupted_leaves_one_of_two_directories_that_are_known() {
    for came_far in [false, true] {
        let mut ground = Ground::new();
        let tree = ground.path("tree");
        Plain.copy(&ground.path("w"), &tree);
        set_identifier(&tree, &ground.workspace.record.id).unwrap();
        ground.workspace.record.undoing = Some(number(&tree));
        write_record(&ground.workspace);
        if came_far {
            rename(ground.path("w"), ground.path("far")).unwrap();
            rename(&tree, ground.path("w")).unwrap();
        }
        Registry::locate(&ground.top, "w".as_ref()).unwrap().checkpoint(&Plain, "").unwrap();
        let record = ground.record();
        assert_eq!(record.top, Some(Top::of(&ground.path("w")).unwrap()));
        assert_eq!(record.undoing, None);
    }
}

#[test]
fn a_copy_of_everything_is_the_workspace_unless_it_belongs_to_another_user() {
    for owner in [OTHER, 0] {
        let ground = shared();
        Plain.copy(&ground.path("far/away/w"), &ground.path("w"));
        // The numbers of the home are new, too.
        let (dir, old) = (ground.workspace.dir(), ground.path("old"));
        rename(&dir, &old).unwrap();
        Plain.copy(&old, &dir);
        chown(ground.path("w"), Some(owner), None).unwrap();
        let found = Registry::around(&ground.top).unwrap();
        assert_eq!(found.workspaces().len(), usize::from(owner == 0));
        assert_eq!(ground.record().top == Top::of(&ground.path("w")).ok(), owner == 0);
    }
}

#[test]
fn a_workspace_that_root_gave_to_another_user_stays_one() {
    let ground = Ground::new();
    chown(ground.path("w"), Some(OTHER), None).unwrap();
    Registry::locate(&ground.top, "w".as_ref()).unwrap().checkpoint(&Plain, "").unwrap();
    assert_eq!(ground.record().top.map(|top| top.owner), Some(OTHER));
}

/// A workspace in a directory with a mode and an owner, removed and restored from a backup.
fn restored_in_place(mode: u32, owner: u32) -> Ground {
    let mut ground = Ground::new();
    ground.workspace.checkpoint(&Plain, "").unwrap();
    chown(&ground.top, Some(owner), None).unwrap();
    set_permissions(&ground.top, Permissions::from_mode(mode)).unwrap();
    Plain.copy(&ground.path("w"), &ground.path("backup"));
    // Other file systems than Espalier use numbers again.
    rename(ground.path("w"), ground.path("old")).unwrap();
    Plain.copy(&ground.path("backup"), &ground.path("w"));
    std::fs::remove_dir_all(ground.path("old")).unwrap();
    ground
}

fn is_found(ground: &Ground) -> bool {
    !Registry::around(&ground.top).unwrap().workspaces().is_empty()
}

#[test]
fn a_workspace_restored_where_no_other_user_can_move_it_is_found() {
    for mode in [0o755, 0o1777] {
        assert!(is_found(&restored_in_place(mode, 0)));
    }
    // Its own owner may write there, too.
    let mut ground = restored_in_place(0o755, OTHER);
    assert!(!is_found(&ground));
    chown(ground.path("w"), Some(OTHER), None).unwrap();
    ground.workspace.record.top.as_mut().unwrap().owner = OTHER;
    write_record(&ground.workspace);
    assert!(is_found(&ground));
}

#[test]
fn a_workspace_restored_where_others_may_write_is_kept_and_found_by_its_path() {
    for (mode, owner) in [(0o775, 0), (0o755, OTHER)] {
        let mut ground = restored_in_place(mode, owner);
        ground.workspace.record.missing = Some(1);
        write_record(&ground.workspace);
        let mut registry = Registry::around(&ground.top).unwrap();
        assert!(registry.workspaces().is_empty());
        let kept = registry.collect(&Plain, &Processes::default(), Collect::default()).unwrap();
        assert!(kept[0].kept.is_some() && ground.workspace.checkpoint_dir(1).exists(), "{kept:?}");
        // Another copy is none, nor what lies below, nor what has another owner.
        let find = |name: &str| Registry::locate(&ground.top, ground.path(name).as_os_str());
        for name in ["backup", "w/w"] {
            find(name).unwrap_err();
        }
        chown(ground.path("w"), Some(OTHER), None).unwrap();
        find("w").unwrap_err();
        chown(ground.path("w"), Some(0), None).unwrap();
        find("w").unwrap().undo(&Plain, None, &Processes::default(), false).unwrap();
        assert!(is_found(&ground) && ground.record().missing.is_none());
    }
}

#[test]
fn a_copy_at_the_place_is_none_if_the_workspace_lies_near() {
    let ground = restored_in_place(0o775, 0);
    rename(ground.path("w"), ground.path("copy")).unwrap();
    set_identifier(&ground.path("backup"), &ground.workspace.record.id).unwrap();
    let mut workspace = ground.workspace.clone();
    workspace.record.top = Some(Top::of(&ground.path("backup")).unwrap());
    write_record(&workspace);
    rename(ground.path("copy"), ground.path("w")).unwrap();
    for at in [&*ground.top, Path::new("/proc")] {
        let found = Registry::locate(at, ground.path("w").as_os_str());
        assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
    }
    assert!(is_found(&ground));
}

#[test]
fn what_is_missing_without_a_copy_goes_after_a_week_and_a_copy_when_that_is_said() {
    let mut ground = restored_in_place(0o775, 0);
    ground.workspace.record.missing = Some(1);
    write_record(&ground.workspace);
    let mut registry = Registry::around(&ground.top).unwrap();
    let collect = Collect { missing: true, ..Collect::default() };
    let gone = registry.collect(&Plain, &Processes::default(), collect).unwrap();
    assert_eq!((gone.len(), &gone[0].kept), (1, &None));
    assert!(!ground.workspace.dir().exists() && ground.path("w/w").exists());
}
