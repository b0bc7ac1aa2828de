use super::text;
use crate::findings::Check;
use crate::workspace::Workspace;

fn found(path: &str, content: &str) -> Vec<(Check, usize)> {
    let findings = text(&Workspace::of(&[(path, content)]));
    findings.into_iter().map(|finding| (finding.check, finding.line)).collect()
}

#[test]
fn words_are_found_in_comments_literals_and_documents() {
    // lint: quotation
    let source = "//! Somebody reads.\nfn who() {} // fine\nlet him = \"is it he\";\n/// `who` and whole.\n";
    assert_eq!(found("crates/x/src/a.rs", source), [(Check::Word, 1), (Check::Word, 3)]);
    // lint: quotation
    assert_eq!(found("docs/a.md", "# Title\n\nThe reader, who\nreads `his`.\n"), [(Check::Word, 3)]);
    // lint: quotation
    assert_eq!(found("scripts/a", "# He\necho \"nobody\"\n"), [(Check::Word, 1), (Check::Word, 2)]);
    // lint: quotation
    assert_eq!(found("include/a.h", "/* a\n * whoever */\nint him;\n"), [(Check::Word, 2)]);
    // lint: quotation
    assert_eq!(found("a.rs", "f(\"\\nobody \\nhe\")"), [(Check::Word, 1)]);
}

#[test]
fn a_line_may_be_let_off() {
    // lint: quotation
    for line in ["People who mount. <!-- lint: people -->", "<!-- lint: quotation -->\nwho\n"] {
        assert_eq!(found("docs/a.md", line), [], "{line}");
    }
    // lint: quotation
    assert_eq!(found("docs/a.md", "<!-- lint: people -->\n\nwho\n"), [(Check::Word, 3)]);
}

#[test]
fn wide_comments_and_documents_are_found() {
    let (just, wide) = ("x ".repeat(48) + "x", "x ".repeat(49) + "x");
    assert_eq!(found("a.rs", &format!("// {just}\n")), []);
    assert_eq!(found("a.rs", &format!("\n// {wide}\n")), [(Check::Width, 2)]);
    assert_eq!(found("a.rs", &format!("f(\"{wide}{wide}\");\n")), []);
    assert_eq!(found("a.md", &format!("{wide} x\n")), [(Check::Width, 1)]);
    assert_eq!(found("scripts/a", &format!("# {wide}\n  {wide}\n")), [(Check::Width, 1)]);
}

#[test]
fn tables_quotations_and_addresses_may_be_wide() {
    let wide = "x ".repeat(60);
    let address = format!("- [a](https://example.org/{})\n", "x".repeat(90));
    assert_eq!(found("a.md", &format!("| {wide} |\n> {wide}\n{address}")), []);
    assert_eq!(found("a.md", &format!("{wide} https://example.org\n")), [(Check::Width, 1)]);
}
