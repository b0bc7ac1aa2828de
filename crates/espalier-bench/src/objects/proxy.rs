//! Proxy: stands between a client and a server of objects, makes every request wait, and counts.
//!
//! Protocol: each connection of the client has a thread and a connection to the server. The head of
//! a request is read, the delay passes, then head and body go on; the reply goes back as it comes.
//! So requests that are under way together wait together, and bodies are not slowed down.

use super::http::{Body, Head, relay_body};
use anyhow::{Context, Result, ensure};
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BUFFER_BYTES: usize = 256 << 10;

/// What went through a proxy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    /// PUT and POST.
    pub(super) puts: u64,
    /// GET of objects, HEAD.
    pub(super) gets: u64,
    pub(super) lists: u64,
    pub(super) deletes: u64,
    /// Bytes of bodies.
    pub(super) bytes_put: u64,
    pub(super) bytes_got: u64,
}

impl Traffic {
    /// All requests.
    pub(super) fn requests(&self) -> u64 {
        self.puts + self.gets + self.lists + self.deletes
    }

    /// What came after `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            puts: self.puts - before.puts,
            gets: self.gets - before.gets,
            lists: self.lists - before.lists,
            deletes: self.deletes - before.deletes,
            bytes_put: self.bytes_put - before.bytes_put,
            bytes_got: self.bytes_got - before.bytes_got,
        }
    }
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    delay_us: AtomicU64,
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    bytes_put: AtomicU64,
    bytes_got: AtomicU64,
}

/// A proxy on a port of its own, which lives as long as the process.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts one before `server`, without delay.
    pub(super) fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port for the proxy")?;
        let address = listener.local_addr()?;
        let zero = || AtomicU64::new(0);
        let shared = Arc::new(Shared {
            server,
            delay_us: zero(),
            puts: zero(),
            gets: zero(),
            lists: zero(),
            deletes: zero(),
            bytes_put: zero(),
            bytes_got: zero(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                // A connection that breaks is the client's to make again.
                std::thread::spawn(move || drop(shared.serve(client)));
            }
        });
        Ok(Self { address, shared })
    }

    /// How clients reach it.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on every request waits so long.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.shared.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// What went through so far.
    pub(super) fn traffic(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        Traffic {
            puts: get(&shared.puts),
            gets: get(&shared.gets),
            lists: get(&shared.lists),
            deletes: get(&shared.deletes),
            bytes_put: get(&shared.bytes_put),
            bytes_got: get(&shared.bytes_got),
        }
    }
}

impl Shared {
    /// Relays requests of one connection until a side ends it.
    fn serve(&self, client: TcpStream) -> Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut to_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
        let mut from_client = BufReader::with_capacity(BUFFER_BYTES, client);
        let mut from_server = BufReader::with_capacity(BUFFER_BYTES, server);
        while let Some(request) = Head::read_request(&mut from_client)? {
            self.count(&request);
            std::thread::sleep(Duration::from_micros(self.delay_us.load(Ordering::Relaxed)));
            to_server.write_all(&request.bytes)?;
            let mut reply = None;
            if request.expects_continue {
                // The client waits for leave before it sends the body.
                let first = Head::read_reply(&mut from_server, &request)?.context("no reply")?;
                if first.status == 100 {
                    to_client.write_all(&first.bytes)?;
                } else {
                    reply = Some(first);
                }
            }
            if reply.is_none() {
                let sent = relay_body(&mut from_client, &mut to_server, request.body)?;
                self.bytes_put.fetch_add(sent, Ordering::Relaxed);
            }
            let reply = match reply {
                Some(reply) => reply,
                None => Head::read_reply(&mut from_server, &request)?.context("no reply")?,
            };
            to_client.write_all(&reply.bytes)?;
            let got = relay_body(&mut from_server, &mut to_client, reply.body)?;
            self.bytes_got.fetch_add(got, Ordering::Relaxed);
            ensure!(reply.body != Body::UntilEnd && !reply.closes && !request.closes, "the connection ends");
        }
        Ok(())
    }

    fn count(&self, request: &Head) {
        let is_list = request.target.contains("list-type=") || request.target.contains("prefix=");
        let counter = match request.method.as_str() {
            "GET" if is_list => &self.lists,
            "GET" | "HEAD" => &self.gets,
            "DELETE" => &self.deletes,
            _ => &self.puts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
