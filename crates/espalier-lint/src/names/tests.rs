use super::names;
use crate::workspace::Workspace;

fn found(path: &str, text: &str) -> Vec<usize> {
    let test = "#[test]\nfn what_was_synced_is_there() {}\nfn a_b() {}\n";
    let files = [(path, text), ("crates/x/tests/a.rs", test), ("docs/other.md", "nothing_of_this_is_code")];
    names(&Workspace::of(&files)).iter().map(|finding| finding.line).collect()
}

#[test]
fn names_of_tests_that_there_are_are_fine() {
    let text = "`what_was_synced_is_there` in `a.rs`\n`a_b`, `gone_too`\n`what_was_*`\n\
        none_of_these_stands_here\n```\n`a_name_in_a_block`\n```\n\
        `espalier_log_used_bytes`, `6573_7061_6c5f_6331`\n";
    assert_eq!(found("docs/a.md", text), Vec::<usize>::new());
}

#[test]
fn names_of_tests_that_are_gone_are_found() {
    let text = "`what_was_synced_is_there`, `what_was_synced_was_there`\n\n`nothing_of_this_is_code`\n";
    assert_eq!(found("docs/a.md", text), [1, 3]);
    assert_eq!(found("README.md", text), [1, 3]);
    assert_eq!(found("CHANGELOG.md", text), Vec::<usize>::new());
    assert_eq!(found("docs/benchmarks/2026.md", text), Vec::<usize>::new());
}
