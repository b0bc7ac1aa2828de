use super::*;

fn run(path: &str) -> (usize, &str, &str, End, &str) {
    let run = first_run(path.as_bytes());
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (run.count, text(run.before_last), text(run.last), run.end, &path[run.after..])
}

#[test]
fn paths_are_cut_at_dot_dot() {
    assert_eq!(run("a/b/c"), (3, "a/b/", "c", End::Plain, ""));
    assert_eq!(run("//a/.//b//"), (2, "//a/.//", "b", End::Slash, ""));
    assert_eq!(run("a/b/."), (2, "a/", "b", End::Here, ""));
    assert_eq!(run("a/b/./"), (2, "a/", "b", End::Here, ""));
    assert_eq!(run("a/../b"), (1, "", "a", End::Up, "/b"));
    assert_eq!(run("./.."), (0, "", "", End::Up, ""));
    assert_eq!(run("..a/...b"), (2, "..a/", "...b", End::Plain, ""));
    assert_eq!(run(""), (0, "", "", End::Plain, ""));
    assert_eq!(run("///"), (0, "", "", End::Slash, ""));
    assert_eq!(run("/."), (0, "", "", End::Here, ""));
}

#[test]
fn the_key_of_a_run_is_the_content_prefix_of_its_last_name() {
    let path = b"x/./a\x01b//\x02";
    let mut prefix = b"top\x01".to_vec();
    names(path).for_each(|(name, _)| push_name(name, &mut prefix));
    let mut expected = b"top\x01".to_vec();
    for name in [&b"x"[..], b"a\x01b", b"\x02"] {
        expected = layout::content_prefix(&expected, name);
    }
    assert_eq!(prefix, expected);
    assert_eq!(layout::prefix_above(&prefix), &expected[..expected.len() - 3]);
    assert_eq!(layout::prefix_above(b"x\x01"), b"");
    let ends: Vec<usize> = names(path).map(|(_, end)| end).collect();
    assert_eq!(ends, [1, 7, 10]);
}
