//! Workspaces of a directory with a limit: an apply that is killed at any of its steps, or that
//! finds no room at any of them, leaves all of it or nothing, and no rest.
//!
//! `ESPALIER_ALL=1` kills the server at every step, too, and not at some.

mod common;
#[path = "workspace_model/tree.rs"]
#[allow(dead_code, reason = "edits and merges are the other test's")]
mod tree;

use common::pool::{Pool, USER};
use common::traced::{Traced, workspace_command};
use common::{Random, espalier};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tree::{Tree, read};

/// Directories of the original, and files in each.
const SIZE: (u64, u64) = (3, 3);
/// The size of what a workspace adds, in bytes: more than what a tree may hold beyond its limit.
const ADDED_BYTES: usize = 512 << 10;
/// How many such files an apply brings.
const ADDED: u64 = 12;

/// What a limited tree holds, but for what an apply that did not end has staged in it.
fn held(pool: &Pool, name: &str) -> Tree {
    let mut tree = read(&pool.path(name));
    let is_held = |path: &Path| !path.to_string_lossy().starts_with(".espalier-");
    tree.things.retain(|path, _| is_held(path));
    tree.files.retain(|path, _| is_held(path));
    tree
}

/// An original with files of several names, limited, and a workspace of it.
fn limited(user: Option<u32>) -> Pool {
    let pool = Pool::of(user);
    for dir in 0..SIZE.0 {
        for file in 0..SIZE.1 {
            pool.sh(&format!("mkdir -p base/d{dir}; echo {dir} {file} >base/d{dir}/f{file}"));
        }
    }
    pool.sh("ln base/d0/f0 base/d1/link; ln base/d0/f1 base/link; ln -s d0 base/symbolic");
    quota(&pool, "64M");
    pool.ws("create w --from base").ok();
    pool
}

/// Limits all that the original may refer to.
fn quota(pool: &Pool, size: &str) {
    let words = ["quota", "set", "base", "--total", size];
    common::run(pool.program(env!("CARGO_BIN_EXE_espalier")).args(words));
}

/// What the original refers to, in bytes.
fn total(pool: &Pool) -> u64 {
    let shown =
        espalier(&["quota".as_ref(), "show".as_ref(), "--json".as_ref(), pool.path("base").as_os_str()]);
    let told: Value = serde_json::from_str(&shown.ok()).unwrap();
    told["total_bytes"].as_u64().unwrap()
}

/// Changes of the workspace of every kind: content, mode, names, what comes and what goes. They are
/// others in every round.
fn change(pool: &Pool, round: u64) {
    pool.sh(&format!(
        "cd w; echo {round} >d0/f0; echo {round} >d2/f2; mkdir new{round}; echo {round} >new{round}/a; ln new{round}/a b{round}; \
         rm -rf new{}; rm -f b{}; chmod 0{} d1/f1; mv d2/f0 d2/moved || mv d2/moved d2/f0; ln -sfn to{round} symbolic",
        round.wrapping_sub(1),
        round.wrapping_sub(1),
        600 + round % 8 * 10,
    ));
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Server,
    Command,
}

/// An apply that is killed before change number `step` of its own; true if it has that many.
fn round(pool: &Pool, step: u64, killed: Killed) -> bool {
    change(pool, step);
    let (before, wanted) = (held(pool, "base"), held(pool, "w"));
    assert_ne!(before, wanted);
    let mut command = workspace_command(pool.user, pool.top.as_os_str(), "apply w --theirs");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut traced = Traced::start(&mut command);
    let reached = (0..=step).take_while(|_| traced.next_change()).count() as u64;
    let is_there = reached > step;
    match killed {
        Killed::Command => traced.kill(),
        Killed::Server => {
            // What was done so far is to be there.
            fs::File::open(&pool.place.dir).unwrap().sync_all().unwrap();
            let server = pool.place.server();
            if step.is_multiple_of(2) {
                traced.let_go();
            }
            pool.place.kill_process(server);
            traced.finish();
            pool.place.take_down();
            pool.place.remount_after_nothing();
        }
    }
    let found = held(pool, "base");
    assert!(
        found == before || found == wanted,
        "{killed:?} at {step}: {:#?}",
        found.differences(&wanted, "base")
    );
    assert!(is_there || found == wanted, "{killed:?} after {step}");
    assert_eq!(held(pool, "w"), wanted, "{killed:?} at {step}");
    // What is left goes by `gc`, or by the next command about the workspace.
    if step.is_multiple_of(2) {
        pool.ws("gc").ok();
        assert_eq!(read(&pool.path("base")), found, "{killed:?} at {step}: left behind");
    }
    pool.ws("apply w --theirs").ok();
    assert_eq!(read(&pool.path("base")), wanted, "{killed:?} at {step}");
    assert_eq!(pool.ws("diff w").ok(), "", "{killed:?} at {step}");
    is_there
}

fn killed_at_every_step(user: Option<u32>, killed: Killed, every: usize) {
    let pool = limited(user);
    let steps = (0..).step_by(every).take_while(|step| round(&pool, *step, killed)).count();
    println!("{killed:?}: {steps} steps");
    assert!(steps * every > 30, "{steps} steps of {every}");
    pool.ws("discard w").ok();
    pool.place.remount();
}

