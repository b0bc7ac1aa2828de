use super::*;
use crate::model::record::Inode;

#[track_caller]
fn assert_matches(pattern: &str, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(matches_pattern(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
    }
    for text in no {
        assert!(!matches_pattern(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
    }
}

#[test]
fn patterns_match_as_those_of_a_shell() {
    assert_matches("", &[""], &["a"]);
    assert_matches("*.rs", &[".rs", "a.rs", "a.rs.rs"], &["a.rst", "a/b.rs", "rs"]);
    assert_matches("a?c", &["abc", "a.c"], &["ac", "a/c", "abbc"]);
    assert_matches("a*b*c", &["abc", "aXbYc", "abbcc"], &["ab", "a/b/c", "abcd"]);
    assert_matches("[a-c]x[!0-9]", &["axb", "cx."], &["dxb", "ax5", "ax/"]);
    assert_matches("[]]", &["]"], &["["]);
    assert_matches("[!]]", &["a"], &["]"]);
    assert_matches("[ab", &["[ab"], &["a"]);
    assert_matches("\\*\\[", &["*["], &["a["]);
    assert_matches("\\", &["\\"], &["a"]);
    assert_matches("src/*.rs", &["src/a.rs"], &["src/b/a.rs", "a.rs"]);
    assert_matches("**/*.rs", &["src/a.rs", "src/b/a.rs"], &["a.rs", "src/a.txt"]);
    assert_matches("a/**", &["a/", "a/b", "a/b/c"], &["a", "b/a/c"]);
    assert_matches("a/**/z*/q", &["a/b/z/q", "a/b/c/zz/q", "a/z/z/q"], &["a/b/z/x/q", "a/z"]);
    assert_matches("*a*/b", &["xax/b"], &["xa/x/b"]);
    assert_matches("**a*c", &["x/y/abc", "a/ac"], &["a/c"]);
}

#[test]
fn bad_patterns_take_no_time() {
    let (many, text) = ("*a".repeat(2000), "a".repeat(20_000) + "b");
    assert!(!matches_pattern(many.as_bytes(), text.as_bytes()));
    let many = "**a".repeat(200);
    assert!(!matches_pattern(many.as_bytes(), "a/".repeat(5000).as_bytes()));
}

#[test]
fn filters_ask_for_all_of_what_they_say() {
    let mut inode = Inode::new(FileKind::Regular, 0o644, 0, 0, 1, 50);
    inode.size = 10;
    let attr = inode.attr(1, 0, 4096);
    let path = b"a/b.txt";
    assert!(Filter::default().matches(path, &attr));
    let all = Filter {
        pattern: Some(b"b.*".to_vec()),
        kinds: Some(vec![FileKind::Regular]),
        size: Some(10..=20),
        modified: Some(0..=50),
    };
    assert!(all.matches(path, &attr));
    assert!(!Filter { pattern: Some(b"a*".to_vec()), ..all.clone() }.matches(path, &attr));
    assert!(!Filter { kinds: Some(vec![FileKind::Directory]), ..all.clone() }.matches(path, &attr));
    assert!(!Filter { size: Some(11..=20), ..all.clone() }.matches(path, &attr));
    assert!(!Filter { modified: Some(51..=i64::MAX), ..all }.matches(path, &attr));
}
