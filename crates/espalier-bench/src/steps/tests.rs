use super::*;

#[test]
fn a_step_brings_along_what_it_needs() {
    let names = |asked: &str| -> Vec<_> {
        let stages = stages(&[asked.into()]).unwrap();
        stages.iter().map(Stage::name).collect()
    };
    assert_eq!(names("git_clone"), ["unpack", "git_commit", "git_clone"]);
    assert_eq!(names("read_4K_aio8"), ["write_seq", "read_4K_aio8"]);
    assert_eq!(names("toku_create"), ["toku_create"]);
    assert_eq!(names("all").len(), STAGES.len());
    let error = stages(&["git_clonne".into()]).unwrap_err().to_string();
    assert!(error.contains("git_clonne") && error.contains("git_clone"), "{error}");
}

#[test]
fn what_a_step_needs_comes_before_it() {
    let mut known = Vec::new();
    for step in STAGES.iter().copied().flatten() {
        for needed in step.needs {
            assert!(known.contains(needed), "{} needs {needed}", step.name);
        }
        assert!(!known.contains(&step.name), "{} is there twice", step.name);
        known.push(step.name);
    }
}

#[test]
fn small_files_lie_where_they_are_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("small");
    small::create(&root, 100).unwrap();
    small::create_range(&root, 100..300).unwrap();
    for number in 0..300 {
        let content = std::fs::read(small::path_of(&root, number)).unwrap();
        assert_eq!(content, [number as u8; 200]);
    }
    assert!(!small::path_of(&root, 300).exists());
}

#[test]
fn a_repository_has_one_file_that_git_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "a").unwrap();
    trees::commit(&tree).unwrap();
    trees::status(&tree).unwrap();
    trees::clone(&tree, &dir.path().join("clone")).unwrap();
    assert_eq!(std::fs::read(dir.path().join("clone/a")).unwrap(), b"a");
    std::fs::write(tree.join("b"), "b").unwrap();
    assert!(trees::status(&tree).is_err());
}

#[test]
fn the_repository_goes_with_the_last_stage_that_needs_it() {
    for asked in ["git_commit", "git_clone", "all"] {
        let dir = tempfile::tempdir().unwrap();
        let repository = dir.path().join("tree/.git");
        std::fs::create_dir_all(&repository).unwrap();
        std::fs::write(dir.path().join("tree/a"), "a").unwrap();
        for stage in stages(&[asked.into(), "rm_rf".into()]).unwrap() {
            if stage.name() == "rm_rf" {
                assert!(!repository.exists(), "{asked}");
                assert!(dir.path().join("tree/a").exists(), "{asked}");
            } else if stage.has_repository() {
                assert!(repository.exists(), "{asked}: {}", stage.name());
            }
            stage.clear(dir.path()).unwrap();
        }
    }
}
