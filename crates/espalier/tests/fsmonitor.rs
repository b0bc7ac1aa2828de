//! Git's `core.fsmonitor` hook answered by the mount: `git status` says with it what it says
//! without it, whatever happens to the work tree.

mod common;

use common::{Place, Ran, Random, as_user, espalier, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An ordinary user.
const USER: u32 = 4321;
const STEPS: usize = 24;

/// Work trees on a mount, by the hands of one user.
struct Trees {
    place: Place,
    top: PathBuf,
    user: Option<u32>,
    options: &'static [&'static str],
    random: Random,
    trees: Vec<String>,
}

impl Trees {
    fn new(seed: u64, user: Option<u32>, options: &'static [&'static str]) -> Self {
        let place = Place::with_image("1G");
        place.mount(options).ok();
        fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let top = place.dir.join("top");
        fs::create_dir(&top).unwrap();
        if let Some(user) = user {
            std::os::unix::fs::chown(&top, Some(user), Some(user)).unwrap();
        }
        Self { place, top, user, options, random: Random(seed), trees: vec!["base".into()] }
    }

    fn program(&self, program: &str, dir: &Path) -> Command {
        let mut command = as_user(self.user, program);
        command.current_dir(dir).env("HOME", &self.top).env("GIT_CONFIG_NOSYSTEM", "1").stdin(Stdio::null());
        command
    }

    /// A shell command in a work tree, which may fail. `espalier` is the program under test.
    fn try_sh(&self, tree: &str, text: &str) -> Ran {
        let text = format!("espalier() {{ '{}' \"$@\"; }}; {text}", env!("CARGO_BIN_EXE_espalier"));
        self.program("sh", &self.top.join(tree)).args(["-ec", &text]).output().unwrap().into()
    }

    #[track_caller]
    fn sh(&self, tree: &str, text: &str) -> String {
        self.try_sh(tree, text).ok()
    }

    fn repository(&self) {
        self.sh("", "git init -q -b main base; cd base; git config user.email a@b.c; git config user.name n; \
            for d in 1 2 3 4; do mkdir -p d$d/e; for f in 1 2 3 4 5; do echo $d$f >d$d/f$f; echo $f$d >d$d/e/g$f; done; done; \
            echo ignored >.gitignore; git add -A; git commit -qm 1; \
            git checkout -qb other; rm -r d1/e; echo other >d2/f1; echo new >d3/new; git add -A; git commit -qm 2; \
            git checkout -q main");
    }

    /// `git status` with and without the hook.
    #[track_caller]
    fn compare(&self, tree: &str, after: &str) {
        let with = self.sh(tree, "git status --porcelain");
        let without = self.sh(
            tree,
            "GIT_OPTIONAL_LOCKS=0 git -c core.fsmonitor=false -c core.untrackedCache=false status --porcelain",
        );
        assert_eq!(with, without, "{tree} after: {after}");
    }

    /// A path in a work tree, of a file or directory that git tracks or knows nothing of.
    fn path(&mut self) -> String {
        let path = ["d1", "d2/e", "d3", "d4", "d5", "d1/e"][self.random.below(6) as usize];
        match self.random.below(8) {
            0 => path.to_owned(),
            number => format!("{path}/{}{}", if path.ends_with('e') { 'g' } else { 'f' }, number),
        }
    }

    /// What a step does, as a shell command.
    fn step(&mut self) -> String {
        let (one, other) = (self.path(), self.path());
        let number = self.random.below(100_000);
        match self.random.below(20) {
            0..=3 => format!("echo {number} >>{one}"),
            4 => format!("rm -rf {one}"),
            5 => format!("mkdir -p {one} && echo {number} >{one}/in"),
            6 | 7 => format!("mv -T {one} {other}"),
            8 => format!("chmod {} {one}", ["755", "644", "700"][number as usize % 3]),
            9 => format!("ln {one} {other}; echo {number} >>{other}"),
            10 => format!("ln -f {one} ../outside; echo {number} >>../outside"),
            11 => format!("espalier clone -T {one} {other}"),
            12 => format!("espalier rm {one}"),
            13 => format!("ln -sfn target{number} {one}"),
            14 => format!(
                "python3 -c 'import mmap; f = open(\"{one}\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); \
                 m[0] = {}; m.flush()'",
                number % 256
            ),
            15 => "git add -A; git commit -qm step".into(),
            16 => "git checkout -qf other; rm -f d3/new".into(),
            17 => "git checkout -qf main; git reset -q --hard".into(),
            18 => "git stash -q -u; git stash pop -q".into(),
            _ => format!(
                "espalier snapshot create d2 s{number} && echo {number} >d2/x && espalier snapshot restore d2 s{number}"
            ),
        }
    }

    /// A step that concerns whole work trees.
    fn step_of_trees(&mut self) -> String {
        let tree = self.trees[self.random.below(self.trees.len() as u64) as usize].clone();
        let number = self.random.below(100_000);
        match self.random.below(6) {
            0 | 1 if self.trees.len() < 4 => {
                let name = format!("w{number}");
                self.sh("", &format!("espalier ws create {name} --from {tree}"));
                self.trees.push(name.clone());
                format!("ws create {name} --from {tree}")
            }
            2 => {
                self.place.umount().ok();
                self.place.mount(self.options).ok();
                "remount".into()
            }
            3 => {
                // What is not durable may be lost, git's own files too.
                self.sh("", "sync -f .");
                self.place.kill_server();
                self.place.mount(self.options).ok();
                "killed server".into()
            }
            4 if tree != "base" => {
                self.sh(
                    "",
                    &format!(
                        "espalier ws checkpoint {tree}; cd {tree}; echo {number} >d4/lost; git add -A; \
                    cd ..; espalier ws undo {tree}"
                    ),
                );
                format!("checkpoint and undo {tree}")
            }
            5 if tree != "base" => {
                let made = self.try_sh("", &format!("espalier ws promote {tree}"));
                format!("promote {tree}: {}", made.stderr)
            }
            _ => {
                self.sh("", &format!("mv {tree} moved; mv moved {tree}"));
                format!("mv {tree} away and back")
            }
        }
    }

    fn run(&mut self) {
        self.repository();
        // Creation sets the hook, in the original too.
        self.sh("", "espalier ws create w --from base");
        self.trees.push("w".into());
        self.trees.clone().iter().for_each(|tree| self.compare(tree, "creation"));
        let mut done = String::new();
        for step in 0..STEPS {
            if self.random.below(6) == 0 {
                done = format!("{done}; {}", self.step_of_trees());
            } else {
                let tree = self.trees[self.random.below(self.trees.len() as u64) as usize].clone();
                let text = self.step();
                // Much of it cannot be done.
                drop(self.try_sh(&tree, &text));
                done = format!("{done}; in {tree}: {text}");
            }
            if step % 3 == 2 {
                self.trees.clone().iter().for_each(|tree| self.compare(tree, &done));
                done.clear();
            }
        }
    }
}

