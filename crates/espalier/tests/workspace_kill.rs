//! Commands on workspaces that are killed at any moment: afterwards each workspace is listed or
//! not, and what is listed is whole.

mod common;

use common::pool::{Pool as UserPool, USER};
use common::traced::{Traced, workspace_command};
use common::{Place, Ran, Random, espalier, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often each command is killed.
const KILLS: u64 = 8;
/// Directories and files of the original.
const SIZE: (u64, u64) = (8, 6);

struct Pool {
    place: Place,
    random: Random,
    /// About how long a command takes, in microseconds.
    micros: u64,
}

/// Paths with what they hold.
type Tree = Vec<(PathBuf, Vec<u8>)>;

impl Pool {
    fn path(&self, name: &str) -> PathBuf {
        self.place.dir.join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command.arg("workspace").args(words.split(' ')).current_dir(&self.place.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    #[track_caller]
    fn ws(&self, words: &str) -> Ran {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap().into()
    }

    fn names(&self) -> Vec<String> {
        let said = self.ws("list --json").ok();
        let all: Value = serde_json::from_str(&said).unwrap();
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        all["workspaces"].as_array().unwrap().iter().map(name).collect()
    }

    fn read(&self, name: &str) -> Tree {
        let top = self.path(name);
        let mut tree = Tree::new();
        let mut waiting = vec![top.clone()];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    tree.push((path.strip_prefix(&top).unwrap().to_owned(), fs::read(&path).unwrap()));
                }
            }
        }
        tree.sort();
        tree
    }

    /// Runs a command and kills it, at a random moment of the time that it takes about.
    fn kill(&mut self, words: &str) {
        let after = Duration::from_micros(self.random.below(self.micros + self.micros / 4));
        let begun = Instant::now();
        let mut child = self.command(words).spawn().unwrap();
        while begun.elapsed() < after && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = child.kill();
        child.wait().unwrap();
    }

    /// A change of a tree that is another one each time.
    fn change(&mut self, name: &str) {
        for dir in 0..SIZE.0 {
            fs::write(self.path(name).join(format!("d{dir}/f1")), self.random.next().to_string()).unwrap();
        }
        let new = self.path(name).join(format!("new{}", self.random.next()));
        fs::write(new, "new").unwrap();
    }
}

fn make(top: &Path) {
    for dir in 0..SIZE.0 {
        fs::create_dir_all(top.join(format!("d{dir}"))).unwrap();
        for file in 0..SIZE.1 {
            fs::write(top.join(format!("d{dir}/f{file}")), format!("{dir} {file}")).unwrap();
        }
    }
}

#[test]
fn a_command_that_is_killed_leaves_before_or_after() {
    let place = Place::mounted("1G");
    make(&place.dir.join("base"));
    let mut pool = Pool { place, random: Random(7), micros: 0 };
    let begun = Instant::now();
    pool.ws("create w --from base").ok();
    pool.micros = begun.elapsed().as_micros() as u64;
    for round in 0..KILLS {
        created(&mut pool, round);
        checkpoints_and_undo(&mut pool);
        applied(&mut pool);
        promoted(&mut pool);
        discarded(&mut pool, round);
    }
    // No lock is left, and what is known is sound.
    pool.ws("gc --missing").ok();
    assert_eq!(pool.names(), ["w"]);
    pool.ws("discard w --force").ok();
    pool.place.remount();
    run(Command::new("sync").arg("-f").arg(&pool.place.dir));
    espalier(&["umount".as_ref(), pool.place.dir.as_os_str()]).ok();
    pool.place.fsck().ok();
}

fn created(pool: &mut Pool, round: u64) {
    let (name, base) = (format!("c{round}"), pool.read("base"));
    pool.kill(&format!("create {name} --from base"));
    let (is_listed, is_there) = (pool.names().contains(&name), pool.path(&name).exists());
    assert_eq!(is_listed, is_there, "{name}");
    if is_there {
        assert_eq!(pool.read(&name), base);
        pool.ws(&format!("create {name} --from base")).refused(1, &["exists"]);
    } else {
        // The name is free, and the place.
        pool.ws(&format!("create {name} --from base")).ok();
    }
    assert_eq!(pool.read(&name), base);
    pool.ws(&format!("discard {name}")).ok();
}

fn checkpoints_and_undo(pool: &mut Pool) {
    pool.kill("checkpoint w one");
    pool.ws("checkpoint w two").ok();
    let before = pool.read("w");
    pool.change("w");
    let after = pool.read("w");
    pool.kill("undo w");
    let found = pool.read("w");
    assert!(found == before || found == after);
    pool.ws("checkpoint w three").ok();
    pool.change("w");
    pool.ws("undo w").ok();
    assert_eq!(pool.read("w"), found);
}

fn applied(pool: &mut Pool) {
    pool.change("w");
    let (before, wanted) = (pool.read("base"), pool.read("w"));
    pool.kill("apply w --theirs");
    let found = pool.read("base");
    assert!(found == before || found == wanted, "apply left a mixture");
    assert_eq!(pool.read("w"), wanted);
    pool.ws("apply w --theirs").ok();
    assert_eq!(pool.read("base"), wanted);
}

fn promoted(pool: &mut Pool) {
    pool.change("w");
    let (base, w) = (pool.read("base"), pool.read("w"));
    pool.kill("promote w");
    assert_eq!(pool.names(), ["w"]);
    let found = (pool.read("base"), pool.read("w"));
    assert!(found == (base.clone(), w.clone()) || found == (w.clone(), base.clone()));
    if found.0 == w {
        pool.ws("promote w").ok();
    }
    assert_eq!((pool.read("base"), pool.read("w")), (base, w.clone()));
    pool.ws("apply w --theirs").ok();
    assert_eq!(pool.read("base"), w);
}

