//! As much of HTTP/1.1 as a proxy needs: where heads and bodies end.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, Read, Write};

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Bytes(u64),
    Chunked,
    /// Until the connection ends.
    UntilEnd,
}

/// The head of a request or of a reply.
#[derive(Debug)]
pub(super) struct Head {
    /// As it was received.
    pub(super) bytes: Vec<u8>,
    /// Of a request.
    pub(super) method: String,
    pub(super) target: String,
    /// Of a reply.
    pub(super) status: u16,
    pub(super) body: Body,
    pub(super) expects_continue: bool,
    pub(super) closes: bool,
}

impl Head {
    /// The next request; `None` if the connection has ended.
    pub(super) fn read_request(from: &mut impl BufRead) -> Result<Option<Self>> {
        let Some(bytes) = read_head(from)? else { return Ok(None) };
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        ensure!(parsed.parse(&bytes)?.is_complete(), "half a request");
        let (method, target) = (parsed.method.unwrap_or("").to_owned(), parsed.path.unwrap_or("").to_owned());
        let mut head = Self {
            bytes: Vec::new(),
            method,
            target,
            status: 0,
            body: Body::Bytes(0),
            expects_continue: false,
            closes: false,
        };
        head.apply(parsed.headers)?;
        head.bytes = bytes;
        Ok(Some(head))
    }

    /// The reply to a request; `None` if the connection has ended.
    pub(super) fn read_reply(from: &mut impl BufRead, request: &Self) -> Result<Option<Self>> {
        let Some(bytes) = read_head(from)? else { return Ok(None) };
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        ensure!(parsed.parse(&bytes)?.is_complete(), "half a reply");
        let status = parsed.code.unwrap_or(0);
        let mut head = Self {
            bytes: Vec::new(),
            method: String::new(),
            target: String::new(),
            status,
            body: Body::UntilEnd,
            expects_continue: false,
            closes: false,
        };
        head.apply(parsed.headers)?;
        if request.method == "HEAD" || status < 200 || status == 204 || status == 304 {
            head.body = Body::Bytes(0);
        }
        head.bytes = bytes;
        Ok(Some(head))
    }

    fn apply(&mut self, headers: &[httparse::Header<'_>]) -> Result<()> {
        for header in headers {
            let value = std::str::from_utf8(header.value).unwrap_or("").trim();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => self.body = Body::Bytes(value.parse().context("content-length")?),
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => self.body = Body::Chunked,
                "expect" => self.expects_continue = value.eq_ignore_ascii_case("100-continue"),
                "connection" => self.closes = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Ok(())
    }
}

/// All lines up to an empty one.
fn read_head(from: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let count = from.by_ref().take((MAX_HEAD_BYTES - before) as u64).read_until(b'\n', &mut bytes)?;
        if count == 0 {
            ensure!(bytes.is_empty(), "the connection ended inside of a head, or the head is too long");
            return Ok(None);
        }
        if bytes[before..] == *b"\r\n" && before > 0 {
            return Ok(Some(bytes));
        }
    }
}

/// Copies a body; returns its bytes.
pub(super) fn relay_body(from: &mut impl BufRead, to: &mut impl Write, body: Body) -> Result<u64> {
    match body {
        Body::Bytes(bytes) => {
            copy(from, to, bytes)?;
            Ok(bytes)
        }
        Body::UntilEnd => Ok(std::io::copy(from, to)?),
        Body::Chunked => {
            let mut total = 0;
            loop {
                let mut line = Vec::new();
                from.by_ref().take(1024).read_until(b'\n', &mut line)?;
                let digits = String::from_utf8_lossy(&line);
                let digits = digits.split(';').next().unwrap_or("").trim();
                let Ok(bytes) = u64::from_str_radix(digits, 16) else {
                    bail!("'{digits}' is no length of a chunk")
                };
                to.write_all(&line)?;
                // Two bytes end the chunk, or the body, which has no trailers here.
                copy(from, to, bytes + 2)?;
                total += bytes;
                if bytes == 0 {
                    return Ok(total);
                }
            }
        }
    }
}

/// Copies so many bytes in the pieces in which they come.
fn copy(from: &mut impl BufRead, to: &mut impl Write, mut bytes: u64) -> Result<()> {
    while bytes > 0 {
        let buffer = from.fill_buf()?;
        ensure!(!buffer.is_empty(), "the connection ended inside of a body");
        let part = buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        to.write_all(&buffer[..part])?;
        from.consume(part);
        bytes -= part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