fn run_all(first_seed: u64, user: Option<u32>, options: &'static [&'static str]) {
    let seeds: u64 = std::env::var("ESPALIER_SEEDS").map_or(1, |text| text.parse().expect("a number"));
    for seed in first_seed..first_seed + seeds {
        eprintln!("seed {seed}");
        Trees::new(seed, user, options).run();
    }
}

#[test]
fn status_is_the_same_with_and_without() {
    run_all(1, None, &[]);
}

#[test]
fn status_is_the_same_with_and_without_for_a_user() {
    run_all(100, Some(USER), &[]);
}

#[test]
fn status_is_the_same_with_and_without_on_the_classic_transport_with_writeback() {
    run_all(200, None, &["-o", "transport=classic,writeback"]);
}

#[test]
fn a_new_workspace_asks_for_no_names() {
    let trees = Trees::new(1, None, &[]);
    trees.sh("", "git init -q base; cd base; git config user.email a@b.c; git config user.name n; \
        for d in $(seq 40); do mkdir d$d; for f in $(seq 50); do echo $f >d$d/f$f; done; done; git add -A; git commit -qm 1");
    trees.sh("", "espalier ws create w1 --from base");
    // Tokens of the first second of a watch are not accepted.
    trees.sh(
        "base",
        "first=$(espalier fsmonitor 2 x | tr '\\0' ' '); \
         until said=$(espalier fsmonitor 2 \"${next:-${first%% *}}\" | tr '\\0' ' ') && next=${said%% *} && \
         [ \"${said#* }\" != '/ ' ]; do :; done; git status --porcelain",
    );
    let made = trees.try_sh("", "espalier ws create w2 --from base");
    assert!(made.stderr.contains("core.fsmonitor"), "{made:?}");
    let lookups = || {
        let said = espalier(&["info".as_ref(), "--json".as_ref(), trees.place.dir.as_os_str()]).ok();
        let info: serde_json::Value = serde_json::from_str(&said).unwrap();
        let requests = &info["mount"]["requests"];
        ["lookup", "getattr", "readdir", "readdirplus", "opendir"]
            .iter()
            .filter_map(|kind| requests[kind].as_u64())
            .sum::<u64>()
    };
    let before = lookups();
    assert_eq!(trees.sh("w2", "git status --porcelain"), "");
    let asked = lookups() - before;
    assert!(asked < 200, "{asked} questions for 2,000 files in 40 directories");
    fs::write(trees.top.join("w2/d7/f7"), "changed").unwrap();
    fs::write(trees.top.join("w2/d8/new"), "new").unwrap();
    assert_eq!(trees.sh("w2", "git status --porcelain"), " M d7/f7\n?? d8/new\n");
    assert_eq!(trees.sh("base", "git status --porcelain"), "");
    // Without git nothing is set.
    trees.sh("", "espalier ws create w3 --from base --no-git");
    let plain = trees.sh("", "git init -q plain; cd plain; espalier ws create p2 --from . --no-git --at ../p2; cat ../p2/.git/config");
    assert!(!plain.contains("fsmonitor"), "{plain}");
}

