//! What `espalier workspace` does with git's files in trees that other users write, and on several
//! mounts.

mod common;

use common::pool::{Pool, USER, as_both};
use common::{Ran, as_user, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

const SECRET: &str = "deadbeef of root\n";
const REPOSITORY: &str = "git init -q base; cd base; git config user.email a@b.c; git config user.name n; \
    echo one > a; git add .; git commit -qm 1";

/// A command of root about a tree of the user's.
fn as_root(pool: &Pool, words: &str) -> Ran {
    let mut command = as_user(None, env!("CARGO_BIN_EXE_espalier"));
    command.arg("workspace").args(words.split(' ')).current_dir(&pool.top).output().unwrap().into()
}

/// A file that root alone reads, in a directory of its own.
fn secret(pool: &Pool) -> std::path::PathBuf {
    let dir = pool.place.path("root");
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("config"), SECRET).unwrap();
    fs::set_permissions(dir.join("config"), fs::Permissions::from_mode(0o600)).unwrap();
    dir.join("config")
}

fn replace_by_link(file: &Path, to: &Path) {
    if file.is_dir() {
        fs::remove_dir_all(file).unwrap()
    } else {
        fs::remove_file(file).unwrap()
    }
    symlink(to, file).unwrap();
}

#[test]
fn links_in_a_users_repository_lead_root_nowhere() {
    let pool = Pool::of(Some(USER));
    let secret = secret(&pool);
    // The configuration, that of a submodule, and the directory of those.
    pool.sh(REPOSITORY);
    pool.sh("cd base/.git; mkdir -p modules/m; cp HEAD modules/m; cp config modules/m");
    for file in [".git/config", ".git/modules/m/config"] {
        pool.sh("cp -a base copy");
        replace_by_link(&pool.path("copy").join(file), &secret);
        as_root(&pool, "create w --from copy").ok();
        assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET, "{file}");
        as_root(&pool, "discard w --force").ok();
        fs::remove_dir_all(pool.path("copy")).unwrap();
    }
    let outside = secret.with_file_name("m");
    fs::create_dir(&outside).unwrap();
    for name in ["HEAD", "config"] {
        fs::write(outside.join(name), SECRET).unwrap();
    }
    replace_by_link(&pool.path("base/.git/modules"), &pool.place.path("root"));
    as_root(&pool, "create w --from base").ok();
    assert_eq!(fs::read_to_string(outside.join("config")).unwrap(), SECRET);
}

#[test]
fn a_users_linked_worktree_shows_nothing_of_root() {
    let pool = Pool::of(Some(USER));
    let secret = secret(&pool);
    pool.sh(&format!("{REPOSITORY}; git worktree add -q ../tree -b other"));
    let registration = pool.path("base/.git/worktrees/tree");
    // One that is honest: all that is made belongs to the user, for more commits.
    as_root(&pool, "create w --from tree").ok();
    assert_eq!(pool.path("base/.git/worktrees/w/HEAD").metadata().unwrap().uid(), USER);
    pool.sh("cd w; echo two > a; git commit -qam 2; git checkout -q other --ignore-other-worktrees");
    as_root(&pool, "discard w --force").ok();
    assert_eq!(pool.sh("ls base/.git/worktrees"), "tree\n");
    let refused = |what: &str| {
        as_root(&pool, "create w --from tree").refused(1, &["--no-git"]);
        assert_eq!(pool.sh("ls base/.git/worktrees"), "tree\n", "{what}");
    };
    // Its head, by a link.
    pool.sh("cp -a base/.git/worktrees/tree kept");
    replace_by_link(&registration.join("HEAD"), &secret);
    refused("HEAD");
    // The registration, and the repository, of root.
    pool.sh("rm -r base/.git/worktrees/tree; cp -a kept base/.git/worktrees/tree");
    let foreign = secret.with_file_name("worktrees");
    fs::create_dir(&foreign).unwrap();
    run(Command::new("cp").arg("-a").arg(pool.path("kept")).arg(foreign.join("tree")));
    pool.sh(&format!("echo 'gitdir: {}' > tree/.git", foreign.join("tree").display()));
    refused("the directory of registrations");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    pool.sh(&format!("echo 'gitdir: {}' > tree/.git", registration.display()));
    pool.sh(&format!("echo {} > base/.git/worktrees/tree/commondir", secret.parent().unwrap().display()));
    refused("commondir");
    // A branch that leads out of the repository: the head stays as it is.
    pool.sh("cp kept/commondir base/.git/worktrees/tree; echo 'ref: refs/../../../secret' > base/.git/worktrees/tree/HEAD");
    symlink(&secret, pool.path("secret")).unwrap();
    as_root(&pool, "create w --from tree").ok();
    assert_eq!(pool.sh("cat base/.git/worktrees/w/HEAD"), "ref: refs/../../../secret\n");
    pool.sh("ln -s ../../../secret base/.git/refs/heads/led; echo ref: refs/heads/led > base/.git/worktrees/tree/HEAD");
    as_root(&pool, "create v --from tree").ok();
    assert_eq!(pool.sh("cat base/.git/worktrees/v/HEAD"), "ref: refs/heads/led\n");
}

