use super::functions;
use crate::findings::Check;
use crate::workspace::Workspace;

fn found(path: &str, source: &str) -> Vec<(Check, usize)> {
    let workspace = Workspace::of(&[(path, source)]);
    let findings = functions(&workspace).expect("the source parses");
    findings.into_iter().map(|finding| (finding.check, finding.line)).collect()
}

/// A function of so many lines.
fn long(lines: usize) -> String {
    format!("/// Doc.\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
}

#[test]
fn a_long_function_is_found() {
    assert_eq!(found("crates/x/src/a.rs", &long(70)), []);
    assert_eq!(found("crates/x/src/a.rs", &long(71)), [(Check::Length, 2)]);
    let method = format!("struct S;\nimpl S {{\n{}}}\ntrait T {{\n{}}}\n", long(71), long(72));
    assert_eq!(found("crates/x/src/a.rs", &method), [(Check::Length, 4), (Check::Length, 78)]);
}

#[test]
fn a_long_test_is_not() {
    assert_eq!(found("crates/x/tests/a.rs", &long(71)), []);
    assert_eq!(found("crates/x/src/a/tests/b.rs", &long(71)), []);
    let inline = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", long(71));
    assert_eq!(found("crates/x/src/a.rs", &inline), []);
}

#[test]
fn many_parameters_are_found() {
    assert_eq!(found("crates/x/src/a.rs", "fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8) {}"), []);
    let method = "struct S; impl S {\nfn f(&self, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) {} }";
    assert_eq!(found("crates/x/src/a.rs", method), [(Check::Parameters, 2)]);
}

#[test]
fn deep_nesting_is_found() {
    let five = "fn f() { if a { for b in c { while d { loop { match e { _ => {} } } } } } }";
    assert_eq!(found("crates/x/src/a.rs", five), []);
    let six = "fn f() { if a { for b in c { while d { loop { match e { _ => g(|| { h() }) } } } } } }";
    assert_eq!(found("crates/x/src/a.rs", six), [(Check::Nesting, 1)]);
    let chain = "fn f() { if a {} else if b {} else if c {} else if d {} else if e {} else if g {} else {} }";
    assert_eq!(found("crates/x/src/a.rs", chain), []);
}