/// What git does in its own directory is noted for readers of other kinds; git has to look at the
/// whole work tree if it is told of it.
#[test]
fn git_s_own_directory_is_not_told() {
    let place = Place::mounted("1G");
    let dir = place.dir.join("d");
    fs::create_dir_all(dir.join(".git")).unwrap();
    let hook = |token: &str| -> Vec<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        let ran: Ran = command.args(["fsmonitor", "2", token]).current_dir(&dir).output().unwrap().into();
        ran.ok().trim_end_matches('\0').split('\0').map(str::to_owned).collect()
    };
    // Tokens of the first second of a watch are not accepted.
    let mut said = hook("none");
    while said[1..] == ["/"] {
        said = hook(&said[0]);
    }
    fs::write(dir.join(".git/index"), "1").unwrap();
    fs::write(dir.join("new"), "1").unwrap();
    assert_eq!(hook(&said[0])[1..], ["new"]);
}

#[test]
fn the_hook_is_refused_where_it_cannot_tell() {
    let place = Place::mounted("1G");
    let hook = |dir: &Path, words: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command.arg("fsmonitor").args(words).current_dir(dir).stdin(Stdio::null()).output().unwrap().into()
    };
    let dir = place.dir.join("d");
    fs::create_dir(&dir).unwrap();
    hook(&dir, &["1", "12345"]).refused(1, &["fsmonitorHookVersion"]);
    hook(place.base.path(), &["2", ""]).refused(1, &["Espalier"]);
    let said = hook(&dir, &["2", &"x".repeat(500)]).ok();
    assert!(said.starts_with("espalier:1:") && said.ends_with("\0/\0"), "{said:?}");
    // Any bytes but a slash and NUL may be in a name; what is mounted below is told each time.
    let token = said.split('\0').next().unwrap().to_owned();
    let next = hook(&dir, &["2", &token]).ok();
    assert!(next.ends_with("\0/\0"), "{next:?}");
    fs::create_dir(dir.join("mounted")).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(dir.join("mounted")));
    let told = hook(&dir, &["2", &token]);
    run(Command::new("umount").arg(dir.join("mounted")));
    assert!(told.ok().starts_with("espalier:1:"));
    // On a mount that is read-only there is nothing to tell.
    place.umount().ok();
    place.mount(&["-o", "ro"]).ok();
    hook(&dir, &["2", &token]).refused(1, &["ead-only"]);
}
