//! What is asked of Google's and Azure's servers, and what their answers mean, by a server that
//! says what a test tells it to.

use super::*;
use crate::bucket::{Bucket, Condition, RemoteBucket, Reply, Request, Version};
use bytes::Bytes;
use object_store::StaticCredentialProvider;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const SECRET: &str = "c2VjcmV0dGhhdG5vYm9keW1heXNlZQ==";

/// A server for one test: it answers each request with the next of what it was told, and tells what
/// it was asked. It closes the connection for an empty answer.
struct Server {
    endpoint: String,
    answers: Sender<String>,
    asked: Receiver<String>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (answers, told) = channel::<String>();
        let (asks, asked) = channel();
        std::thread::spawn(move || {
            for (connection, answer) in listener.incoming().zip(told) {
                let _ = asks.send(answer_one(connection.unwrap(), &answer));
            }
        });
        Self { endpoint, answers, asked }
    }

    /// The outcome of a request that gets an answer, and the head of the request, in small letters.
    fn call(
        &self,
        bucket: &RemoteBucket,
        request: Request,
        status: &str,
        headers: &str,
        body: &str,
    ) -> (Result<Reply, Failure>, String) {
        let length = body.len();
        let answer = match status {
            "" => String::new(),
            _ => format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
            ),
        };
        self.answers.send(answer).unwrap();
        let outcome = bucket.call(request);
        match self.asked.recv_timeout(Duration::from_secs(60)) {
            Ok(asked) => (outcome, asked),
            Err(_) => panic!("nothing was asked: {outcome:?}"),
        }
    }
}

fn answer_one(connection: TcpStream, answer: &str) -> String {
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() <= 2 {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).unwrap();
    reader.into_inner().write_all(answer.as_bytes()).unwrap();
    head
}

fn google_bucket(server: &Server) -> RemoteBucket {
    let text = format!("gs://bucket/prefix?endpoint={}", server.endpoint);
    let location = Location::parse(&text).unwrap();
    let credential = GcpCredential { bearer: SECRET.into() };
    let credentials = Arc::new(StaticCredentialProvider::new(credential));
    let builder = GoogleCloudStorageBuilder::new().with_credentials(credentials);
    let store = google_with(builder, &location).unwrap();
    RemoteBucket::of_service(text, (store, Versions::Generations), "prefix").unwrap()
}

fn azure_bucket(server: &Server, builder: MicrosoftAzureBuilder) -> RemoteBucket {
    let text = format!("az://container/prefix?endpoint={}&account=name", server.endpoint);
    let location = Location::parse(&text).unwrap();
    let store = azure_with(builder, &location).unwrap();
    RemoteBucket::of_service(text, (store, Versions::Tags), "prefix").unwrap()
}

fn put(condition: Condition) -> Request {
    Request::Put { name: "root".into(), body: vec![Bytes::from_static(b"body")], condition }
}

fn get() -> Request {
    Request::Get { name: "root".into(), range: None }
}

fn version_of(outcome: Result<Reply, Failure>) -> String {
    match outcome.unwrap() {
        Reply::Put(version) => version.unwrap().0,
        Reply::Got(_, facts) => facts.version.unwrap().0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn conditions_name_generations_at_google() {
    let server = Server::start();
    let bucket = google_bucket(&server);
    let headers = "etag: \"tag\"\r\nx-goog-generation: 17\r\n";
    let (outcome, asked) = server.call(&bucket, put(Condition::Absent), "200", headers, "");
    assert_eq!(version_of(outcome), "17");
    assert!(asked.starts_with("put /bucket/prefix%2froot "), "{asked}");
    assert!(asked.contains("x-goog-if-generation-match: 0\r\n"), "{asked}");
    let version = Version("17".into());
    let (outcome, asked) = server.call(&bucket, put(Condition::Matches(version)), "200", headers, "");
    assert!(outcome.is_ok());
    assert!(asked.contains("x-goog-if-generation-match: 17\r\n"), "{asked}");
    let (outcome, asked) = server.call(&bucket, put(Condition::None), "200", headers, "");
    assert!(outcome.is_ok() && !asked.contains("generation-match"), "{asked}");
    let headers = format!("{headers}last-modified: Fri, 27 Nov 2026 10:00:00 GMT\r\n");
    let (outcome, _) = server.call(&bucket, get(), "200", &headers, "body");
    assert_eq!(version_of(outcome), "17");
}

#[test]
fn conditions_name_tags_at_azure() {
    let server = Server::start();
    let bucket = azure_bucket(&server, MicrosoftAzureBuilder::new().with_access_key(SECRET));
    let headers = "etag: \"0x8D\"\r\n";
    let (outcome, asked) = server.call(&bucket, put(Condition::Absent), "201", headers, "");
    assert_eq!(version_of(outcome), "\"0x8D\"");
    assert!(asked.starts_with("put /container/prefix/root "), "{asked}");
    assert!(asked.contains("if-none-match: *\r\n"), "{asked}");
    let version = Version("\"0x8D\"".into());
    let (outcome, asked) = server.call(&bucket, put(Condition::Matches(version)), "201", headers, "");
    assert!(outcome.is_ok());
    assert!(asked.contains("if-match: \"0x8d\"\r\n"), "{asked}");
}

#[test]
fn what_servers_of_google_and_azure_say_tells_what_to_do() {
    let server = Server::start();
    let google = google_bucket(&server);
    let by_key = azure_bucket(&server, MicrosoftAzureBuilder::new().with_access_key(SECRET));
    let pairs = vec![("sv".to_owned(), "2024".to_owned()), ("sig".to_owned(), SECRET.to_owned())];
    let by_signature = azure_bucket(&server, MicrosoftAzureBuilder::new().with_sas_authorization(pairs));
    let cases = [
        ("503", "ServerBusy", FailureKind::Throttled),
        ("429", "TooManyRequests", FailureKind::Throttled),
        ("500", "InternalError", FailureKind::Unknown),
        ("403", "AuthenticationFailed", FailureKind::Denied),
        ("401", "NoAuthenticationInformation", FailureKind::Denied),
        ("404", "ContainerNotFound", FailureKind::NotFound),
        ("404", "NoSuchBucket", FailureKind::NotFound),
        ("412", "ConditionNotMet", FailureKind::Condition),
        ("", "", FailureKind::Unknown),
    ];
    for bucket in [&google, &by_key, &by_signature] {
        for (status, code, kind) in cases {
            for request in [get(), put(Condition::Matches(Version("1".into()))), put(Condition::None)] {
                let what = format!("{}, {}, {status} {code}", bucket.name(), request.verb());
                let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
                let failure = server.call(bucket, request, status, "", &body).0.unwrap_err();
                assert_eq!(failure.kind, kind, "{what}: {failure}");
                let text = failure.message.as_str();
                assert!(!text.contains(SECRET) && !text.contains("sig="), "{what}: {failure}");
            }
        }
        // The object is there already.
        let body = "<Error><Code>BlobAlreadyExists</Code></Error>";
        for status in ["409", "412"] {
            let failure = server.call(bucket, put(Condition::Absent), status, "", body).0.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Condition, "{status}: {failure}");
        }
    }
}

#[test]
fn a_location_without_what_it_needs_is_refused() {
    let location = Location::parse("az://container/p").unwrap();
    let failure = azure_with(MicrosoftAzureBuilder::new(), &location).unwrap_err();
    assert!(failure.message.contains("?account=NAME"), "{failure}");
    assert!(google(&location).is_err() && s3(&location).is_err());
    assert!(open(&Location::Directory("/".into())).is_err());
}