/// The other user's repository leads to a file of the user's.
#[test]
fn creation_from_another_users_tree_writes_nothing_of_the_callers() {
    let pool = Pool::of(Some(USER));
    let other = USER + 1;
    let theirs = pool.place.dir.join("theirs");
    pool.sh(&format!("{REPOSITORY}; cp .git/config ../own"));
    let before = fs::read_to_string(pool.path("own")).unwrap();
    run(Command::new("cp").arg("-a").arg(pool.path("base")).arg(&theirs));
    run(Command::new("chown").args(["-hR", &other.to_string()]).arg(&theirs));
    replace_by_link(&theirs.join(".git/config"), &pool.path("own"));
    std::os::unix::fs::lchown(theirs.join(".git/config"), Some(other), None).unwrap();
    let at = pool.path("w");
    let words = format!("create w --from {} --at {}", theirs.display(), at.display());
    pool.ws(&words).refused(1, &["belongs to another user"]);
    assert_eq!(fs::read_to_string(pool.path("own")).unwrap(), before);
    // Nor in their directory, if the file in it is the caller's.
    fs::remove_file(theirs.join(".git/config")).unwrap();
    fs::copy(pool.path("own"), theirs.join(".git/config")).unwrap();
    chown(theirs.join(".git/config"), Some(USER), None).unwrap();
    pool.ws(&words).refused(1, &["belongs to another user"]);
    assert_eq!(fs::read_to_string(theirs.join(".git/config")).unwrap(), before);
}

#[test]
fn a_promotion_keeps_linked_worktrees() {
    as_both(|pool| {
        pool.sh(&format!("{REPOSITORY}; git worktree add -q ../tree -b other"));
        pool.ws("create w --from base").ok();
        pool.sh("cd tree; echo two > a; git commit -qam 2");
        for place in ["w", "base"] {
            pool.ws("promote w").ok();
            assert_eq!(pool.sh("git -C tree status --porcelain; git -C tree log --format=%s"), "2\n1\n");
            assert_eq!(pool.sh(&format!("git -C {place} worktree list | wc -l")), "2\n");
        }
        pool.ws("promote w").ok();
        pool.sh("git -C base fetch -q ../w other:other");
        pool.ws("discard w").refused(1, &["linked worktrees", "/tree", "--force"]);
        pool.sh("git -C w worktree remove ../tree");
        pool.ws("discard w").ok();
    });
}

#[test]
fn processes_are_looked_at_on_each_mount() {
    let (first, second) = (Pool::of(None), Pool::of(None));
    for pool in [&first, &second] {
        pool.sh("mkdir base; echo x > base/f");
        pool.ws("create w --from base").ok();
    }
    let mut sleeper = second.program("sleep").arg("1000").current_dir(second.path("w")).spawn().unwrap();
    let words = format!("discard {} {}", first.path("w").display(), second.path("w").display());
    first.ws(&words).refused(1, &["in use by", &sleeper.id().to_string()]);
    assert!(!first.path("w").exists() && second.path("w").exists());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn what_was_made_before_a_failure_is_printed() {
    let pool = Pool::of(Some(USER));
    pool.sh("mkdir base w-3; echo x > base/f");
    let told = pool.ws("create w --from base --count 3 --json");
    let made: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let names: Vec<_> = made["created"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["w-1", "w-2"]);
    told.refused(1, &["w-3", "exists already"]);
}

#[test]
fn a_workspace_does_not_lie_in_its_original() {
    as_both(|pool| {
        pool.sh("mkdir -p base/.worktrees");
        let at = format!("--at {}", pool.path("w").display());
        pool.ws("create w --from base --at base/.worktrees/w").refused(1, &["part of its own original", &at]);
        assert!(!pool.path("base/.worktrees/w").exists() && pool.names().is_empty());
    });
}

#[test]
fn a_patch_that_is_no_text_comes_whole_in_json() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x > base/f");
        pool.ws("create w --from base").ok();
        assert_eq!(pool.json("diff w --patch")["text"], "");
        pool.sh("printf 'caf\\351\\n' > w/f");
        let told = pool.json("diff w --patch");
        assert!(told["text"].is_null(), "{told}");
        fs::write(pool.path("encoded"), told["base64"].as_str().unwrap()).unwrap();
        pool.sh("base64 -d encoded > patch; cd base; git apply ../patch; cmp f ../w/f");
    });
}

#[test]
fn programs_that_cannot_be_run_have_the_status_of_shells() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x > base/f");
        pool.ws("create w --from base").ok();
        // As of execvp(3), a directory in PATH that the user may not search counts first.
        let run = |words: &str| -> Ran {
            let mut command = pool.program(env!("CARGO_BIN_EXE_espalier"));
            command.env("PATH", "/usr/bin:/bin").arg("ws").args(words.split(' ')).output().unwrap().into()
        };
        run("exec w -- no-such-program").refused(127, &["no-such-program"]);
        run("exec w -- ./f").refused(126, &["./f"]);
        run("create v --from base -- no-such-program").refused(127, &["no-such-program"]);
        pool.ws("exec w -- sh -c exit\t5").refused(5, &[]);
    });
}
