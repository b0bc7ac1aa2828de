//! Workspaces on a mount: the commands, as root and as an ordinary user.

mod common;

use common::pool::{Pool, as_both};
use common::{Ran, assert_same_tree, espalier, make_tree, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

const REPOSITORY: &str = "git init -q base; cd base; git config user.email a@b.c; git config user.name n; \
    mkdir -p src/deep; echo one > src/a; seq 100 > src/b; echo x > src/deep/c; printf 'ignored\\n' > .gitignore; \
    head -c 3000 /dev/zero > bin; git add .; git commit -qm 1; echo i > ignored; git update-index --refresh";

#[test]
fn the_life_of_a_workspace() {
    as_both(|pool| {
        pool.sh(REPOSITORY);
        let created = pool.json("create w --from base");
        assert_eq!(created["created"][0]["path"], pool.path("w").to_str().unwrap());
        assert!(created["created"][0]["git"][0].as_str().unwrap().contains("checkStat"), "{created}");
        assert_eq!(pool.sh("git -C w status --porcelain"), "");
        assert_eq!(pool.json("diff w")["changes"], Value::Array(vec![]), "git's setting is no change");
        pool.sh("cd w; echo two >> src/a; rm src/deep/c; mv bin moved; chmod 700 src/b; ln -s a src/l; echo j > ignored");
        let diff = pool.ws("diff w").ok();
        assert_eq!(diff, "~ ignored\n> bin -> moved\n~ src/a\n~ src/b\n- src/deep/c\n+ src/l\n");
        assert_eq!(pool.ws("diff w --name-only src/a src/deep").ok(), "src/a\nsrc/deep/c\n");
        assert!(pool.ws("diff w --stat").ok().contains("src/a"));
        let listed = pool.json("list");
        assert_eq!(
            (listed["workspaces"][0]["changed"].as_u64(), listed["workspaces"][0]["own_bytes"].is_u64()),
            (Some(6), true)
        );
        // What is small may lie in pieces with what belongs to others: then nothing is its own.
        pool.ws("create large --from base").ok();
        pool.sh("head -c 200000 /dev/urandom > large/new; sync large/new");
        let mut du = pool.program(env!("CARGO_BIN_EXE_espalier"));
        let told: Ran = du.args(["du", "--exclusive", "large"]).output().unwrap().into();
        let told = told.ok();
        assert!(told.contains("KiB"), "a user may ask, too: {told}");
        pool.ws("discard large --force").ok();
        let without_git =
            concat!("PATH=/nowhere ", env!("CARGO_BIN_EXE_espalier"), " ws diff w --patch 2>&1 || :");
        let told = pool.sh(without_git);
        assert!(told.contains("git is not installed"), "{told}");
        // The patch leads to the same, by git.
        pool.sh("cp -a base copy");
        let patch = pool.ws("diff w --patch").ok();
        fs::write(pool.path("patch"), patch).unwrap();
        pool.sh("cd copy; git apply ../patch; for f in src/a src/b moved ignored; do cmp $f ../w/$f; done; test ! -e bin; test ! -e src/deep/c; test -x src/b; test -L src/l");
        assert_eq!(pool.json("apply w --check")["done"], false);
        assert!(pool.path("base/bin").exists());
        let inode = pool.path("base/src").metadata().unwrap().ino();
        pool.ws("apply w").ok();
        assert_eq!(
            pool.path("base/src").metadata().unwrap().ino(),
            inode,
            "files are replaced, not directories"
        );
        pool.sh("cd base; for f in src/a src/b moved ignored; do cmp $f ../w/$f; done; test ! -e bin; test ! -e src/deep/c; test -d src/deep; test -x src/b; test -L src/l");
        assert_eq!(pool.json("diff w")["changes"], Value::Array(vec![]), "what was applied is the base");
        assert_eq!(pool.ws("apply w").ok(), "");
        pool.ws("discard w").ok();
        assert!(!pool.path("w").exists() && pool.names().is_empty());
        pool.ws("discard w").refused(1, &["no workspace 'w'"]);
    });
}

#[test]
fn what_version_control_keeps_for_itself_is_not_applied() {
    as_both(|pool| {
        pool.sh("mkdir -p base/.jj/repo; echo 1 > base/.jj/repo/op; echo 1 > base/f");
        pool.ws("create w --from base").ok();
        pool.sh("echo 2 > w/.jj/repo/op; echo 2 > w/f; echo 2 > base/.jj/working_copy");
        assert_eq!(pool.ws("diff w").ok(), "~ f\n");
        pool.ws("apply w").ok();
        assert_eq!(pool.sh("cat base/f base/.jj/repo/op base/.jj/working_copy"), "2\n1\n2\n");
    });
}

#[test]
fn a_new_directory_brings_its_repository_but_no_link_to_another_one() {
    as_both(|pool| {
        pool.sh("mkdir -p base; echo 1 > base/f");
        pool.ws("create w --from base").ok();
        pool.sh("mkdir -p w/new/whole w/new/linked; cd w/new; git init -q whole; echo x > whole/x; \
            echo 'gitdir: ../../.git/modules/linked' > linked/.git; echo y > linked/y; \
            mkdir -p whole/sub whole/.git/modules/sub; echo 'gitdir: ../.git/modules/sub' > whole/sub/.git");
        pool.ws("apply w").ok();
        let found = pool.sh("cd base/new; ls -A linked whole whole/sub; cat whole/x linked/y");
        assert_eq!(found, "linked:\ny\n\nwhole:\n.git\nsub\nx\n\nwhole/sub:\n.git\nx\ny\n");
    });
}

#[test]
fn a_side_that_wins_brings_back_nothing_that_only_the_other_one_removed() {
    as_both(|pool| {
        pool.sh("mkdir -p base/d/e; cd base; echo a > d/a; echo b > d/b; echo c > d/e/c; echo f > d/e/f");
        pool.ws("create w --from base").ok();
        pool.sh("echo w > w/d/a; echo w > w/d/e/c; mkdir w/d/new; echo n > w/d/new/n; rm -r base/d");
        pool.ws("apply w").refused(1, &["deletion"]);
        pool.ws("apply w --theirs").ok();
        assert_eq!(
            pool.sh("cd base; find . -type f | sort; cat d/a d/e/c"),
            "./d/a\n./d/e/c\n./d/new/n\nw\nw\n"
        );
    });
}

#[test]
fn a_file_that_may_only_be_read_is_merged() {
    as_both(|pool| {
        pool.sh("mkdir base; seq 20 > base/text; chmod 444 base/text");
        pool.ws("create w --from base").ok();
        pool.sh("sed -i 1s/1/one/ w/text; sed -i 20s/20/twenty/ base/text");
        pool.ws("apply w --merge").ok();
        assert_eq!(
            pool.sh("head -1 base/text; tail -1 base/text; stat -c %a base/text"),
            "one\ntwenty\n444\n"
        );
    });
}

#[test]
fn a_path_that_is_nowhere_is_refused() {
    as_both(|pool| {
        pool.sh("mkdir base; echo 1 > base/f; echo 1 > base/gone");
        pool.ws("create w --from base").ok();
        pool.sh("echo 2 > w/f; rm w/gone");
        for command in ["apply w typo", "diff w f typo"] {
            pool.ws(command).refused(1, &["typo", "there is no such path"]);
        }
        assert_eq!(pool.sh("cat base/f"), "1\n");
        assert_eq!(pool.ws("diff w gone").ok(), "- gone\n");
    });
}

#[test]
fn what_is_done_to_git_is_said_once_for_many_workspaces() {
    as_both(|pool| {
        pool.sh(REPOSITORY);
        let made = pool.ws("create w --from base --count 3");
        assert_eq!(made.stderr.matches("checkStat").count(), 1, "{}", made.stderr);
        assert_eq!(made.ok().lines().count(), 3);
    });
}

#[test]
fn conflicts_are_listed_and_nothing_is_changed() {
    as_both(|pool| {
        pool.sh("mkdir -p base/gone base/type; cd base; for f in content mode deleted renamed text; do seq 20 > $f; done; echo x > gone/x; echo y > type/y");
        pool.ws("create w --from base").ok();
        pool.sh("cd w; echo w >> content; chmod 600 mode; rm deleted; mv renamed elsewhere; sed -i 1s/1/one/ text; echo w > gone/new; rm -r type; echo file > type; echo both > made; echo ok > taken");
        pool.sh("cd base; echo t >> content; chmod 640 mode; echo t >> deleted; echo t >> renamed; sed -i 20s/20/twenty/ text; rm -r gone; echo t > type/z; echo BOTH > made");
        pool.sh("cp -a base before");
        let answer = pool.json("apply w");
        let kinds: Vec<(String, String)> = answer["conflicts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["path"].as_str().unwrap().to_owned(), c["kind"].as_str().unwrap().to_owned()))
            .collect();
        let expected = [
            ("content", "content"),
            ("deleted", "deletion"),
            ("gone/new", "deletion"),
            ("made", "content"),
            ("mode", "mode"),
            ("renamed", "rename"),
            ("text", "content"),
            ("type/z", "deletion"),
        ];
        assert_eq!(kinds, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_same_tree(&pool.path("before"), &pool.path("base"));
        pool.ws("apply w").refused(1, &["nothing was changed", "8 conflicts", "! mode     mode"]);
        // Paths.
        pool.ws("apply w taken").ok();
        assert_eq!(pool.sh("cat base/taken"), "ok\n");
        assert!(!pool.ws("diff w").ok().contains("taken"), "it is in the base");
        // Lines.
        pool.ws("apply w --merge text").ok();
        assert_eq!(pool.sh("head -1 base/text; tail -1 base/text"), "one\ntwenty\n");
        pool.ws("apply w --merge content").refused(1, &["content"]);
        // Sides.
        pool.ws("apply w --ours").ok();
        assert_eq!(
            pool.sh("cat base/made; tail -1 base/content; ls base/type"),
            "BOTH\nt\ny\nz\n".replace("y\n", "")
        );
        pool.ws("create v --from base").ok();
        pool.sh("cd v; echo v > made; rm -r type");
        pool.sh("cd base; echo b > made; echo more > type/more");
        pool.ws("apply v --theirs").ok();
        assert_eq!(pool.sh("cat base/made; test ! -e base/type"), "v\n");
    });
}

#[test]
fn checkpoints_are_gone_back_to_and_undo_is_undone() {
    as_both(|pool| {
        pool.sh("mkdir base; echo 1 > base/f; printf 'f\\n' > base/.gitignore");
        pool.ws("create w --from base").ok();
        pool.ws("undo w").refused(1, &["no checkpoint"]);
        assert_eq!(pool.ws("checkpoint w first").ok(), "1\n");
        pool.sh("cd w; echo 2 > f; mkdir d; echo x > d/x");
        assert_eq!(pool.ws("checkpoint w").ok(), "2\n");
        pool.sh("cd w; rm -r d");
        pool.ws("undo w 1").ok();
        assert_eq!(pool.sh("cat w/f; ls w"), "1\nf\n");
        pool.ws("undo w").ok();
        assert_eq!(pool.sh("cat w/f; ls w"), "2\nf\n", "what it was before");
        pool.ws("undo w 2").ok();
        assert_eq!(pool.sh("cat w/d/x"), "x\n");
        pool.ws("undo w 99").refused(1, &["no checkpoint 99"]);
        let log = pool.json("log w");
        assert_eq!(
            (log["checkpoints"].as_array().unwrap().len(), &log["checkpoints"][0]["message"]),
            (5, &Value::from("first"))
        );
        // It is a workspace still, after a remount too.
        pool.place.remount();
        assert_eq!(pool.names(), ["w"]);
        assert_eq!(pool.ws("diff w").ok(), "+ d\n+ d/x\n~ f\n");
    });
}

#[test]
fn a_workspace_becomes_the_original_and_back() {
    as_both(|pool| {
        pool.sh("mkdir base; echo base > base/f");
        pool.ws("create w --from base").ok();
        pool.sh("echo w > w/f");
        pool.ws("promote w").ok();
        assert_eq!(pool.sh("cat base/f w/f"), "w\nbase\n");
        assert_eq!(pool.names(), ["w"]);
        pool.ws("diff w").ok();
        pool.ws("promote w").ok();
        assert_eq!(pool.sh("cat base/f w/f"), "base\nw\n");
        assert_eq!(pool.ws("diff w").ok(), "~ f\n");
    });
}

#[test]
fn creation_merges_with_nothing_and_says_why() {
    as_both(|pool| {
        pool.sh("mkdir base there; echo x > base/f");
        pool.ws("create there --from base").refused(1, &["exists already"]);
        pool.ws("create ../x --from base").refused(1, &["cannot be the name"]);
        pool.ws("create w --from nowhere").refused(1, &["nowhere"]);
        pool.ws("create w --from base/f").refused(1, &["no directory"]);
        pool.ws("create w --from base --at /tmp/espalier-ws-nowhere").refused(1, &["different file systems"]);
        pool.ws("create w --from base").ok();
        pool.ws("create w --from base").refused(1, &["exists already"]);
        pool.ws("create w --from base --at other").refused(1, &["there is a workspace 'w' already"]);
        assert!(!pool.path("other").exists());
        pool.ws("create").refused(2, &["NAME"]);
        let many = pool.json("create m --from base --count 3 --at there/m");
        assert_eq!(many["created"].as_array().unwrap().len(), 3);
        assert_eq!(pool.sh("cat there/m-3/f"), "x\n");
        // Where workspaces are looked for is not where one is made.
        pool.ws("--in there create from-there --from m-1").ok();
        pool.ws("create from-here --from base --in there").ok();
        assert_eq!(pool.sh("cat there/from-there/f from-here/f; rm -r there/from-there from-here"), "x\nx\n");
        let mut elsewhere = pool.program(env!("CARGO_BIN_EXE_espalier"));
        elsewhere
            .current_dir("/")
            .args(["ws", "create", "named", "--from", "m-1", "--in"])
            .arg(pool.path("there"));
        run(&mut elsewhere);
        assert_eq!(pool.sh("cat there/named/f; rm -r there/named"), "x\n");
        // Of a workspace, and of a snapshot.
        pool.sh("echo changed > there/m-1/f");
        pool.ws("create again --from m-1").ok();
        assert_eq!(pool.sh("cat there/again/f"), "changed\n");
        pool.sh("echo once more > there/again/f");
        pool.ws("apply again").ok();
        assert_eq!(pool.sh("cat there/m-1/f base/f"), "once more\nx\n", "its original is the workspace");
        run(pool.program(env!("CARGO_BIN_EXE_espalier")).args(["snapshot", "create", "base", "monday"]));
        pool.sh("echo tuesday > base/f");
        pool.ws("create old --from base/.snapshots/monday").ok();
        assert_eq!(pool.sh("cat old/f"), "x\n");
        pool.ws("diff old").ok();
    });
}

#[test]
fn what_is_in_use_or_not_applied_stays() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x > base/f; cp /bin/sleep base/program");
        pool.ws("create w --from base").ok();
        pool.ws("checkpoint w").ok();
        let mut sleeper = pool.program("sleep").arg("1000").current_dir(pool.path("w")).spawn().unwrap();
        let pid = sleeper.id().to_string();
        pool.ws("discard w").refused(1, &["in use by", &pid]);
        pool.ws("undo w").refused(1, &["in use by", &pid]);
        let listed = pool.json("list");
        assert_eq!(listed["workspaces"][0]["processes"][0]["pid"].to_string(), pid);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // A program from it, and one that sees it at the original's path.
        let mut sleeper = pool.program(pool.path("w/program").to_str().unwrap()).arg("1000").spawn().unwrap();
        while pool.json("list")["workspaces"][0]["processes"].as_array().unwrap().is_empty() {
            std::thread::yield_now();
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let mut inside = pool.program(env!("CARGO_BIN_EXE_espalier"));
        inside.args(["ws", "exec", "w", "--", "sleep", "1000"]);
        let mut inside = inside.spawn().unwrap();
        while pool.json("list")["workspaces"][0]["processes"].as_array().unwrap().is_empty() {
            std::thread::yield_now();
        }
        inside.kill().unwrap();
        inside.wait().unwrap();
        pool.sh("echo y > w/f");
        pool.ws("discard w").refused(1, &["1 changed paths", "--force"]);
        assert!(pool.path("w/f").exists());
        pool.ws("discard --force w").ok();
        assert!(pool.names().is_empty());
    });
}

/// Needs root, which mounts something over `/proc`, for the commands alone.
#[test]
fn without_proc_nothing_is_removed() {
    let pool = Pool::of(None);
    pool.sh("mkdir base; echo x > base/f");
    pool.ws("create w --from base").ok();
    pool.ws("create over --from base --ttl 0s").ok();
    pool.ws("checkpoint w").ok();
    let mut worker = pool.program("sleep").arg("1000").current_dir(pool.path("w")).spawn().unwrap();
    let mut job = pool.program(env!("CARGO_BIN_EXE_espalier"));
    job.args(["ws", "create", "job", "--from", "base", "--", "sleep", "1000"]).stdout(Stdio::null());
    let mut job = job.spawn().unwrap();
    while !pool.names().contains(&"job".to_owned()) {
        std::thread::yield_now();
    }
    let script = "mount -t tmpfs none /proc && exec \"$0\" workspace \"$@\"";
    for words in ["discard w", "discard --force w", "undo w", "promote w", "gc", "list", "diff w", "apply w"]
    {
        let mut command = pool.program("unshare");
        command.args(["--mount", "sh", "-ec", script, env!("CARGO_BIN_EXE_espalier")]).args(words.split(' '));
        Ran::from(command.output().unwrap()).refused(1, &["/proc is not mounted"]);
        assert_eq!(pool.names(), ["job", "over", "w"], "{words}");
    }
    for process in [&mut worker, &mut job] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    pool.ws("gc").ok();
    assert_eq!(pool.names(), ["w"]);
    pool.ws("discard w").ok();
    pool.place.remount();
}

#[test]
fn a_workspace_whose_commits_are_nowhere_else_is_kept() {
    as_both(|pool| {
        pool.sh(REPOSITORY);
        pool.ws("create w --from base").ok();
        pool.sh(
            "cd w; git checkout -q -b fix; echo two >src/a; git commit -qam 'the fix'; git checkout -q -; \
            git stash list",
        );
        // The work tree is as it was; only .git holds what is new.
        assert_eq!(pool.json("diff w")["changes"].as_array().map(Vec::len), Some(0));
        pool.ws("discard w").refused(1, &["1 commits", "the fix", "--force"]);
        pool.sh("git -C base fetch -q ../w fix:fix");
        pool.ws("discard w").ok();
        // A stash; a commit after what was applied; one that is pushed.
        pool.ws("create s --from base").ok();
        pool.sh("cd s; echo three >src/a; git stash -q");
        pool.ws("discard s").refused(1, &["nowhere else", "--force"]);
        pool.ws("discard s --force").ok();
        pool.ws("create a --from base").ok();
        pool.sh("cd a; echo four >src/a; git commit -qam 'was applied'");
        pool.ws("apply a").ok();
        pool.ws("discard a").refused(1, &["1 commits", "was applied"]);
        pool.sh("git init -q --bare remote; cd a; git remote add r ../remote; git push -q r HEAD:main");
        pool.ws("discard a").ok();
        // Nothing was committed, and a repository without commits.
        pool.ws("create n --from base").ok();
        pool.sh("git -C n status; git -C n checkout -q -b other");
        pool.ws("discard n").ok();
        pool.sh("git init -q empty; echo f >empty/f");
        pool.ws("create e --from empty").ok();
        pool.sh("git -C e add f");
        pool.ws("discard e").ok();
    });
}

#[test]
fn programs_see_the_workspace_at_the_originals_path() {
    as_both(|pool| {
        pool.sh("mkdir -p base/sub; echo base > base/sub/f");
        pool.ws("create w --from base").ok();
        pool.sh("echo w > w/sub/f");
        let mut command = pool.program(env!("CARGO_BIN_EXE_espalier"));
        let text = format!("cat {}; pwd; id -u; echo made > made; exit 7", pool.path("base/sub/f").display());
        command.current_dir(pool.path("w/sub")).args(["ws", "exec", ".", "--", "sh", "-c", &text]);
        let ran: Ran = command.output().unwrap().into();
        let uid = pool.user.unwrap_or(0);
        assert_eq!(ran.stdout, format!("w\n{}\n{uid}\n", pool.path("base/sub").display()));
        assert_eq!(ran.code, Some(7));
        assert_eq!(pool.sh("cat w/sub/made base/sub/f; test ! -e base/sub/made"), "made\nbase\n");
    });
}

#[test]
fn workspaces_are_found_after_moves_and_not_after_removal() {
    as_both(|pool| {
        pool.sh("mkdir base work; echo x > base/f");
        for name in ["a", "b", "c"] {
            pool.ws(&format!("create {name} --from base --at work/{name}")).ok();
        }
        pool.sh("mv work/a work/renamed; rm -rf work/b; mv work/c c; cp -a c copy");
        assert_eq!(pool.names(), ["a"], "c is where no other workspace is");
        assert_eq!(pool.ws("diff c/f").ok(), "", "its path leads to it");
        assert_eq!(pool.names(), ["a", "c"]);
        pool.ws("diff copy").refused(1, &["no workspace"]);
        // Above all of it, and at another place.
        pool.place.umount().ok();
        let other = pool.place.path("other");
        fs::create_dir(&other).unwrap();
        espalier(&["mount".as_ref(), pool.place.image.as_os_str(), other.as_os_str()]).ok();
        let mut command = pool.program(env!("CARGO_BIN_EXE_espalier"));
        command.current_dir(other.join("top")).args(["ws", "list"]);
        let listed: Ran = command.output().unwrap().into();
        espalier(&["umount".as_ref(), other.as_os_str()]).ok();
        pool.place.mount(&[]).ok();
        assert_eq!(listed.ok().lines().count(), 3);
        // What is known of b is kept for a while, or goes when that is said.
        assert_eq!(pool.ws("gc").ok(), "");
        assert!(pool.ws("gc --missing --dry-run").ok().contains("would remove b"));
        assert!(pool.ws("gc --missing").ok().contains("removed b"));
        assert_eq!(pool.ws("gc --missing").ok(), "");
        assert_eq!(pool.names(), ["a", "c"]);
    });
}

#[test]
fn a_name_is_taken_by_one_workspace_until_it_is_gone() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x > base/f");
        pool.ws("create w --from base").ok();
        // For root the home lies in the root of the mount.
        let home = pool.sh("ls -d .espalier-* ../.espalier-* 2>/dev/null || true").trim().to_owned();
        let links = || pool.sh(&format!("ls -A {home}/names")).lines().count();
        pool.ws("create w --from base --at other").refused(1, &["there is a workspace 'w' already"]);
        assert!(!pool.path("other").exists());
        // Moved, it keeps its name; removed by rm, it does not; nor do links that lead nowhere.
        pool.sh("mv w moved");
        pool.ws("create w --from base --at other").refused(1, &["there is a workspace 'w' already"]);
        pool.sh("rm -rf moved");
        pool.ws("create w --from base").ok();
        assert_eq!(pool.ws("diff w").ok(), "");
        pool.sh(&format!("rm -rf w {home}/[0-9a-f]*[0-9]*"));
        assert_eq!(links(), 1);
        pool.ws("create w --from base").ok();
        pool.ws("create x --from base").ok();
        pool.ws("discard w").ok();
        assert_eq!((pool.names(), links()), (vec!["x".to_owned()], 1));
        // Without the links all is found as well.
        pool.sh(&format!("rm -rf {home}/names"));
        assert_eq!(pool.ws("diff x").ok(), "");
        pool.ws("discard x").ok();
        pool.ws("create x --from base").ok();
        // Of many that ask for a name at once, one gets it.
        let race = "for n in 1 2 3 4 5 6; do espalier ws create race --from base --at r$n & done; wait";
        for _ in 0..5 {
            pool.sh(&race.replace("espalier", env!("CARGO_BIN_EXE_espalier")));
            assert_eq!(pool.names().iter().filter(|name| *name == "race").count(), 1);
        }
        assert_eq!(
            pool.sh("ls -d r*"),
            pool.json("list")["workspaces"][0]["path"]
                .as_str()
                .map(|path| format!("{}\n", path.rsplit('/').next().unwrap()))
                .unwrap()
        );
    });
}

