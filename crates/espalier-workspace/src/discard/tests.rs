use super::Discard;
use crate::error::{Error, Result};
use crate::gc::{Collect, Collected, Reason};
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Ground, Plain, sh, with_late_process};
use crate::trees::{Change, Step, Trees};
use crate::workspace::{Lock, Workspace};
use espalier_fuse::control::TreeBytes;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Trees that looks, before it removes one, whether data of a workspace would go entry by entry.
struct Watched {
    data: PathBuf,
    removed: Mutex<Vec<PathBuf>>,
    /// Removals fail, as if the power had failed before.
    fails: bool,
}

impl Watched {
    fn of(workspace: &Workspace, fails: bool) -> Self {
        Self { data: workspace.dir(), removed: Mutex::default(), fails }
    }
}

impl Trees for Watched {
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()> {
        Plain.clone_tree(source, destination)
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        assert!(!self.data.exists(), "what is removed is not at its place");
        let mut removed = self.removed.lock().unwrap();
        // The command has the lock until the end; what it could not remove has a free one.
        assert!(Lock::is_held(path) || removed.iter().any(|before| before == path));
        removed.push(path.to_owned());
        match self.fails {
            true => Err(Error::NotEspalier(path.to_owned())),
            false => Plain.remove_tree(path),
        }
    }

    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()> {
        Plain.differences(old, new, each)
    }

    fn restore(&self, dir: &Path, snapshot: &str) -> Result<()> {
        Plain.restore(dir, snapshot)
    }

    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()> {
        Plain.rename_all(staging, target, steps)
    }

    fn exclusive_bytes(&self, path: &Path) -> Result<Option<u64>> {
        Plain.exclusive_bytes(path)
    }

    fn limits(&self, path: &Path) -> Result<TreeBytes> {
        Plain.limits(path)
    }

    fn set_limits(&self, path: &Path, limits: TreeBytes) -> Result<()> {
        Plain.set_limits(path, limits)
    }
}

fn collect(ground: &Ground, trees: &dyn Trees) -> Vec<Collected> {
    let collect = Collect { missing: true, ..Collect::default() };
    let mut registry = Registry::around(&ground.top).unwrap();
    registry.collect(trees, &Processes::default(), collect).unwrap()
}

/// What the home holds, but for its names.
fn left(ground: &Ground) -> usize {
    ground.workspace.home.dir().read_dir().unwrap().count() - 1
}

#[test]
fn data_leaves_its_place_before_it_is_removed() {
    let ground = Ground::new();
    let trees = Watched::of(&ground.workspace, false);
    let mut workspace = ground.workspace.clone();
    Discard::default().run(&trees, &mut workspace, &Processes::default()).unwrap();
    assert_eq!((trees.removed.lock().unwrap().len(), left(&ground)), (1, 0));
    assert!(!ground.path("w").exists() && !ground.workspace.home.name_link("w").is_symlink());
}

#[test]
fn gc_moves_data_away_before_it_is_removed() {
    let ground = Ground::new();
    ground.move_far();
    let trees = Watched::of(&ground.workspace, false);
    assert_eq!(collect(&ground, &trees).len(), 1);
    assert_eq!((trees.removed.lock().unwrap().len(), left(&ground)), (1, 0));
}

#[test]
fn what_a_discard_left_is_no_workspace_and_goes_with_the_next_gc() {
    let ground = Ground::new();
    let trees = Watched::of(&ground.workspace, true);
    let mut workspace = ground.workspace.clone();
    Discard::default().run(&trees, &mut workspace, &Processes::default()).unwrap_err();
    assert!(Registry::around(&ground.top).unwrap().missing.is_empty());
    let rest = trees.removed.lock().unwrap()[0].clone();
    let lock = Lock::of(&rest).unwrap();
    assert_eq!((collect(&ground, &Plain).len(), left(&ground)), (0, 1));
    drop(lock);
    assert_eq!((collect(&ground, &Plain).len(), left(&ground)), (1, 0));
}

#[test]
fn what_cannot_be_removed_keeps_gc_from_nothing_else() {
    let ground = Ground::new();
    let mut expired = ground.workspace.clone();
    expired.record.expires = Some(1);
    crate::testing::write_record(&expired);
    let trees = Watched::of(&ground.workspace, true);
    // What is left of it is tried once more.
    for reasons in [&[Reason::Expired, Reason::Leftover][..], &[Reason::Leftover]] {
        let kept = collect(&ground, &trees);
        assert_eq!(kept.iter().map(|one| one.reason).collect::<Vec<_>>(), reasons);
        assert!(kept.iter().all(|one| one.kept.is_some()), "{kept:?}");
    }
    assert_eq!((collect(&ground, &Plain).len(), left(&ground)), (1, 0));
}

#[test]
fn a_process_that_came_meanwhile_is_seen() {
    let ground = Ground::new();
    sh(&ground.workspace.base(), "rm w; cp -a ../../../w/. .");
    let refused = with_late_process(&ground, "w", |trees, workspace| {
        Discard::default().run(trees, workspace, &Processes::default())
    });
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    assert!(ground.path("w").exists());
}
