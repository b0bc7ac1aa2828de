use super::*;

#[test]
fn requests_are_answered() {
    let status = |request: &str| {
        let reply = reply_to(request.as_bytes(), || Some("# EOF\n".into()));
        reply.split("\r\n").next().unwrap_or_default().to_owned()
    };
    for (request, expected) in [
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET /metrics?a=b HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
    ] {
        assert_eq!(status(request), expected, "{request}");
    }
    let reply = reply_to(b"GET /metrics HTTP/1.1\r\n\r\n", || None);
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    let head = reply_to(b"HEAD /metrics HTTP/1.1\r\n\r\n", || Some("x".into()));
    assert!(head.contains("Content-Length: 1\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn requests_that_do_not_end_are_refused() {
    let whole = b"GET /metrics HTTP/1.1\r\n\r\n";
    assert_eq!(read_request(&mut &whole[..]).unwrap(), whole);
    assert!(read_request(&mut &whole[..20]).is_err());
    assert!(read_request(&mut io::repeat(b'x')).is_err());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.sock");
    drop(UnixListener::bind(&path).unwrap());
    // A program that another test starts has the socket, too, for a moment.
    while UnixStream::connect(&path).is_ok() {
        std::thread::yield_now();
    }
    let address = MetricsAddress::Unix(path.clone());
    let endpoint = Endpoint::bind(&address).unwrap();
    assert!(Endpoint::bind(&address).is_err(), "it is in use");
    drop(endpoint);
    assert!(!path.exists());
    std::fs::write(&path, b"a file").unwrap();
    assert!(Endpoint::bind(&address).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}
