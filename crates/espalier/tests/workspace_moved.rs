//! Workspaces and originals that were moved, removed, restored: what is known of them is right
//! afterwards.

mod common;

use common::pool::{Pool, as_both};
use common::{Ran, espalier, run};
use std::fs;
use std::process::{Command, Stdio};

const REPOSITORY: &str = "git init -q base; cd base; git config user.email a@b.c; git config user.name n; \
    for n in 1 2 3; do echo $n >f$n; done; git add .; git commit -qm 1";

/// Every command about workspace `w`, named so, which lies at `place`, with `original`.
#[track_caller]
fn all_commands(pool: &Pool, name: &str, place: &str, original: &str) {
    let listed = pool.json("list");
    let known = listed["workspaces"].as_array().unwrap().iter().find(|one| one["name"] == "w").unwrap();
    assert_eq!(known["path"], pool.path(place).to_str().unwrap());
    pool.ws(&format!("checkpoint {name}")).ok();
    pool.sh(&format!("echo more >>{place}/f1; echo new >{place}/new"));
    assert_eq!(pool.ws(&format!("diff {name}")).ok(), "~ f1\n+ new\n");
    let status = |tree: &str| {
        let told = pool.sh(&format!("git -C {tree} status --porcelain"));
        let asked = "GIT_OPTIONAL_LOCKS=0 git -c core.fsmonitor=false -c core.untrackedCache=false";
        assert_eq!(told, pool.sh(&format!("{asked} -C {tree} status --porcelain")), "{tree}");
    };
    [place, original].into_iter().for_each(status);
    pool.ws(&format!("undo {name}")).ok();
    assert_eq!(pool.ws(&format!("diff {name}")).ok(), "");
    pool.ws(&format!("undo {name}")).ok();
    pool.ws(&format!("apply {name}")).ok();
    assert_eq!(pool.sh(&format!("tail -n 1 {original}/f1; cat {original}/new")), "more\nnew\n");
    let seen = pool.path(original);
    let see = format!("exec {name} -- cat {}/f1", seen.display());
    assert_eq!(pool.ws(&see).ok(), pool.sh(&format!("cat {place}/f1")));
    pool.sh(&format!("echo once >>{place}/f2"));
    pool.ws(&format!("promote {name}")).ok();
    assert_eq!(pool.sh(&format!("tail -n 1 {original}/f2")), "once\n");
    pool.ws(&format!("promote {name}")).ok();
    pool.sh(&format!("cd {place}; git checkout -q f2; rm new; git checkout -q f1"));
    pool.ws(&format!("apply {name}")).ok();
    [place, original].into_iter().for_each(status);
    assert_eq!(pool.ws(&format!("diff {name}")).ok(), "");
}

#[test]
fn what_was_moved_is_found_by_every_command() {
    as_both(|pool| {
        pool.sh(REPOSITORY);
        pool.ws("create w --from base").ok();
        all_commands(pool, "w", "w", "base");
        pool.sh("mv w v");
        all_commands(pool, "w", "v", "base");
        pool.sh("mv base trunk");
        all_commands(pool, "w", "v", "trunk");
        // Both, and with a remount.
        pool.sh("mkdir deep; mv v deep/v; mv trunk deep/trunk");
        pool.place.remount();
        assert_eq!(pool.ws("diff deep/v").ok(), "");
        all_commands(pool, "deep/v", "deep/v", "deep/trunk");
        all_commands(pool, "w", "deep/v", "deep/trunk");
        // Where it is not looked for it has to be named, once.
        pool.sh("mkdir -p far/away; mv deep/trunk far/away/base");
        pool.ws("apply w").refused(1, &["the original", "--to DIR"]);
        pool.ws("promote w").refused(1, &["the original", "--to DIR"]);
        pool.ws("apply w --check --to far/away/base").ok();
        all_commands(pool, "w", "deep/v", "far/away/base");
        // What takes the place of the original is the original.
        pool.sh("mv far/away/base far/away/old; cp -a far/away/old far/away/base");
        all_commands(pool, "w", "deep/v", "far/away/base");
        pool.ws("discard w").ok();
        assert!(pool.names().is_empty() && !pool.path("deep/v").exists());
    });
}

#[test]
fn an_original_that_is_a_workspace_is_found_after_undo_and_move() {
    as_both(|pool| {
        pool.sh("mkdir base there; echo x >base/f");
        pool.ws("create one --from base").ok();
        pool.ws("create two --from one").ok();
        pool.ws("checkpoint one").ok();
        pool.ws("undo one").ok();
        pool.sh("echo y >two/g; mv one there/one");
        pool.ws("diff there/one").ok();
        pool.ws("apply two").ok();
        assert_eq!(pool.sh("cat there/one/g; ls base"), "y\nf\n");
        pool.ws("discard two").ok();
    });
}

