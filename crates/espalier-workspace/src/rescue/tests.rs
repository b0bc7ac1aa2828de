use crate::apply::Apply;
use crate::discard::Discard;
use crate::error::Error;
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Call, Ground, Hooked, Plain, write_record};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::{create_dir, create_dir_all, read_to_string, write};
use std::path::{Path, PathBuf};

/// A workspace that has removed a directory of its original.
fn ground() -> Ground {
    let ground = Ground::new();
    for tree in [ground.path("base"), ground.workspace.base()] {
        create_dir(tree.join("d")).unwrap();
        write(tree.join("d/f"), "old").unwrap();
        write(tree.join("g"), "g").unwrap();
    }
    ground
}

/// Applies; what is removed there is changed in the last moment, and taking back fails. Gives where
/// it is kept.
fn apply(ground: &Ground, limited: bool) -> PathBuf {
    let renames = Cell::new(0);
    let before = |call: Call| {
        if let Call::RenameAll = call {
            renames.set(renames.get() + 1);
            match renames.get() {
                1 => write(ground.path("base/d/f"), "the only copy").unwrap(),
                _ => return Err(Error::io(&ground.path("base"), Errno::IO)),
            }
        }
        Ok(())
    };
    let trees = Hooked { before, limited };
    let failed = Apply::default().run(&trees, &mut ground.workspace.clone()).unwrap_err();
    assert_eq!(renames.get(), 2);
    let text = failed.to_string();
    let Error::NotPutBack { kept, .. } = failed else { panic!("{text}") };
    assert!(text.contains(kept.to_str().unwrap()), "{text}");
    for word in ["base/d/f", "changed there meanwhile", "Input/output error"] {
        assert!(text.contains(word) && !text.contains("nothing was applied"), "{text}");
    }
    kept
}

#[test]
fn what_cannot_be_taken_back_is_kept_and_said_where() {
    for limited in [false, true] {
        let ground = ground();
        let mut all = Vec::new();
        for _ in 0..2 {
            let kept = apply(&ground, limited);
            let places = read_to_string(kept.join("places")).unwrap();
            let line = places.lines().find(|line| line.ends_with("\td")).unwrap();
            all.push(kept.join(line.split_once('\t').unwrap().0).join("f"));
            // As before the apply.
            create_dir(ground.path("base/d")).unwrap();
            write(ground.path("base/d/f"), "old").unwrap();
            write(ground.path("base/g"), "g").unwrap();
        }
        // Later commands leave it alone.
        let find = || Registry::locate(&ground.top, "w".as_ref()).unwrap();
        find().checkpoint(&Plain, "").unwrap();
        Discard { force: true }.run(&Plain, &mut find(), &Processes::default()).unwrap();
        let mut registry = Registry::around(&ground.top).unwrap();
        let collected = registry.collect(&Plain, &Processes::default(), crate::gc::Collect::default());
        assert_eq!(collected.unwrap().len(), 0);
        for file in all {
            assert_eq!(read_to_string(&file).unwrap(), "the only copy", "{}", file.display());
        }
    }
}

#[test]
fn what_was_changed_in_the_last_moment_is_taken_back() {
    let ground = ground();
    let renames = Cell::new(0);
    let before = |call: Call| {
        if let Call::RenameAll = call {
            renames.set(renames.get() + 1);
            if renames.get() == 1 {
                write(ground.path("base/d/f"), "changed").unwrap();
            }
        }
        Ok(())
    };
    let failed = Apply::default().run(&Hooked { before, limited: false }, &mut ground.workspace.clone());
    assert!(matches!(failed, Err(Error::Meanwhile(_))), "{failed:?}");
    assert_eq!(read_to_string(ground.path("base/d/f")).unwrap(), "changed");
    assert!(ground.path("base/g").exists() && !ground.path("base/w").exists());
    assert_eq!(ground.workspace.home.dir().read_dir().unwrap().count(), 2);
}

/// The names in a directory of what is kept.
fn kept(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.trim_start_matches(".espalier-").starts_with("kept-"));
    names
}

