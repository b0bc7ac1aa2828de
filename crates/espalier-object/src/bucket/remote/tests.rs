//! What servers say when something is wrong, from a server that says what a test tells it to.

use super::*;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};

const SECRET: &str = "thesecretthatnobodymaysee";

/// What the server does with a request.
enum Answer {
    Status(u16, &'static str),
    /// It says that there are more bytes than it sends.
    Cut,
    /// It closes the connection.
    Hangs,
}

/// A server for one test: it answers each request with the next of what it was told.
struct Server {
    bucket: RemoteBucket,
    answers: Sender<Answer>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (answers, told) = channel();
        std::thread::spawn(move || {
            for (connection, answer) in listener.incoming().zip(told) {
                answer_one(connection.unwrap(), &answer);
            }
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = object_store::RetryConfig { max_retries: 0, ..Default::default() };
        let store = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_access_key_id("key")
            .with_secret_access_key(SECRET)
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build()
            .unwrap();
        let bucket = RemoteBucket::new("s3://bucket".into(), Arc::new(store), "", None).unwrap();
        Self { bucket, answers }
    }

    fn failure(&self, request: Request, answer: Answer) -> Failure {
        self.answers.send(answer).unwrap();
        let failure = self.bucket.call(request).unwrap_err();
        assert!(!failure.message.contains(SECRET) && !failure.message.contains("Signature="), "{failure}");
        failure
    }
}

/// Reads a request and answers it.
fn answer_one(connection: TcpStream, answer: &Answer) {
    let mut reader = BufReader::new(connection);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).unwrap();
    let mut connection = reader.into_inner();
    let said = match answer {
        Answer::Hangs => return,
        Answer::Status(status, code) => {
            let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
            format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        Answer::Cut => {
            let headers =
                "etag: \"1\"\r\nlast-modified: Fri, 27 Nov 2026 10:00:00 GMT\r\ncontent-length: 5000";
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n\r\nbeginning")
        }
    };
    connection.write_all(said.as_bytes()).unwrap();
}

fn get() -> Request {
    Request::Get { name: "root".into(), range: None }
}

fn put(condition: Condition) -> Request {
    Request::Put { name: "root".into(), body: vec![Bytes::from_static(b"body")], condition }
}

#[test]
fn what_a_server_says_tells_what_to_do() {
    let server = Server::start();
    let cases = [
        (503, "SlowDown", FailureKind::Throttled),
        (429, "TooManyRequests", FailureKind::Throttled),
        (503, "ServiceUnavailable", FailureKind::Throttled),
        (500, "InternalError", FailureKind::Unknown),
        (403, "AccessDenied", FailureKind::Denied),
        (403, "InvalidAccessKeyId", FailureKind::Denied),
        (403, "RequestTimeTooSkewed", FailureKind::Denied),
        (400, "ExpiredToken", FailureKind::Denied),
        (400, "InvalidToken", FailureKind::Denied),
        (401, "Unauthorized", FailureKind::Denied),
        (404, "NoSuchBucket", FailureKind::NotFound),
        (412, "PreconditionFailed", FailureKind::Condition),
        (416, "InvalidRange", FailureKind::Unsupported),
    ];
    for (status, code, kind) in cases {
        let version = Version("\"1\"".into());
        for request in [get(), put(Condition::Matches(version)), put(Condition::None)] {
            let verb = request.verb();
            let failure = server.failure(request, Answer::Status(status, code));
            assert_eq!(failure.kind, kind, "{verb}, {status} {code}: {failure}");
        }
    }
    // Two puts under one condition at a time: the server could not decide.
    let version = Version("\"1\"".into());
    let failure =
        server.failure(put(Condition::Matches(version)), Answer::Status(409, "ConditionalRequestConflict"));
    assert_eq!(failure.kind, FailureKind::Condition, "{failure}");
}

#[test]
fn replies_that_are_lost_or_cut_off_say_nothing_about_the_request() {
    let server = Server::start();
    for request in [get(), put(Condition::None), put(Condition::Absent)] {
        let failure = server.failure(request, Answer::Hangs);
        assert_eq!(failure.kind, FailureKind::Unknown, "{failure}");
    }
    let failure = server.failure(get(), Answer::Cut);
    assert_eq!(failure.kind, FailureKind::Unknown, "{failure}");
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    let server = Server::start();
    let failure = server.failure(get(), Answer::Status(403, "RequestTimeTooSkewed"));
    assert!(failure.message.contains("RequestTimeTooSkewed"), "{failure}");
    assert!(failure.message.contains("clock of this machine"), "{failure}");
}