fn discarded(pool: &mut Pool, round: u64) {
    let name = format!("d{round}");
    pool.ws(&format!("create {name} --from base")).ok();
    let whole = pool.read(&name);
    pool.kill(&format!("discard {name}"));
    let (is_listed, is_there) = (pool.names().contains(&name), pool.path(&name).exists());
    assert_eq!(is_listed, is_there, "{name}");
    if is_there {
        assert_eq!(pool.read(&name), whole);
        pool.ws(&format!("discard {name}")).ok();
    }
    pool.ws(&format!("create {name} --from base")).ok();
    pool.ws(&format!("discard {name}")).ok();
}

/// Another command meanwhile, before each change that a command makes.
fn with_gc_meanwhile(pool: &Pool, words: &str, prepare: &str, is_there: bool) {
    for step in 0.. {
        if !prepare.is_empty() {
            pool.ws(prepare).ok();
        }
        let mut command = workspace_command(None, pool.place.dir.as_os_str(), words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut traced = Traced::start(&mut command);
        let reached = (0..=step).take_while(|_| traced.next_change()).count();
        pool.ws("gc --missing").ok();
        assert!(traced.finish().success(), "{words}, gc before change {step}");
        assert_eq!(pool.path("x").exists(), is_there, "{words}, gc before change {step}");
        assert_eq!(pool.names().len(), usize::from(is_there));
        if is_there {
            pool.ws("discard x").ok();
        }
        if reached <= step {
            assert!(step > 3, "{words}: {step} changes");
            return;
        }
    }
}

#[test]
fn gc_takes_nothing_away_that_a_command_works_on() {
    let place = Place::mounted("512M");
    make(&place.dir.join("base"));
    let pool = Pool { place, random: Random(7), micros: 0 };
    let create = format!("create x --from {}", pool.path("base").display());
    with_gc_meanwhile(&pool, &create, "", true);
    with_gc_meanwhile(&pool, "discard x", "create x --from base", false);
    assert_eq!(fs::read_dir(pool.path(".espalier-0/names")).unwrap().count(), 0);
    pool.place.remount();
}

/// A text of lines of which two, far from each other, are these.
fn text(first: &str, last: &str) -> String {
    format!("{first}\n1\n2\n3\n4\n{last}\n")
}

/// An apply of both sides' changes that is killed before change number `step` of its own; true if
/// it has that many. From then on the changes count as applied, or not, as the original has them.
fn killed_apply(pool: &UserPool, step: usize, words: &str) -> bool {
    let (path, new) = (pool.path("base/d/text"), format!("d/new{step}"));
    let write = |side: &str, first: &str, last: &str| {
        fs::write(pool.path(&format!("{side}/d/text")), text(first, last)).unwrap();
    };
    let (ours, theirs) = (format!("w{step}"), format!("b{step}"));
    write("w", &ours, "last");
    write("base", "first", &theirs);
    pool.sh(&format!(
        "cd w && echo new >{new} && chmod 7{}0 e && git commit -q --allow-empty -m {step}",
        step % 8
    ));
    let mut command = workspace_command(pool.user, pool.top.as_os_str(), words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut traced = Traced::start(&mut command);
    let reached = (0..=step).take_while(|_| traced.next_change()).count();
    traced.kill();
    let at = format!("{words}, killed before change {step}");
    if pool.path(&format!("base/{new}")).exists() {
        // What is changed in the original from now on is no conflict with what was applied.
        fs::write(&path, text("changed", "later")).unwrap();
        assert_eq!(pool.ws("diff w").ok(), "", "{at}");
        assert_eq!(pool.ws("apply w").ok(), "", "{at}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text("changed", "later"), "{at}");
        assert_eq!(pool.json("list")["workspaces"][0]["changed"], 0, "{at}");
        // The base has commits that the original has not.
        pool.ws("discard w").refused(1, &["commits that are nowhere else"]);
    } else {
        assert!(pool.ws("diff w").ok().contains(&new), "{at}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text("first", &theirs), "{at}");
        pool.ws(words).ok();
        assert_eq!(fs::read_to_string(&path).unwrap(), text(&ours, &theirs), "{at}");
        assert_eq!(pool.ws("diff w").ok(), "", "{at}");
    }
    // Both begin again with the same.
    write("w", "first", "last");
    pool.ws("apply w --theirs").ok();
    reached > step
}

/// Kills an apply with these words before each of its changes.
fn killed_applies(user: Option<u32>, words: &str, limit: bool) {
    let pool = UserPool::of(user);
    pool.sh("mkdir -p base/d base/e; touch base/d/text");
    fs::write(pool.path("base/d/text"), text("first", "last")).unwrap();
    let git = "git init -q; git config user.name a; git config user.email a@b";
    pool.sh(&format!("cd base; {git}; git add .; git commit -q -m first"));
    if limit {
        let words = ["quota", "set", "base", "--total", "64M"];
        run(pool.program(env!("CARGO_BIN_EXE_espalier")).args(words));
    }
    pool.ws("create w --from base").ok();
    let steps = (0..).take_while(|step| killed_apply(&pool, *step, words)).count();
    assert!(steps > 10, "{words}: {steps} steps");
    pool.place.remount();
}

#[test]
fn an_apply_that_is_killed_counts_as_applied_if_the_original_has_it() {
    killed_applies(None, "apply w --merge", false);
}

#[test]
fn an_apply_of_some_paths_that_is_killed_counts_as_applied_if_the_original_has_it() {
    killed_applies(Some(USER), "apply w d e --merge", true);
}