#[test]
fn an_apply_into_a_limited_tree_that_is_killed_leaves_all_or_nothing() {
    killed_at_every_step(None, Killed::Command, 1);
    killed_at_every_step(Some(USER), Killed::Command, 1);
}

#[test]
fn so_it_does_if_the_server_is_killed() {
    let is_all = std::env::var_os("ESPALIER_ALL").is_some();
    killed_at_every_step(None, Killed::Server, if is_all { 1 } else { 5 });
    killed_at_every_step(Some(USER), Killed::Server, if is_all { 1 } else { 7 });
}

/// Limits the original so that each time a little more of what comes finds room, until all does.
fn without_room(user: Option<u32>) {
    let pool = limited(user);
    change(&pool, 1);
    let mut random = Random(3);
    for number in 0..ADDED {
        // Alone in their directories, and beside what is there.
        let dir = ["d0", "d1", "."][number as usize % 3];
        let file = pool.path(&format!("w/{dir}/added{number}"));
        fs::write(&file, random.bytes(ADDED_BYTES)).unwrap();
        std::os::unix::fs::chown(&file, user, user).unwrap();
    }
    let (before, wanted, holds) = (held(&pool, "base"), held(&pool, "w"), total(&pool));
    let mut refusals = 0;
    loop {
        assert!(refusals < 4 * ADDED, "it never finds room");
        quota(&pool, &(holds + refusals * ADDED_BYTES as u64 / 2).to_string());
        let ran = pool.ws("apply w");
        if ran.code == Some(0) {
            break;
        }
        ran.refused(1, &["quota exceeded"]);
        refusals += 1;
        // Nothing of it is there, staged or not.
        assert_eq!(read(&pool.path("base")), before, "refused {refusals} times");
        assert_eq!(held(&pool, "w"), wanted);
        assert!(pool.json("list")["workspaces"][0]["changed"].as_u64().unwrap() > ADDED);
    }
    assert!(refusals > ADDED, "{refusals}");
    assert_eq!(read(&pool.path("base")), wanted);
    pool.ws("discard w").ok();
    pool.place.remount();
    assert_eq!(read(&pool.path("base")), wanted);
}

#[test]
fn an_apply_that_finds_no_room_leaves_nothing() {
    without_room(None);
    without_room(Some(USER));
}

/// A directory that is mounted a second time, until this is dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(dir: &Path, at: &Path) -> Self {
        common::run(std::process::Command::new("mount").arg("--bind").args([dir, at]));
        Self(at.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// What an apply does where something is mounted in its target. Needs root, which mounts.
fn with_mounts(limit: bool) {
    let pool = Pool::of(None);
    pool.sh(
        "mkdir -p base/d/m base/e other seen; echo under >base/d/m/f; echo g >base/d/g; echo over >other/f",
    );
    if limit {
        quota(&pool, "64M");
    }
    pool.ws("create w --from base").ok();
    let before = read(&pool.path("base"));
    let at = pool.path("base/d/m");
    let bound = Bound::new(&pool.path("other"), &at);
    let seen = read(&pool.path("base"));
    pool.ws("checkpoint w").ok();
    for change in ["echo w >w/d/m/f", "chmod 700 w/d/m", "rm w/d/m/f", "rm -r w/d", "rm -r w/d; echo >w/d"] {
        pool.sh(change);
        for words in ["apply w", "apply w --check", "apply w --theirs", "apply w d"] {
            let named = format!("something is mounted on {},", at.display());
            pool.ws(words).refused(1, &[&named, "nothing was changed"]);
        }
        assert_eq!(read(&pool.path("base")), seen, "{change}");
        pool.ws("undo w 1").ok();
    }
    // What lies beside it, or above and stays, can be changed.
    pool.sh("echo w >w/d/g; chmod 700 w/d; echo w >w/e/new");
    pool.ws("apply w").ok();
    assert_eq!(fs::read_to_string(pool.path("base/d/g")).unwrap(), "w\n");
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "over\n");
    drop(bound);
    let after = read(&pool.path("base"));
    assert_eq!((after == read(&pool.path("w")), after == before), (true, false));

    // The target itself may be mounted a second time; then nothing can be staged in it.
    let bound = Bound::new(&pool.path("base"), &pool.path("seen"));
    pool.sh("echo again >w/d/g");
    match limit {
        false => drop(pool.ws("apply w --to seen").ok()),
        true => {
            let named = format!("another mount ({})", pool.path("seen").display());
            pool.ws("apply w --to seen").refused(1, &[&named, "nothing was applied"]);
            assert_eq!(read(&pool.path("base")), after);
            pool.ws("apply w").ok();
        }
    }
    assert_eq!(fs::read_to_string(pool.path("seen/d/g")).unwrap(), "again\n");
    drop(bound);
    // Nor does a mount on what the target alone has got since matter, where it has lost something.
    pool.sh("mkdir base/late; rm base/e/new; echo w >w/d/late");
    let late = Bound::new(&pool.path("other"), &pool.path("base/late"));
    pool.ws("apply w").ok();
    assert_eq!(fs::read_to_string(pool.path("base/d/late")).unwrap(), "w\n");
    drop(late);
    pool.ws("discard w").ok();
    pool.place.remount();
}

#[test]
fn an_apply_changes_nothing_at_a_mount_point() {
    with_mounts(false);
    with_mounts(true);
}
