use crate::apply::Apply;
use crate::discard::Discard;
use crate::error::Error;
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Call, Ground, Hooked, Plain};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::{create_dir, read_to_string, write};
use std::path::PathBuf;

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
