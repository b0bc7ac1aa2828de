//! The program as it is called.

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_espalier-bench")).args(words).output().unwrap()
}

#[test]
fn help_names_every_suite() {
    let out = run(&["--help"]);
    assert!(out.status.success());
    let help = String::from_utf8(out.stdout).unwrap();
    for suite in ["files", "subtrees", "workspaces", "curves", "objects", "paths"] {
        assert!(help.contains(suite), "{suite}");
    }
}

#[test]
fn a_suite_or_step_that_does_not_exist_is_an_error() {
    assert_eq!(run(&["all"]).status.code(), Some(2));
    let out = run(&["files", "--steps", "nothing"]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("nothing"));
}
