use super::{Kind, pieces};

fn texts(source: &str) -> Vec<(Kind, usize, &str)> {
    pieces(source).into_iter().map(|piece| (piece.kind, piece.line, piece.text)).collect()
}

#[test]
fn comments_of_all_kinds_are_found() {
    let source = "//! top\nfn f() {} // end\n/* a /* b */\nc */ let x = 1;\n/// doc";
    let expected = [
        (Kind::Comment, 1, "//! top"),
        (Kind::Comment, 2, "// end"),
        (Kind::Comment, 3, "/* a /* b */"),
        (Kind::Comment, 4, "c */"),
        (Kind::Comment, 5, "/// doc"),
    ];
    assert_eq!(texts(source), expected);
}

#[test]
fn literals_end_where_they_end() {
    let source = "a(\"x // \\\" y\", b\"z\", r#\"raw \" // \"#, 'c', '\"', '\\'', &'static str); // c";
    let expected = [
        (Kind::Literal, 1, "\"x // \\\" y\""),
        (Kind::Literal, 1, "\"z\""),
        (Kind::Literal, 1, "r#\"raw \" // \"#"),
        (Kind::Comment, 1, "// c"),
    ];
    assert_eq!(texts(source), expected);
}

#[test]
fn an_identifier_that_ends_like_a_prefix_is_no_prefix() {
    assert_eq!(texts("var \"s\""), [(Kind::Literal, 1, "\"s\"")]);
    assert_eq!(texts("for<'r>(x)'r \"s\""), [(Kind::Literal, 1, "\"s\"")]);
}

#[test]
fn a_literal_of_several_lines_has_a_piece_for_each() {
    assert_eq!(texts("\n\"a\nb\""), [(Kind::Literal, 2, "\"a"), (Kind::Literal, 3, "b\"")]);
}