#[test]
fn what_a_crash_leaves_unseen_is_kept_if_it_was_changed() {
    for (text, count) in [("the only copy", 1), ("old", 0)] {
        let ground = ground();
        // What lies in the scratch directory after the renames, with the note.
        let scratch = ground.workspace.scratch().unwrap();
        create_dir_all(scratch.join("staged/0")).unwrap();
        write(scratch.join("staged/0/f"), text).unwrap();
        let time = ground.workspace.base().join("d/f").metadata().unwrap().modified().unwrap();
        std::fs::File::options()
            .append(true)
            .open(scratch.join("staged/0/f"))
            .unwrap()
            .set_modified(time)
            .unwrap();
        super::Unseen::note(&scratch, &[("d".into(), "0".into())]).unwrap();
        ground.workspace.clone().checkpoint(&Plain, "").unwrap();
        let home = ground.workspace.home.dir();
        let found = kept(home);
        assert_eq!(found.len(), count, "{text}");
        for name in found {
            assert_eq!(read_to_string(home.join(&name).join("0/f")).unwrap(), text);
            assert_eq!(read_to_string(home.join(&name).join("places")).unwrap(), "0\td\n");
        }
        assert!(!scratch.exists());
    }
}

#[test]
fn what_a_crash_leaves_unseen_in_a_target_is_kept_there() {
    let mut ground = ground();
    let scratch = ground.workspace.scratch().unwrap();
    let staging = ground.path("base/.espalier-0123456789abcdef");
    create_dir_all(staging.join("staged/0")).unwrap();
    write(staging.join("staged/0/f"), "the only copy").unwrap();
    super::Unseen::note(&scratch, &[("d".into(), "0".into())]).unwrap();
    ground.workspace.record.staging = Some("base/.espalier-0123456789abcdef".into());
    ground.workspace.record.staging_number = Some(crate::record::Top::of(&staging).unwrap().number);
    write_record(&ground.workspace);
    ground.workspace.clone().checkpoint(&Plain, "").unwrap();
    let found = kept(&ground.path("base"));
    assert_eq!(found.len(), 1);
    let file = ground.path("base").join(&found[0]).join("0/f");
    assert_eq!(read_to_string(file).unwrap(), "the only copy");
    assert!(!staging.exists() && ground.record().staging.is_none());
}

#[test]
fn an_apply_leaves_its_note_until_all_is_compared() {
    let ground = ground();
    let is_noted = Cell::new(false);
    let before = |call: Call| {
        let note = ground.workspace.dir().join("scratch/not-put-back").exists();
        match call {
            Call::RenameAll => is_noted.set(note),
            Call::Remove => assert!(!note),
            Call::Clone => {}
        }
        Ok(())
    };
    Apply::default().run(&Hooked { before, limited: false }, &mut ground.workspace.clone()).unwrap();
    assert!(is_noted.get() && !ground.path("base/d").exists());
    assert_eq!(kept(ground.workspace.home.dir()).len(), 0);
}

#[test]
fn what_an_undo_or_a_discard_took_by_mistake_is_kept_by_the_next_command() {
    for path in ["scratch/tree", "discarded"] {
        let mut ground = ground();
        let taken = ground.workspace.dir().join(path);
        create_dir_all(&taken).unwrap();
        write(taken.join("f"), "the only copy").unwrap();
        ground.workspace.record.undoing = Some(1);
        write_record(&ground.workspace);
        ground.workspace.clone().checkpoint(&Plain, "").unwrap();
        let home = ground.workspace.home.dir();
        let found = kept(home);
        assert_eq!(found.len(), 1, "{path}");
        assert_eq!(read_to_string(home.join(&found[0]).join("f")).unwrap(), "the only copy");
    }
}

#[test]
fn gc_does_not_take_for_discarded_what_is_not_the_workspace() {
    let ground = ground();
    ground.move_far();
    let taken = ground.workspace.dir().join("discarded");
    create_dir(&taken).unwrap();
    write(taken.join("f"), "the only copy").unwrap();
    let collect = |missing: bool| {
        let mut registry = Registry::around(&ground.top).unwrap();
        let collect = crate::gc::Collect { missing, ..Default::default() };
        registry.collect(&Plain, &Processes::default(), collect).unwrap().len()
    };
    assert_eq!(collect(false), 0);
    assert!(taken.join("f").exists());
    assert_eq!(collect(true), 1);
    let home = ground.workspace.home.dir();
    assert_eq!(read_to_string(home.join(&kept(home)[0]).join("f")).unwrap(), "the only copy");
    assert!(!ground.workspace.dir().exists());
}

#[test]
fn what_cannot_be_moved_aside_stays_and_is_named() {
    let ground = ground();
    let taken = ground.workspace.dir().join("discarded");
    create_dir(&taken).unwrap();
    let id = &ground.workspace.record.id;
    for number in 1..super::MAX_KEPT {
        create_dir(ground.workspace.home.dir().join(format!("kept-{id}-{number}"))).unwrap();
    }
    let failed = ground.workspace.clone().checkpoint(&Plain, "").unwrap_err();
    assert!(matches!(&failed, Error::NotPutBack { kept, .. } if *kept == taken), "{failed}");
    assert!(taken.exists());
}
