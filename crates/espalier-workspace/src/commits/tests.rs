use crate::discard::Discard;
use crate::error::Error;
use crate::processes::Processes;
use crate::testing::{Ground, Plain, sh};
use crate::trees::Trees;
use std::process::Command;

/// Says what makes a program that git runs leave a trace.
const RAN: &str = "RAN";

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
    let found = ground.workspace.lonely_commits(&Plain, &ground.path("w")).unwrap();
    let found = found.map(|lonely| lonely.commits).unwrap_or_default();
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

/// What the original has without a branch is known commit by commit; all of it is newer here.
#[test]
fn an_older_commit_behind_many_known_ones_is_found() {
    let ground = workspace_of(REPOSITORY);
    sh(
        &ground.path("w"),
        "git checkout -q -b old; GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' git commit -q --allow-empty -m lonely; \
         git checkout -q -; \
         { for n in $(seq 2000); do printf 'commit refs/heads/many\\ncommitter t <t> %d +0000\\ndata 1\\nm\\n' \
         $((1000000000 + n)); done; } | git fast-import --quiet",
    );
    sh(&ground.path("base"), "git fetch -q ../w many");
    assert_eq!(lonely(&ground), ["lonely"]);
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

/// Makes a commit on top of the one that is checked out, that changes no file.
const COMMIT: &str = "git commit -q --allow-empty -m lonely";

#[test]
fn commits_in_a_submodule_are_found() {
    let ground = workspace_of(&format!(
        "{REPOSITORY}; git init -q s; cd s; {COMMIT}; git commit -q --allow-empty -m 2; cd ..; \
        git -c protocol.file.allow=always submodule --quiet add ./s lib/sub; rm -rf s; git commit -qm sub"
    ));
    assert!(lonely(&ground).is_empty());
    // A branch that is not checked out: the work tree of the submodule is as it was.
    sh(
        &ground.path("w/lib/sub"),
        &format!("git checkout -q --detach; {COMMIT}; git branch x; git checkout -q @~"),
    );
    assert_eq!(lonely(&ground), ["lonely"]);
    // The message says how to take it.
    let Error::Commits { place, original, .. } = ground.workspace.check_applied(&Plain).unwrap_err() else {
        panic!()
    };
    sh(&original, &format!("git fetch -q {} x:x", place.display()));
    assert!(lonely(&ground).is_empty());
    // A submodule that has no work tree any more.
    sh(
        &ground.path("w"),
        "git -C .git/modules/lib/sub update-ref refs/heads/y $(git -C .git/modules/lib/sub commit-tree -m gone HEAD^{tree}); rm -rf lib/sub/.git",
    );
    assert_eq!(lonely(&ground), ["gone"]);
}

#[test]
fn commits_in_a_repository_below_are_found_also_after_an_apply() {
    let mut ground = workspace_of(&format!("mkdir -p a/b; cd a/b; {REPOSITORY}"));
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("w/a/b"), COMMIT);
    assert_eq!(lonely(&ground), ["lonely"]);
    // The base follows what is applied.
    sh(&ground.workspace.base(), "rm -rf a");
    Plain.clone_tree(&ground.path("w/a"), &ground.workspace.base().join("a")).unwrap();
    ground.workspace.record.applied = Some(1);
    assert_eq!(lonely(&ground), ["lonely"]);
    std::fs::rename(ground.path("base"), ground.path("elsewhere")).unwrap();
    assert_eq!(lonely(&ground), ["lonely", "first"]);
}

/// A workspace that is a linked worktree of `repository`, as `create` makes one.
fn linked() -> Ground {
    let ground = Ground::new();
    sh(
        &ground.top,
        &format!(
            "git init -q repository; cd repository; {REPOSITORY}; \
            git worktree add -q --detach ../other; git worktree add -q --detach ../linked; \
            mv ../linked/.git ../linked/f ../w; rm ../w/w; cp ../w/.git ../w/f {}; rm {0}/w; \
            cd ../w; git worktree repair",
            ground.workspace.base().display()
        ),
    );
    ground
}

#[test]
fn a_commit_that_only_the_head_of_a_linked_worktree_leads_to_is_found() {
    let ground = linked();
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("w"), COMMIT);
    assert_eq!(lonely(&ground), ["lonely"]);
    // Another worktree has it.
    sh(&ground.path("other"), "git checkout -q $(git -C ../w rev-parse HEAD)");
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("other"), "git checkout -q @~");
    assert_eq!(lonely(&ground), ["lonely"]);
    // The repository has it.
    sh(&ground.path("w"), "git checkout -q -b some/branch");
    assert!(lonely(&ground).is_empty());
}

#[test]
fn a_linked_worktree_is_forgotten_with_its_workspace_and_no_other_is() {
    let worktrees = |ground: &Ground| {
        let listed = sh(&ground.path("repository"), "git worktree list --porcelain | grep ^worktree");
        let mut names: Vec<_> =
            listed.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect();
        names[1..].sort();
        names
    };
    let discard = |ground: &Ground| {
        Discard::default().run(&Plain, &mut ground.workspace.clone(), &Processes::default()).unwrap();
        assert!(!ground.path("w").exists());
    };
    let ground = linked();
    assert_eq!(worktrees(&ground), ["repository", "other", "w"]);
    // Not there just now.
    sh(&ground.top, "mv other away");
    discard(&ground);
    assert_eq!(worktrees(&ground), ["repository", "other"]);
    // One whose file leads to what is registered for another.
    let ground = linked();
    for tree in [ground.path("w"), ground.workspace.base()] {
        sh(&tree, &format!("cp {} .", ground.path("other/.git").display()));
    }
    discard(&ground);
    assert_eq!(worktrees(&ground).len(), 3);
    // One that is locked, and one with submodules' repositories.
    let ground = linked();
    sh(&ground.path("w"), "git worktree lock .");
    discard(&ground);
    assert_eq!(worktrees(&ground).len(), 3);
    let ground = linked();
    sh(&ground.path("w"), "mkdir $(git rev-parse --git-dir)/modules");
    discard(&ground);
    assert_eq!(worktrees(&ground).len(), 3);
}

#[test]
fn what_jj_alone_reads_may_have_commits() {
    let ground = workspace_of("mkdir -p d/.jj/repo/op e/.jj; echo ../../d/.jj/repo >e/.jj/repo");
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("w/e"), "touch .jj/working_copy");
    assert!(lonely(&ground).is_empty());
    sh(&ground.path("w/d"), "touch .jj/repo/op/1");
    let why = untold(&ground);
    assert!(why.contains("jj changed d/.jj"), "{why}");
    // Git has all the commits.
    sh(&ground.path("w/d"), "git init -q");
    assert!(lonely(&ground).is_empty());
}
