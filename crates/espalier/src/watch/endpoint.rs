//! The place where a monitoring program gets the metrics of a mount: a Unix socket, or a port that
//! only this machine reaches.
//!
//! It speaks as much HTTP as such a program needs: `GET /metrics`, one request for each connection.
//! One thread serves; a client that is slow is cut off after some seconds.

use super::address::MetricsAddress;
use super::openmetrics;
use super::server::Watch;
use anyhow::{Context, Result};
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take for its request, and again for each part of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Waits after a connection that could not be taken, as when no descriptor is left.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A place that is taken; it is given up when this is dropped.
pub(crate) struct Endpoint {
    listener: Listener,
    path: Option<PathBuf>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A client's connection.
trait Client: Read + Write {
    fn set_timeouts(&self) -> io::Result<()>;
    fn end(&self) -> io::Result<()>;
}

impl Client for UnixStream {
    fn set_timeouts(&self) -> io::Result<()> {
        self.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        self.set_write_timeout(Some(CLIENT_TIMEOUT))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Client for TcpStream {
    fn set_timeouts(&self) -> io::Result<()> {
        self.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        self.set_write_timeout(Some(CLIENT_TIMEOUT))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Endpoint {
    /// Takes the place at `address`. A socket that a server left behind is replaced.
    ///
    /// # Errors
    /// The place is taken, or cannot be had.
    pub(crate) fn bind(address: &MetricsAddress) -> Result<Self> {
        match address {
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("no metrics can be had at {address}"))?;
                Ok(Self { listener: Listener::Tcp(listener), path: None })
            }
            MetricsAddress::Unix(path) => {
                let failed = || format!("no metrics can be had at {}", path.display());
                let is_socket =
                    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
                if is_socket && UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path).with_context(failed)?;
                }
                let listener = UnixListener::bind(path).with_context(failed)?;
                let endpoint = Self { listener: Listener::Unix(listener), path: Some(path.clone()) };
                // Its owner may let a group in.
                std::fs::set_permissions(path, Permissions::from_mode(0o660)).with_context(failed)?;
                Ok(endpoint)
            }
        }
    }

    /// The place at `address` that another server has taken and passed on as `listener`. The file
    /// of a socket stays that one's until [`Endpoint::own`].
    pub(crate) fn from_descriptor(address: &MetricsAddress, listener: OwnedFd) -> Self {
        let listener = match address {
            MetricsAddress::Tcp(_) => Listener::Tcp(listener.into()),
            MetricsAddress::Unix(_) => Listener::Unix(listener.into()),
        };
        Self { listener, path: None }
    }

    /// The file of the socket at `address` is this one's from now on.
    pub(crate) fn own(&mut self, address: &MetricsAddress) {
        if let MetricsAddress::Unix(path) = address {
            self.path = Some(path.clone());
        }
    }

    /// A descriptor of the place, to pass on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn listener(&self) -> io::Result<OwnedFd> {
        match &self.listener {
            Listener::Unix(listener) => listener.as_fd().try_clone_to_owned(),
            Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Starts to answer with what `watch` knows. The socket's file goes when the result is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn serve(mut self, watch: Arc<Watch>) -> Result<SocketFile> {
        let file = SocketFile(self.path.take());
        let body = move || {
            loop {
                let served = match &self.listener {
                    Listener::Unix(listener) => listener.accept().map(|(client, _)| answer(client, &watch)),
                    Listener::Tcp(listener) => listener.accept().map(|(client, _)| answer(client, &watch)),
                };
                match served {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "a client did not get the metrics"),
                    Err(error) => {
                        tracing::warn!(%error, "no client can get the metrics now");
                        std::thread::sleep(RETRY_PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(body)
            .context("a thread cannot be started")?;
        Ok(file)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(SocketFile(self.path.take()));
    }
}

/// The file of a Unix socket; removed when this is dropped.
pub(crate) struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.display(), "the socket of the metrics is not removed");
        }
    }
}

/// Reads one request and answers it.
fn answer(mut client: impl Client, watch: &Arc<Watch>) -> io::Result<()> {
    client.set_timeouts()?;
    let request = read_request(&mut client)?;
    let reply = reply_to(&request, || openmetrics::text(watch).ok());
    client.write_all(reply.as_bytes())?;
    client.end()
}

/// The head of a request.
fn read_request(client: &mut impl Read) -> io::Result<Vec<u8>> {
    let begun = Instant::now();
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = client.read(&mut part)?;
        request.extend_from_slice(&part[..length]);
        let late = begun.elapsed() > CLIENT_TIMEOUT;
        if length == 0 || request.len() > MAX_REQUEST_BYTES || late {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no complete request"));
        }
    }
    Ok(request)
}

/// The whole reply to a request.
fn reply_to(request: &[u8], metrics: impl FnOnce() -> Option<String>) -> String {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics() {
            Some(text) => ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            None => ("503 Service Unavailable", PLAIN, "the mount has ended\n".into()),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET is understood\n".into()),
    };
    let shown = if method == "HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{shown}",
        body.len()
    )
}

#[cfg(test)]
mod tests;
