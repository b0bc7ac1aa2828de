use super::Create;
use crate::error::{Error, Result};
use crate::source::Source;
use crate::testing::{Call, Ground, Hooked, Plain, sh};
use crate::trees::Trees;
use crate::workspace::Workspace;
use std::cell::Cell;
use std::path::Path;

fn create<'a>(name: &'a str, from: &'a Path, place: Option<&'a Path>) -> Create<'a> {
    Create {
        name,
        from,
        around: from,
        place,
        time_to_live: None,
        quota: None,
        prepare_git: true,
        hook: None,
        process: None,
    }
}

/// Makes `x` of a directory, but chooses no home, which lies as high as the user may write.
fn make(ground: &Ground, from: &str, trees: &dyn Trees) -> Result<Workspace> {
    let (from, place) = (ground.path(from), ground.path("x"));
    let mut workspace = ground.workspace.clone();
    workspace.record.id = "fedcba9876543210".into();
    workspace.record.name = "x".into();
    let new = workspace.home.dir().join("new-x");
    std::fs::create_dir(&new).unwrap();
    let source = Source::Directory(from.clone());
    let made = create("x", &from, None).make(trees, &mut workspace, &new, (&source, &place));
    if made.is_err() {
        std::fs::remove_dir_all(new).unwrap();
    }
    made.map(|_| workspace)
}

#[test]
fn a_linked_worktree_that_is_not_made_is_not_registered() {
    let ground = Ground::new();
    sh(
        &ground.top,
        "git init -q repository; cd repository; git commit -q --allow-empty -m first; \
         git worktree add -q --detach ../linked",
    );
    let registered = || sh(&ground.path("repository"), "ls .git/worktrees");
    let clones = Cell::new(0);
    let before = |call: Call| {
        if matches!(call, Call::Clone) {
            clones.set(clones.get() + 1);
        }
        // The base is made when git is prepared.
        if clones.get() == 2 { Err(Error::NotEspalier(ground.path("linked"))) } else { Ok(()) }
    };
    make(&ground, "linked", &Hooked { before, limited: false }).unwrap_err();
    assert_eq!((clones.get(), registered()), (2, "linked\n".into()));
    make(&ground, "linked", &Plain).unwrap();
    assert_eq!(registered(), "linked\nx\n");
    assert_eq!(sh(&ground.path("x"), "git status --porcelain; git log --format=%s"), "first\n");
}

/// The owner of the directory above puts it there.
#[test]
fn a_link_in_the_place_of_the_original_is_not_followed() {
    let ground = Ground::new();
    sh(&ground.top, "mkdir private; touch private/secret");
    let before = |call: Call| {
        if matches!(call, Call::Clone) && !ground.path("away").exists() {
            sh(&ground.top, "mv base away; ln -s private base");
        }
        Ok(())
    };
    make(&ground, "base", &Hooked { before, limited: false }).unwrap();
    assert!(ground.path("x/base").exists() && !ground.path("x/secret").exists());
    let before = Source::Directory(ground.path("base")).clone_to(&Plain, &ground.path("y"));
    assert!(matches!(before, Err(Error::Meanwhile(_))), "{before:?}");
}

#[test]
fn a_place_in_the_original_is_refused_with_another_one() {
    let ground = Ground::new();
    let (base, inside) = (ground.path("base"), ground.path("base/inside"));
    let refused = create("x", &base, Some(&inside)).way().err().map(|error| error.to_string());
    let other = format!("--at {}", ground.path("inside").display());
    assert!(refused.as_ref().is_some_and(|why| why.contains(&other)), "{refused:?}");
}
