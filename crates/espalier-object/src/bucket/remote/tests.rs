//! What servers say when something is wrong, from a server that says what a test tells it to.

use super::*;
use object_store::aws::AmazonS3Builder;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};

const SECRET: &str = "thesecretthatnobodymaysee";

/// What the server does with a request.
enum Answer {
    Status(u16, &'static str),
    /// It says that there are more bytes than it sends.
    Cut,
    /// It says that there are five terabytes, and begins to send them.
    Endless,
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
        Self { bucket: bucket_at(&endpoint), answers }
    }

    fn failure(&self, request: Request, answer: Answer) -> Failure {
        self.answers.send(answer).unwrap();
        let failure = self.bucket.call(request).unwrap_err();
        assert!(!failure.message.contains(SECRET) && !failure.message.contains("Signature="), "{failure}");
        failure
    }
}

fn bucket_at(endpoint: &str) -> RemoteBucket {
    let location = Location::parse(&format!("s3://bucket?endpoint={endpoint}&region=us-east-1")).unwrap();
    let builder = AmazonS3Builder::new().with_access_key_id("key").with_secret_access_key(SECRET);
    let store = services::s3_with(builder, &location).unwrap();
    RemoteBucket::of_service("s3://bucket".into(), (store, Versions::Tags), "").unwrap()
}

/// Reads the head of a request: its first line, and how many bytes follow.
fn head(reader: &mut BufReader<TcpStream>) -> (String, u64) {
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() <= 2 {
            return (first, length);
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if first.is_empty() {
            first = line;
        }
    }
}

/// Reads a request and answers it.
fn answer_one(connection: TcpStream, answer: &Answer) {
    let mut reader = BufReader::new(connection);
    let (_, length) = head(&mut reader);
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
        Answer::Endless => {
            let headers = "etag: \"1\"\r\nlast-modified: Fri, 27 Nov 2026 10:00:00 GMT\r\ncontent-length: 5000000000000";
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

/// A server that reads a large put only once it is told to: few of them are on the link at a time,
/// and what is small passes them.
#[test]
fn large_puts_have_turns_and_small_ones_pass_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (begins, begun) = channel();
    let (read_on, told) = channel::<()>();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        let answer = |reader: BufReader<TcpStream>, length| {
            let mut reader = reader;
            std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).unwrap();
            let said = "HTTP/1.1 200 x\r\nconnection: close\r\netag: \"1\"\r\ncontent-length: 0\r\n\r\n";
            reader.into_inner().write_all(said.as_bytes()).unwrap();
        };
        for connection in listener.incoming() {
            let mut reader = BufReader::new(connection.unwrap());
            let (first, length) = head(&mut reader);
            let is_large = first.contains("/data/");
            let _ = begins.send(first);
            match is_large {
                true => held.push((reader, length)),
                false => answer(reader, length),
            }
            // From the small put on nothing is held.
            if !is_large && told.recv().is_ok() {
                held.drain(..).for_each(|(reader, length)| answer(reader, length));
                break;
            }
        }
        for connection in listener.incoming() {
            let mut reader = BufReader::new(connection.unwrap());
            let (first, length) = head(&mut reader);
            let _ = begins.send(first);
            answer(reader, length);
        }
    });
    let bucket = bucket_at(&endpoint);
    let large = |number| Request::Put {
        name: format!("data/{number}"),
        body: vec![Bytes::from(vec![7; 2 << 20])],
        condition: Condition::None,
    };
    let tickets: Vec<_> = (0..6).map(|number| bucket.submit(large(number))).collect();
    let next = || begun.recv_timeout(Duration::from_secs(60)).unwrap();
    for _ in 0..4 {
        assert!(next().contains("/data/"));
    }
    // It comes after four large ones, not after six.
    bucket.call(put(Condition::None)).unwrap();
    let fifth = next();
    assert!(fifth.contains("/root"), "{fifth}");
    read_on.send(()).unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    assert!(next().contains("/data/") && next().contains("/data/"));
}

/// The limits are those of this module, and follow what is moved.
#[test]
fn no_request_has_a_shorter_limit_than_its_bytes_need() {
    let put = |mebibytes: usize| Request::Put {
        name: "data/1".into(),
        body: vec![Bytes::from(vec![0; mebibytes << 20])],
        condition: Condition::None,
    };
    assert_eq!(time_limit(&put(0)), Duration::from_secs(20));
    // 1 Mbit/s moves a full segment in time.
    assert_eq!(time_limit(&put(8)), Duration::from_secs(100));
    let location = Location::parse("s3://bucket?region=us-east-1").unwrap();
    let builder = AmazonS3Builder::new().with_access_key_id("key").with_secret_access_key(SECRET);
    let store = services::s3_with(builder, &location).unwrap();
    let shown = format!("{store:?}");
    assert!(shown.contains("Deferred(\"1 day\")") && !shown.contains("Parsed(30s)"), "{shown}");
}

#[test]
fn what_is_larger_than_it_may_be_takes_no_memory() {
    let server = Server::start();
    let failure = server.failure(get(), Answer::Endless);
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.message.contains("root") && failure.message.contains("5000000000000"), "{failure}");
}

/// A list without an end fails when it has taken what it may take.
#[test]
fn a_list_has_a_bound() {
    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }
    let facts = |number: usize| {
        Ok(ObjectFacts { name: format!("data/{number:08}"), bytes: 1, version: None, modified: 0 })
    };
    let mut taken = 0;
    let endless = futures_util::stream::iter((0..).inspect(|_| taken += 1).map(facts));
    let failure = run(listed(endless, "prefix/data", 1 << 20)).unwrap_err();
    assert!(taken < 20_000, "{taken}");
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.message.contains("prefix/data") && failure.message.contains("prefix of its own"));
    let short = futures_util::stream::iter((0..100).map(facts));
    assert_eq!(run(listed(short, "prefix/data", 1 << 20)).unwrap().len(), 100);
}
