use crate::apply::{Apply, ApplyOutcome};
use crate::testing::{Ground, Plain};
use std::fs::{File, hard_link, read_to_string, write};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// A text of which three lines, with others between them, are these.
fn text(lines: [&str; 3]) -> String {
    lines.map(|line| format!("{line}\n1\n2\n3\n")).concat()
}

#[test]
fn names_of_one_file_get_the_text_that_is_theirs() {
    let ground = Ground::new();
    let (base, original) = (ground.workspace.base(), ground.path("base"));
    for (name, first) in [("a", "x"), ("b", "x"), ("c", "y")] {
        write(base.join(name), text([first, "q", "z"])).unwrap();
        // Files of one size that are written within a tick of the clock look unchanged.
        let file = File::options().append(true).open(base.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    for (tree, lines) in [(ground.path("w"), ["x", "w", "z"]), (original.clone(), ["y", "q", "t"])] {
        write(tree.join("a"), text(lines)).unwrap();
        hard_link(tree.join("a"), tree.join("b")).unwrap();
        hard_link(tree.join("a"), tree.join("c")).unwrap();
    }
    let apply = Apply { merge: true, ..Apply::default() };
    let outcome = apply.run(&Plain, &mut ground.workspace.clone()).unwrap();
    assert!(matches!(outcome, ApplyOutcome::Applied(_)), "{outcome:?}");
    let read = |name: &str| read_to_string(original.join(name)).unwrap();
    assert_eq!((read("a"), read("b")), (text(["y", "w", "t"]), text(["y", "w", "t"])));
    assert_eq!(read("c"), text(["x", "w", "t"]));
    let number = |name: &str| original.join(name).metadata().unwrap().ino();
    assert!(number("a") == number("b") && number("a") != number("c"));
}
