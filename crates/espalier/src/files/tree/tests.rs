use super::*;

#[test]
fn what_is_shown_stays_on_its_line() {
    let name = b"a\nLOST\t/etc\t\x1b[2J\xff\x07 'b' \"c\" \\";
    let shown = "a\\nLOST\\t/etc\\t\\u{1b}[2J\u{fffd}\\u{7} 'b' \"c\" \\\\";
    assert_eq!(show(name), shown);
    // What was shown before stays as it is.
    assert_eq!(show_text(shown), shown);
    assert_eq!(show_text("/a\nLOST\r\u{9b}2J\u{202e} \u{e4}"), "/a\\nLOST\\r\\u{9b}2J\\u{202e} \u{e4}");
}
