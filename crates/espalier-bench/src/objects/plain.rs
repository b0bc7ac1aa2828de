//! Plain puts and gets with the crate `object_store`: what a link and a server give.

use super::processors::ProcessorTime;
use super::server::{ACCESS_KEY, SECRET_KEY, Server};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use std::time::Instant;

const OBJECT_BYTES: u64 = 8 << 20;
/// Requests at a time.
const WIDTH: usize = 16;
const BUCKET: &str = "plain";

/// What puts, or gets, of some bytes gave and took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    /// MiB per second.
    pub(super) rate: f64,
    /// Milliseconds of processor time for each MiB, of client and server together.
    pub(super) work: f64,
}

/// Puts, and gets of the same objects.
pub(super) fn rates(server: &Server, bytes: u64) -> Result<(Plain, Plain)> {
    server.make_bucket(BUCKET)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The client wants ciphers even where no TLS is spoken; another library may have chosen them.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_endpoint(server.proxy.endpoint())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .build()
        .context("a client of object_store")?;
    let count = (bytes / OBJECT_BYTES).max(1);
    let begin = || anyhow::Ok((ProcessorTime::now(server.process())?, Instant::now()));
    let end = |(before, started): (ProcessorTime, Instant)| {
        let (seconds, mib) = (started.elapsed().as_secs_f64(), ((count * OBJECT_BYTES) >> 20) as f64);
        let worked = ProcessorTime::now(server.process())?.since(&before);
        anyhow::Ok(Plain { rate: mib / seconds, work: worked.all * 1e3 / mib })
    };
    let begun = begin()?;
    runtime.block_on(put_all(&store, count))?;
    let put = end(begun)?;
    let begun = begin()?;
    let got = runtime.block_on(get_all(&store, count))?;
    ensure!(got == count * OBJECT_BYTES, "{got} bytes were got");
    Ok((put, end(begun)?))
}

fn name(number: u64) -> Path {
    Path::from(format!("object-{number}"))
}

async fn put_all(store: &AmazonS3, count: u64) -> Result<()> {
    let bytes = Bytes::from(vec![7; OBJECT_BYTES as usize]);
    let puts = stream::iter(0..count).map(|number| {
        let payload = PutPayload::from(bytes.clone());
        async move { store.put(&name(number), payload).await.map(drop) }
    });
    Ok(puts.buffer_unordered(WIDTH).try_collect::<Vec<()>>().await.map(drop)?)
}

async fn get_all(store: &AmazonS3, count: u64) -> Result<u64> {
    let gets = stream::iter(0..count).map(|number| async move {
        let bytes = store.get(&name(number)).await?.bytes().await?;
        Ok::<u64, object_store::Error>(bytes.len() as u64)
    });
    Ok(gets.buffer_unordered(WIDTH).try_fold(0, |sum, bytes| async move { Ok(sum + bytes) }).await?)
}
