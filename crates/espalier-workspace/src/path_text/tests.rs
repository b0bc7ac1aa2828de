use super::{decode, encode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[test]
fn paths_come_back() {
    for bytes in [&b"a/b"[..], b"", b"\\", b"\xff\xfe", "wörk\\x41".as_bytes(), b"a\xc3", b"../x"] {
        let path = Path::new(OsStr::from_bytes(bytes));
        let text = encode(path);
        assert_eq!(decode(&text).as_deref(), Some(path), "{text}");
    }
    assert_eq!(encode(Path::new("work/7")), "work/7");
    for text in ["\\", "\\y00", "\\x", "\\x0", "\\xgg"] {
        assert_eq!(decode(text), None, "{text}");
    }
}
