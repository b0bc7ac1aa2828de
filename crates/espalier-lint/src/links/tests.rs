use super::{links, repeated_headings};
use crate::workspace::Workspace;

fn found(text: &str) -> Vec<usize> {
    let other = "# The title, and `more`\n\n## Same\n\n## Same\n```\n## Code\n```\n";
    let files = [
        ("docs/design/a.md", text),
        ("docs/b.md", other),
        ("README.md", "# R\n"),
        ("crates/x/src/lib.rs", ""),
    ];
    links(&Workspace::of(&files)).iter().map(|finding| finding.line).collect()
}

#[test]
fn links_that_lead_somewhere_are_fine() {
    let text = "# Here\n[a](../b.md) [b](../../README.md#r) [c](#here) [d](https://example.org/none)\n\
        [e](../b.md#the-title-and-more) [f](../b.md#same-1) [g](../../crates/x/) `[h](none.md)`\n\
        ```\n[i](none.md)\n```\n[k]: ../b.md\n";
    assert_eq!(found(text), Vec::<usize>::new());
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let text = "[a](b.md)\n[b](../b.md#none)\n[c](#none)\n[d](../../../up.md)\n[e](../b.md#code)\n[f]: none.md\n\
        <img src=\"none.svg\">\n";
    assert_eq!(found(text), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_heading_that_stands_twice_below_the_same_one_is_found() {
    let text = "# T\n## A\n### Sub\n## B\n### Sub\n## A\n```\n## B\n```\n### Sub\n";
    let workspace = Workspace::of(&[("docs/a.md", text)]);
    let lines: Vec<usize> = repeated_headings(&workspace).iter().map(|finding| finding.line).collect();
    assert_eq!(lines, [6, 10]);
}