#[test]
fn what_is_known_outlives_a_crash() {
    as_both(|pool| {
        pool.sh("mkdir base; echo x >base/f");
        pool.ws("create kept --from base --ttl 7d").ok();
        pool.ws("checkpoint kept first").ok();
        pool.sh("echo y >kept/f; sync -f .");
        pool.ws("create late --from base").ok();
        pool.sh("rm -rf late; echo z >kept/g");
        pool.place.kill_server();
        pool.place.mount(&[]).ok();
        let names = pool.names();
        assert!(names == ["kept"] || names == ["kept", "late"], "{names:?}");
        for name in &names {
            pool.ws(&format!("diff {name}")).ok();
        }
        let list = pool.json("list");
        assert!(list["workspaces"][0]["expires_unix_seconds"].is_u64(), "{list}");
        assert_eq!(list["workspaces"][0]["checkpoints"], 1);
        assert!(pool.ws("diff kept").ok().starts_with("~ f\n"));
        pool.ws("undo kept").ok();
        assert_eq!(pool.sh("cat kept/f"), "x\n");
    });
}

#[test]
fn what_is_known_is_copied_out_by_salvage_and_put_back() {
    as_both(|pool| {
        pool.sh("mkdir base work; echo x >base/f; mkdir base/d; echo y >base/d/g");
        pool.ws("create w --from base --at work/w").ok();
        pool.ws("checkpoint w first").ok();
        pool.sh("echo changed >work/w/f; cp -a work/w copy");
        pool.ws("create removed --from base").ok();
        pool.sh("rm -rf removed");
        pool.place.umount().ok();
        // To another file system on which the numbers are others.
        let (image, dir) = (pool.place.path("other.img"), pool.place.path("other"));
        fs::create_dir(&dir).unwrap();
        espalier(&["mkfs".as_ref(), "--size".as_ref(), "1G".as_ref(), image.as_os_str()]).ok();
        espalier(&["mount".as_ref(), image.as_os_str(), dir.as_os_str()]).ok();
        run(Command::new("touch").args(["1", "2", "3"].map(|name| dir.join(name))));
        let rescued = dir.join("rescued");
        espalier(&["salvage".as_ref(), pool.place.image.as_os_str(), rescued.as_os_str()]).ok();
        let top = rescued.join("top");
        let ws = |words: &str| -> Ran {
            let mut command = pool.program(env!("CARGO_BIN_EXE_espalier"));
            command.current_dir(&top).arg("ws").args(words.split(' ')).stdin(Stdio::null());
            command.output().unwrap().into()
        };
        let listed = ws("list").ok();
        let (diff, copy) = (ws("diff w"), ws("diff copy"));
        let (undone, applied) = (ws("undo w"), ws("apply w"));
        let again = (ws("undo w"), ws("apply w"));
        let base = fs::read_to_string(top.join("base/f")).unwrap();
        espalier(&["umount".as_ref(), dir.as_os_str()]).ok();
        pool.place.mount(&[]).ok();
        assert_eq!(listed.lines().count(), 2, "{listed}");
        assert_eq!(diff.ok(), "~ f\n");
        copy.refused(1, &["no workspace"]);
        assert_eq!((undone.code, applied.ok()), (Some(0), String::new()));
        assert_eq!((again.0.code, again.1.ok(), &*base), (Some(0), "~ f\n".to_owned(), "changed\n"));
    });
}

#[test]
fn a_workspace_in_a_directory_that_was_restored_is_found() {
    as_both(|pool| {
        pool.sh("mkdir base work; echo x >base/f");
        pool.ws("create w --from base --at work/w").ok();
        let snapshot = |what: &str| {
            let words = ["snapshot", what, "work", "then"];
            run(pool.program(env!("CARGO_BIN_EXE_espalier")).current_dir(&pool.top).args(words));
        };
        snapshot("create");
        let number = pool.sh("stat -c %i work/w");
        pool.sh("echo y >work/w/f");
        snapshot("restore");
        // Its number is another one, and no other user can have put it there.
        assert_ne!(pool.sh("stat -c %i work/w"), number);
        assert_eq!(pool.ws("diff w").ok(), "");
        pool.sh("echo z >work/w/f");
        pool.ws("apply w").ok();
        pool.ws("discard w").ok();
        assert_eq!(pool.sh("cat base/f; ls work"), "z\n");
    });
}

#[test]
fn a_forged_workspace_in_a_directory_of_all_is_left_alone() {
    let pool = Pool::of(None);
    pool.sh("mkdir -m 1777 shared; mkdir base; echo x >base/f");
    pool.ws("create w --from base --at shared/w --ttl 0s").ok();
    pool.ws("checkpoint w").ok();
    // As another user would do it without the sticky bit, with the same attributes.
    pool.sh("chmod 777 shared; mkdir -p far/away; mv shared/w far/away; cp -a far/away/w shared/w; \
        echo precious >shared/w/g");
    for words in ["discard w --force", "apply w", "undo w", "promote w", "discard shared/w --force"] {
        pool.ws(words).refused(1, &["no workspace"]);
    }
    let kept = pool.ws("gc").ok();
    assert!(kept.contains("a copy of it is at its place"), "{kept}");
    assert_eq!(pool.sh("cat shared/w/g; ls base far/away"), "precious\nbase:\nf\n\nfar/away:\nw\n");
    // Named by its path, it is found.
    pool.ws("discard far/away/w").ok();
    assert_eq!(pool.sh("ls shared far/away"), "far/away:\n\nshared:\nw\n");
}
