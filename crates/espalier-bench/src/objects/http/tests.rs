//! Heads and bodies end where they end, whatever pieces they come in.

use super::*;
use std::io::BufReader;

fn relayed(body: Body, bytes: &[u8], buffer: usize) -> Result<(u64, Vec<u8>, Vec<u8>)> {
    let mut from = BufReader::with_capacity(buffer, bytes);
    let mut to = Vec::new();
    let count = relay_body(&mut from, &mut to, body)?;
    let mut rest = Vec::new();
    from.read_to_end(&mut rest)?;
    Ok((count, to, rest))
}

#[test]
fn requests_follow_one_another() {
    let text = b"PUT /b/o?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc\
        GET /b?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\n";
    for buffer in [1, 7, 4096] {
        let mut from = BufReader::with_capacity(buffer, &text[..]);
        let put = Head::read_request(&mut from).unwrap().unwrap();
        assert_eq!((put.method.as_str(), put.body, put.expects_continue), ("PUT", Body::Bytes(3), true));
        let mut body = Vec::new();
        relay_body(&mut from, &mut body, put.body).unwrap();
        assert_eq!(body, b"abc");
        let get = Head::read_request(&mut from).unwrap().unwrap();
        assert_eq!((get.target.as_str(), get.body), ("/b?list-type=2", Body::Bytes(0)));
        assert!(Head::read_request(&mut from).unwrap().is_none());
    }
}

#[test]
fn replies_have_bodies_of_three_kinds() {
    let request = Head::read_request(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).unwrap().unwrap();
    let head = |text: &str| Head::read_reply(&mut text.as_bytes(), &request).unwrap().unwrap();
    assert_eq!(head("HTTP/1.1 206 P\r\nContent-Length: 9\r\n\r\n").body, Body::Bytes(9));
    assert_eq!(head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").body, Body::Chunked);
    assert_eq!(head("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").body, Body::UntilEnd);
    assert_eq!(head("HTTP/1.1 204 N\r\n\r\n").body, Body::Bytes(0));
    let request = Head::read_request(&mut &b"HEAD / HTTP/1.1\r\n\r\n"[..]).unwrap().unwrap();
    let head = Head::read_reply(&mut &b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"[..], &request);
    assert_eq!(head.unwrap().unwrap().body, Body::Bytes(0));
}

#[test]
fn bodies_end_where_they_end() {
    let chunked = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\n\r\nnext";
    for buffer in [1, 3, 4096] {
        let (count, to, rest) = relayed(Body::Chunked, chunked, buffer).unwrap();
        assert_eq!((count, &to[..], &rest[..]), (6, &chunked[..chunked.len() - 4], &b"next"[..]));
        let (count, to, rest) = relayed(Body::Bytes(4), b"abcdef", buffer).unwrap();
        assert_eq!((count, &to[..], &rest[..]), (4, &b"abcd"[..], &b"ef"[..]));
    }
    assert!(relayed(Body::Bytes(4), b"abc", 4096).is_err());
    assert!(relayed(Body::Chunked, b"zz\r\n", 4096).is_err());
    assert!(Head::read_request(&mut &b"GET / HTTP/1.1\r\nHost"[..]).is_err());
}
