use crate::error::Error;
use crate::git_command::git_command;
use crate::testing::{Ground, Plain};
use crate::trees::Trees;
use std::path::Path;
use std::process::Command;

/// Says what makes a program that git runs leave a trace.
const RAN: &str = "RAN";

/// Carries out a shell's commands; git's are made by `t`.
#[track_caller]
fn sh(dir: &Path, commands: &str) -> String {
    let mut shell = Command::new("sh");
    // The environment of the test may be one that git would follow.
    for (name, _) in git_command().get_envs() {
        shell.env_remove(name);
    }
    for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
        shell.env(name, "t");
    }
    shell.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    let out = shell.args(["-euc", commands]).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{commands}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// A workspace of what `commands` make of the empty directory `base`.
fn workspace_of(commands: &str) -> Ground {
    let ground = Ground::new();
    sh(&ground.path("base"), commands);
    for copy in [ground.path("w"), ground.workspace.base()] {
        Plain.clone_tree(&ground.path("base"), &copy).unwrap();
        sh(&copy, "rm -f w");
    }
    ground
}

const REPOSITORY: &str = "git init -q; echo 1 >f; git add .; git commit -qm first";

/// The subjects of what would be lost.
#[track_caller]
fn lonely(ground: &Ground) -> Vec<String> {
    assert_eq!(ground.workspace.differences(&Plain).unwrap(), []);
    let found = ground.workspace.lonely_commits(&Plain).unwrap();
    found.iter().map(|commit| commit.split_once(' ').unwrap().1.to_owned()).collect()
}

/// Why it cannot be told what would be lost.
#[track_caller]
fn untold(ground: &Ground) -> String {
    match ground.workspace.check_applied(&Plain).unwrap_err() {
        error @ Error::MayHaveCommits { .. } => error.to_string(),
        error => panic!("{error}"),
    }
}

#[test]
fn a_branch_is_found() {
    let ground = workspace_of(REPOSITORY);
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("w"), "git checkout -q -b x; git commit -q --allow-empty -m lonely; git checkout -q -");
    assert_eq!(lonely(&ground), ["lonely"]);
    sh(&ground.path("base"), "git fetch -q ../w x");
    assert!(lonely(&ground).is_empty(), "the original has it, although no branch there leads to it");
}

#[test]
fn a_variable_that_names_a_repository_does_not_answer_for_others() {
    let ground = workspace_of(REPOSITORY);
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "commits::tests::a_branch_is_found"]).env("GIT_DIR", ground.path("base/.git"));
    let out = again.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"));
}

#[test]
fn a_repository_that_git_does_not_read_may_have_commits() {
    let ground = workspace_of(REPOSITORY);
    sh(&ground.path("w"), "git commit -q --allow-empty -m lonely; rm .git/HEAD");
    let why = untold(&ground);
    assert!(why.contains("not a git repository") && why.contains("--force"), "{why}");
}

/// As root.
#[test]
fn the_settings_of_another_users_repository_are_not_followed() {
    let ground = workspace_of(REPOSITORY);
    sh(&ground.path("w"), "git commit -q --allow-empty -m lonely; chown -hR 4321:4321 .git");
    let why = untold(&ground);
    assert!(why.contains("dubious ownership") && why.lines().count() == 1, "{why}");
}

#[test]
fn a_repository_that_is_asked_runs_no_program() {
    let ground = workspace_of(REPOSITORY);
    // Objects that are missing are fetched by what the settings name.
    let ran = ground.path(RAN);
    sh(
        &ground.path("base"),
        &format!(
            "git config remote.origin.url .; git config remote.origin.promisor true; \
            git config remote.origin.uploadpack 'touch {}; false'; \
            git config core.repositoryFormatVersion 1; git config extensions.partialClone origin",
            ran.display()
        ),
    );
    sh(&ground.path("w"), "git commit -q --allow-empty -m lonely");
    assert_eq!(lonely(&ground), ["lonely"]);
    assert!(!ran.exists());
}
