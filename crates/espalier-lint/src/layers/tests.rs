use super::{Layers, Structure, structure};
use crate::findings::Check;
use crate::modules::Crate;
use crate::workspace::Workspace;

fn look(files: &[(&str, &str)]) -> Structure {
    let workspace = Workspace::of(files);
    let modules = Crate::read(&workspace, "crates/x").expect("the files parse");
    structure(&modules, Layers::read(&workspace, "crates/x").as_ref())
}

fn found(structure: &Structure, check: Check) -> Vec<String> {
    let of_check = structure.findings.iter().filter(|finding| finding.check == check);
    of_check.map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
}

const ROOT: (&str, &str) =
    ("crates/x/src/lib.rs", "mod high; mod low; pub use high::High; pub use low::Low;");
const LAYERS: (&str, &str) = ("crates/x/layers.txt", "# From the top.\nhigh # comment\nlow\n");

#[test]
fn downward_uses_are_fine() {
    let high = ("crates/x/src/high.rs", "use crate::low::Low;\npub struct High(Low);");
    let structure = look(&[ROOT, LAYERS, high, ("crates/x/src/low.rs", "pub struct Low;")]);
    assert_eq!(structure.findings, []);
    assert_eq!((structure.arrows, structure.upward, structure.files_in_circles), (1, 0, 0));
}

#[test]
fn an_upward_use_is_found_however_it_is_written() {
    let high = ("crates/x/src/high.rs", "pub struct High; pub fn f() {} pub mod inner { pub fn g() {} }");
    for low in [
        "\nuse crate::high::High;",
        "\nuse crate::{high::{self, High as H}};",
        "\nfn f() { crate::high::f() }",
        "\nfn f() { super::high::inner::g() }",
        "\nuse super::high::*;",
        // Through the name that the root publishes.
        "\nuse crate::High;",
        "\nfn f() { println!(\"{:?}\", (crate::high::f(), 1)); }",
        "\nmod inline { fn f() { let _: Option<super::super::high::High> = None; } }",
    ] {
        let structure = look(&[ROOT, LAYERS, high, ("crates/x/src/low.rs", low)]);
        assert_eq!(found(&structure, Check::Upward), ["crates/x/src/low.rs:2"], "{low}");
        assert_eq!(structure.upward, 1);
    }
}

#[test]
fn tests_comments_and_visibilities_use_nothing() {
    let high = ("crates/x/src/high.rs", "pub struct High;");
    let tests = ("crates/x/src/low/tests.rs", "use crate::high::High;");
    for low in [
        "#[cfg(test)] use crate::high::High;",
        "#[cfg(test)] mod more { use crate::high::High; }",
        "#[cfg(test)]\nmod tests;",
        "/// See [`crate::high::High`].\npub(in crate::high) fn f() {}",
        "struct S; impl S { #[cfg(test)] fn f() -> crate::high::High { crate::high::High } }",
    ] {
        let structure = look(&[ROOT, LAYERS, high, ("crates/x/src/low.rs", low), tests]);
        assert_eq!(found(&structure, Check::Upward), Vec::<String>::new(), "{low}");
    }
}

#[test]
fn circles_of_files_are_found_inside_a_module_too() {
    let files = [
        ("crates/x/src/lib.rs", "mod high;"),
        ("crates/x/layers.txt", "high"),
        ("crates/x/src/high.rs", "mod a; mod b; mod c; pub(crate) use a::f;"),
        ("crates/x/src/high/a.rs", "use super::b::B; pub(crate) fn f() {}"),
        ("crates/x/src/high/b.rs", "pub(crate) struct B; fn g() { super::f() }"),
        ("crates/x/src/high/c.rs", "use super::a::f;"),
    ];
    let structure = look(&files);
    let expected = ["crates/x/src/high/a.rs:1", "crates/x/src/high/a.rs:1", "crates/x/src/high/b.rs:1"];
    assert_eq!(found(&structure, Check::Circle), expected);
    assert_eq!(structure.files_in_circles, 2);
}

#[test]
fn a_parent_that_uses_its_child_and_is_used_by_it_is_a_circle() {
    let child = ("crates/x/src/high/a.rs", "use super::P; pub(crate) fn f(_: P) {}");
    for (parent, files) in [
        ("mod a; pub(crate) struct P;", 0),
        ("mod a; pub(crate) use a::f; pub(crate) struct P;", 0),
        ("mod a; pub(crate) use a::f; pub(crate) struct P; fn g() { f(P) }", 2),
        ("mod a; pub(crate) struct P; fn g() { a::f(P) }", 2),
        ("mod a; use a::f; pub(crate) struct P;", 2),
    ] {
        let structure =
            look(&[("crates/x/src/lib.rs", "mod high;"), ("crates/x/src/high/mod.rs", parent), child]);
        assert_eq!(structure.files_in_circles, files, "{parent}");
    }
}

#[test]
fn modules_of_one_layer_may_not_use_each_other_in_a_circle() {
    let files = |two_uses_one: &'static str| {
        [
            ("crates/x/src/lib.rs", "mod one; mod two;"),
            ("crates/x/layers.txt", "one two"),
            ("crates/x/src/one.rs", "mod a; mod b;"),
            ("crates/x/src/one/a.rs", "use crate::two::T;"),
            ("crates/x/src/one/b.rs", "pub(crate) struct B;"),
            ("crates/x/src/two.rs", two_uses_one),
        ]
    };
    assert_eq!(look(&files("pub(crate) struct T;")).findings, []);
    let structure = look(&files("use crate::one::b::B; pub(crate) struct T(B);"));
    assert_eq!(structure.files_in_circles, 0);
    assert_eq!(found(&structure, Check::Circle), ["crates/x/layers.txt:1"]);
}

#[test]
fn a_module_without_a_layer_and_a_layer_without_a_module_are_found() {
    let files = [
        ("crates/x/src/lib.rs", "mod high; mod low; mod facade;"),
        ("crates/x/layers.txt", "high/part\nlow\ngone"),
        ("crates/x/src/high.rs", "mod part; pub(crate) fn f() {}"),
        ("crates/x/src/high/part.rs", ""),
        ("crates/x/src/facade.rs", "mod inner; pub(crate) use inner::g;"),
        ("crates/x/src/low.rs", "mod deeper;"),
        ("crates/x/src/low/deeper.rs", ""),
    ];
    let found = found(&look(&files), Check::Unlisted);
    // A module that only publishes names needs no layer.
    assert_eq!(found, ["crates/x/layers.txt:3", "crates/x/src/high.rs:1"]);
}

#[test]
fn the_crates_of_the_server_have_layers_that_can_be_broken() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut workspace = Workspace::read(root).expect("the checkout can be read");
    for folder in ["crates/espalier-engine", "crates/espalier-fs", "crates/espalier-fuse"] {
        let modules = Crate::read(&workspace, folder).expect("the files parse");
        let structure_of = |workspace: &Workspace| {
            structure(&modules, Some(&Layers::read(workspace, folder).expect("there are layers")))
        };
        let kept = structure_of(&workspace);
        assert_eq!(kept.findings, [], "{folder}");
        let path = format!("{folder}/layers.txt");
        let upside_down: Vec<&str> = workspace.files[&path].lines().rev().collect();
        let upside_down = upside_down.join("\n");
        workspace.files.insert(path, upside_down);
        // Every use runs upwards now, but those within one layer.
        let broken = structure_of(&workspace);
        assert!(broken.upward * 2 > broken.arrows && broken.arrows == kept.arrows, "{folder}");
        assert!(broken.findings.iter().any(|finding| finding.check == Check::Upward), "{folder}");
    }
}