#[test]
fn time_and_programs_end_workspaces() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x > base/f");
        pool.ws("create over --from base --ttl 0s").ok();
        pool.ws("create later --from base --ttl 7d").ok();
        pool.ws("create job --from base -- true").ok();
        assert_eq!(pool.ws("create failed --from base -- sh -c exit\t3").code, Some(3));
        pool.ws("create changed --from base -- touch new").ok();
        pool.sh("echo y > over/f");
        let plan = pool.ws("gc --dry-run").ok();
        assert_eq!(plan.lines().count(), 3, "{plan}");
        assert_eq!(pool.names().len(), 5);
        pool.ws("gc").ok();
        assert_eq!(pool.names(), ["changed", "later"]);
    });
}

#[test]
fn linked_worktrees_and_submodules_become_the_workspaces_own() {
    as_both(|pool| {
        pool.sh(REPOSITORY);
        pool.sh("git -C base worktree add -q ../tree -b other; git init -q sub; cd sub; git config user.email a@b.c; git config user.name n; echo s > s; git add .; git commit -qm s; cd ../base; git -c protocol.file.allow=always submodule --quiet add ../sub lib; git commit -qm sub");
        pool.ws("create linked --from tree").ok();
        pool.sh("cd linked; echo more >> src/a; git add .; git -c user.email=a@b.c -c user.name=n commit -qm linked");
        assert_eq!(pool.sh("git -C tree status --porcelain"), "", "its index is its own");
        assert_ne!(pool.sh("git -C linked rev-parse HEAD"), pool.sh("git -C tree rev-parse HEAD"));
        assert_eq!(pool.sh("git -C base worktree list | wc -l"), "3\n");
        pool.ws("create w --from base").ok();
        pool.sh("cd w/lib; echo more >> s; git -c user.email=a@b.c -c user.name=n commit -qam more");
        assert_eq!(pool.sh("git -C base status --porcelain"), "", "its submodule is its own");
        assert_eq!(pool.sh("git -C w worktree list | wc -l"), "1\n");
        let note = pool.json("create plain --from base --no-git");
        assert_eq!(note["created"][0]["git"], Value::Array(vec![]));
    });
}

#[test]
fn what_an_apply_brings_is_all_there_with_attributes() {
    let pool = Pool::of(None);
    make_tree(&pool.path("base"), 5, 120);
    pool.ws("create w --from base").ok();
    make_tree(&pool.path("w/new"), 6, 150);
    symlink("nowhere", pool.path("w/link")).unwrap();
    pool.sh("cd w; mkfifo pipe; chown -h 77:88 link; mkdir -m 1770 dir; setfattr -n user.x -v y dir; chmod 2750 .; chmod 700 new");
    pool.ws("apply w").ok();
    let differences = run(Command::new("rsync")
        .args(["-aAXSnicO", "--no-t", "--delete", "--no-inc-recursive", "--exclude=/.espalier*"])
        .arg(pool.path("w/."))
        .arg(pool.path("base/.")));
    let differences: Vec<&str> = differences.lines().filter(|line| !line.ends_with(" ./")).collect();
    assert_eq!(differences, [""; 0]);
    assert!(Path::new(&pool.path("base/pipe")).symlink_metadata().is_ok());
    pool.place.remount();
}
