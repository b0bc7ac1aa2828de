//! `espalier bench` as it is called; that the suites run is for `scripts/bench-quick`.

mod common;

use common::espalier;

#[test]
fn help_names_every_suite() {
    let help = espalier(&["bench", "suite", "--help"]).ok();
    for suite in ["files", "subtrees", "workspaces", "curves", "objects", "paths"] {
        assert!(help.contains(suite), "{suite}");
    }
}

#[test]
fn a_suite_or_step_that_does_not_exist_is_an_error() {
    espalier(&["bench", "suite", "all"]).refused(2, &["files"]);
    espalier(&["bench", "suite", "files", "--steps", "nothing"]).refused(1, &["nothing"]);
}

/// A directory may have any name.
#[test]
fn behind_options_of_the_comparison_there_are_only_directories() {
    espalier(&["bench", "--full", "suite"]).refused(1, &["suite cannot be used"]);
    espalier(&["bench", "./suite"]).refused(1, &["./suite cannot be used"]);
}
