//! Files with several names (hard links) in workspaces: names of one file stay such when changes
//! are applied.

mod common;

use common::pool::{Pool, as_both};
use common::run;
use std::process::Command;

/// Which paths of a tree lead to one file, a line for each file that has several; and what they
/// hold.
fn names(pool: &Pool, tree: &str) -> String {
    pool.sh(&format!(
        "cd {tree}; find . -type f -printf '%i %P\n' | sort -k 2 | \
         awk '{{ names[$1] = names[$1] \" \" $2; if (!($1 in first)) {{ first[$1] = ++count; file[count] = $1 }} }} \
         END {{ for (n = 1; n <= count; n++) print substr(names[file[n]], 2) }}' | \
         while read one more; do echo \"$one${{more:+ $more}}: $(cat $one)\"; done"
    ))
}

const TREE: &str = "mkdir -p base/d; cd base; echo one >a; ln a b; ln a d/c; echo two >x; ln x ../outside; echo three >y; \
    echo four >m; ln m n; seq 20 >text; ln text text2";

#[test]
fn names_of_one_file_are_such_after_an_apply() {
    as_both(|pool| {
        pool.sh(TREE);
        pool.ws("create w --from base").ok();
        // Written in place; replaced; new names of what stays, of what is written, and of what is
        // new, one in a new directory; a name that goes.
        pool.sh("cd w; echo 1 >>a; echo new >t; mv t m; mkdir e; ln y e/y; ln y y2; ln a e/a; echo five >e/f; ln e/f f; ln x x2");
        let before = pool.sh("stat -c '%i %Y' base/x base/y");
        let outside = pool.sh("cat outside; stat -c %i outside");
        assert_eq!(pool.ws("diff w").ok(), pool.ws("apply w --check").ok());
        pool.ws("apply w").ok();
        let expected = "a b d/c e/a: one 1\n".replace("one 1", "one\n1") + "e/f f: five\n";
        let expected = expected + "e/y y y2: three\nm: new\nn: four\ntext text2: ";
        let text = (1..=20).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let expected = format!("{expected}{text}\nx x2: two\n");
        assert_eq!(names(pool, "base"), expected);
        assert_eq!(names(pool, "w"), expected);
        // What got a name is the file that it was, also for a name outside.
        assert_eq!(pool.sh("stat -c '%i %Y' base/x base/y"), before);
        assert_eq!(pool.sh("cat outside; stat -c %i outside"), outside);
        assert_eq!(pool.sh("stat -c %h base/x"), "3\n");
        assert_eq!(pool.ws("diff w").ok(), "");
        assert_eq!(pool.ws("apply w").ok(), "");
        pool.sh("rm w/b w/e/a; rm -r w/e/y");
        pool.ws("apply w").ok();
        assert_eq!(names(pool, "base"), names(pool, "w"));
        assert_eq!(pool.sh("stat -c %h base/a base/y"), "2\n2\n", "no name is left elsewhere");
    });
}

#[test]
fn names_in_conflict_are_decided_path_by_path() {
    as_both(|pool| {
        pool.sh(TREE);
        pool.ws("create w --from base").ok();
        // The original has taken one of three names away, and changed what it leads to.
        pool.sh("cd w; echo w >>a; sed 1s/1/one/ text >t; cat t >text; rm t; echo w >>m");
        pool.sh("cd base; cp b t; echo b >>t; mv t b; printf 'more\n' | cat text - >t; cat t >text; rm t; chmod 700 m");
        let before = names(pool, "base");
        pool.ws("apply w").refused(1, &["! content  b", "! content  text", "text2", "nothing was changed"]);
        assert_eq!(names(pool, "base"), before);
        pool.ws("apply w --merge text text2").ok();
        assert!(pool.sh("stat -c %h base/text").starts_with('2'), "merged text is one file");
        assert_eq!(pool.sh("head -n 1 base/text; tail -n 1 base/text2"), "one\nmore\n");
        pool.ws("apply w --ours").ok();
        let found = names(pool, "base");
        assert!(found.starts_with("a d/c: one\nw\nb: one\nb\nm n: four\nw\n"), "{found}");
        // Content of one side, mode of the other, for both names.
        assert_eq!(pool.sh("stat -c %a base/m base/n"), "700\n700\n");
        pool.sh("cd w; echo again >>a");
        pool.ws("apply w --theirs").ok();
        assert!(names(pool, "base").starts_with("a b d/c: one\nw\nagain\n"), "{}", names(pool, "base"));
    });
}

#[test]
fn names_of_one_file_stay_in_a_tree_with_a_limit() {
    as_both(|pool| {
        pool.sh(TREE);
        pool.ws("create limited --from base --quota 100M").ok();
        pool.ws("create w --from limited").ok();
        pool.sh("cd w; echo 1 >>a; ln y y2; rm n; rm -r d; mkdir e; echo new >e/f; ln e/f f");
        pool.ws("apply w").ok();
        assert_eq!(names(pool, "limited"), names(pool, "w"));
        assert!(names(pool, "w").starts_with("a b: one\n1\ne/f f: new\n"), "{}", names(pool, "w"));
        // Parts of it; and nothing is left of what was staged.
        pool.sh("cd w; echo 2 >>a; echo 2 >>y");
        pool.ws("apply w a").ok();
        assert_eq!(pool.ws("diff w --name-only").ok(), "b\ny\ny2\n");
        pool.ws("apply w").ok();
        assert_eq!(names(pool, "limited"), names(pool, "w"));
        assert_eq!(pool.sh("ls -A limited"), pool.sh("ls -A w"));
        let info = pool.json("list");
        assert_eq!(info["workspaces"].as_array().map(Vec::len), Some(2));
        let mut show = Command::new(env!("CARGO_BIN_EXE_espalier"));
        let shown = run(show.args(["quota", "show"]).arg(pool.path("limited")));
        assert!(shown.contains("100 MiB"), "{shown}");
    });
}
