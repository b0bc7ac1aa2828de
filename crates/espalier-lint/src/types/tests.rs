use super::{shared_names, sizes};
use crate::modules::Crate;
use crate::workspace::Workspace;

fn modules(files: &[(&str, &str)]) -> Crate {
    Crate::read(&Workspace::of(files), "crates/x").expect("the files parse")
}

#[test]
fn two_crate_visible_types_of_one_name_are_found() {
    let second = |source| {
        let files = [
            ("crates/x/src/lib.rs", "mod a; mod b;"),
            ("crates/x/src/a.rs", "pub(crate) struct State;"),
            ("crates/x/src/b.rs", source),
        ];
        shared_names(&modules(&files)).iter().map(|finding| finding.line).collect::<Vec<_>>()
    };
    assert_eq!(second("struct State;"), []);
    assert_eq!(second("\npub enum State {}"), [2]);
    assert_eq!(second("pub(super) trait State {}"), [1]);
    assert_eq!(second("mod inner {\n\npub(crate) type State = u8; }"), [3]);
    assert_eq!(second("mod inner { pub(super) struct State; }"), []);
    assert_eq!(second("#[cfg(test)] pub(crate) struct State;"), []);
}

#[test]
fn fields_and_methods_are_counted_across_files() {
    let files = [
        ("crates/x/src/lib.rs", "mod a; mod b; pub use a::Big;"),
        ("crates/x/src/a.rs", "pub struct Big { a: u8, b: u8 } impl Big { fn f(&self) {} }"),
        (
            "crates/x/src/b.rs",
            "impl crate::Big { fn g(&self) {} #[cfg(test)] fn h() {} } impl Drop for crate::Big {}",
        ),
    ];
    let sizes = sizes(&modules(&files));
    assert_eq!(sizes.len(), 1);
    assert_eq!((sizes[0].fields, sizes[0].methods, sizes[0].files.len()), (2, 2, 2));
}
