//! What commands that remove workspaces, or put something else in their place, leave alone: what is
//! mounted below them, what was their original, and what an undo set aside.

mod common;

use common::pool::{Pool, as_both};
use common::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that is mounted a second time, until this is dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(dir: &Path, at: &Path) -> Self {
        run(Command::new("mount").arg("--bind").args([dir, at]));
        Self(at.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Nothing is done, because something is mounted on `at`, and what is mounted is whole.
#[track_caller]
fn assert_mount_keeps(pool: &Pool, words: &str, at: &str) {
    let done = pool.ws(words);
    assert_eq!(fs::read_to_string(pool.path("outside/file")).ok().as_deref(), Some("precious\n"), "{words}");
    let named = format!("something is mounted on {},", pool.path(at).display());
    done.refused(1, &[&named, "nothing was changed"]);
}

/// Needs root, which mounts.
#[test]
fn a_mount_below_keeps_a_workspace_and_stays() {
    as_both(|pool| {
        pool.sh("mkdir -p base/remote outside; echo x >base/f; echo precious >outside/file");
        for words in ["create w", "create due --ttl 0s"] {
            pool.ws(&format!("{words} --from base")).ok();
        }
        pool.ws("checkpoint w").ok();
        // Of another user than an ordinary one: then both go entry by entry.
        for tree in ["w", "due"] {
            fs::write(pool.path(tree).join("of-root"), "").unwrap();
        }
        let below_due = Bound::new(&pool.path("outside"), &pool.path("due/remote"));
        for words in ["gc", "gc --dry-run"] {
            let said = pool.json(words)["collected"].to_string();
            assert_eq!(pool.sh("cat outside/file"), "precious\n", "{words}");
            assert!(said.contains("something is mounted on") && said.contains("due/remote"), "{said}");
        }
        assert_eq!(pool.names(), ["due", "w"]);
        drop(below_due);
        let below = Bound::new(&pool.path("outside"), &pool.path("w/remote"));
        for words in ["undo w", "undo w --force", "promote w", "promote w --force", "discard w --force"] {
            assert_mount_keeps(pool, words, "w/remote");
        }
        assert_eq!(pool.json("log w")["checkpoints"].as_array().map(Vec::len), Some(1));
        drop(below);
        let below = Bound::new(&pool.path("outside"), &pool.path("base/remote"));
        assert_mount_keeps(pool, "promote w --force", "base/remote");
        drop(below);
        fs::remove_file(pool.path("w/of-root")).unwrap();
        for words in ["undo w", "promote w", "promote w", "discard w"] {
            pool.ws(words).ok();
        }
    });
}

#[test]
fn what_was_the_original_outlives_the_time_and_the_program_of_its_workspace() {
    as_both(|pool| {
        pool.sh("mkdir base; echo base >base/f");
        pool.ws("create over --from base --ttl 0s").ok();
        pool.ws("create job --from base -- true").ok();
        pool.ws("create plain --from base").ok();
        // What was the original is as the workspace was made, so nothing is left to apply.
        let said = pool.json("promote job");
        assert_eq!((&said["kept_from_gc"], &said["name"]), (&true.into(), &"job".into()), "{said}");
        pool.sh("echo over >over/f");
        let said = pool.ws("promote over").ok();
        assert!(said.contains("gc does not remove it any more"), "{said}");
        pool.sh("echo late >over/new");
        pool.ws("gc").ok();
        assert_eq!(pool.names(), ["job", "over", "plain"]);
        assert_eq!(pool.sh("cat over/f over/new job/f"), "base\nlate\nbase\n");
        assert_eq!(pool.json("list")["workspaces"][1]["expires_unix_seconds"], serde_json::Value::Null);
        // It has neither any more, whatever is promoted again.
        for words in ["promote over", "promote plain"] {
            assert_eq!(pool.json(words)["kept_from_gc"], false, "{words}");
        }
    });
}

#[test]
fn what_an_undo_set_aside_keeps_a_workspace_until_all_is_applied() {
    as_both(|pool| {
        pool.sh("mkdir base; echo one >base/a; echo one >base/b");
        pool.ws("create w --from base -- true").ok();
        pool.ws("checkpoint w").ok();
        pool.sh("echo two >w/a");
        pool.ws("undo w").ok();
        assert_eq!(pool.ws("diff w").ok(), "");
        for _ in 0..2 {
            pool.ws("gc").ok();
            assert_eq!(pool.names(), ["w"]);
            pool.ws("discard w").refused(1, &["changed paths", "undo w 2", "--force"]);
            // So it is after other changes, of which a part is applied.
            pool.sh("echo two >w/b");
            pool.ws("apply w b").ok();
            assert_eq!(pool.ws("diff w").ok(), "");
        }
        // Brought back and applied, it is nowhere but in the original.
        pool.ws("undo w 2").ok();
        assert_eq!(pool.sh("cat w/a w/b"), "two\none\n");
        pool.ws("apply w").ok();
        assert_eq!(pool.sh("cat base/a base/b"), "two\none\n");
        pool.ws("gc").ok();
        assert_eq!(pool.names(), [""; 0]);
        // An undo of nothing sets nothing aside, and force goes on.
        pool.ws("create v --from base").ok();
        pool.ws("checkpoint v").ok();
        pool.ws("undo v").ok();
        pool.ws("discard v").ok();
        pool.ws("create v --from base").ok();
        pool.ws("checkpoint v").ok();
        pool.sh("rm v/a");
        pool.ws("undo v").ok();
        pool.ws("discard v").refused(1, &["an undo set aside"]);
        pool.ws("discard v --force").ok();
    });
}

#[test]
fn commits_that_an_undo_set_aside_keep_a_workspace() {
    as_both(|pool| {
        pool.sh("git init -q base; cd base; git config user.email a@b.c; git config user.name n; \
            git commit -q --allow-empty -m first");
        pool.ws("create w --from base").ok();
        pool.ws("checkpoint w").ok();
        pool.sh("git -C w commit -q --allow-empty -m 'set aside'");
        pool.ws("undo w").ok();
        assert_eq!(pool.sh("git -C w log --format=%s"), "first\n");
        pool.ws("discard w").refused(1, &["1 commits", "set aside", "--force"]);
        pool.ws("undo w").ok();
        pool.ws("discard w").refused(1, &["1 commits", "set aside"]);
        pool.sh("git -C base fetch -q ../w HEAD");
        pool.ws("discard w").ok();
    });
}
