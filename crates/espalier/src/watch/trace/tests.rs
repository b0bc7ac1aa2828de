use super::*;

#[test]
fn figures_of_a_faulty_server_are_shown() {
    for seconds in [-1.0, 1e300, 1e20] {
        let event = json!({
            "unix_seconds": seconds,
            "queue_seconds": seconds,
            "work_seconds": seconds,
            "kind": "READ\x1b[2J",
            "thread": 7,
            "bytes": u64::MAX,
            "path": "/a\nb",
            "errno": i64::MIN,
        });
        let line = line(&event);
        assert!(line.contains("READ\u{fffd}[2J") && line.contains("/a\u{fffd}b"), "{line}");
        assert!(line.contains("      -       - "), "{line}");
    }
    assert!(line(&json!({})).contains(" - "));
}
