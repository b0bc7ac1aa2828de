//! Plain puts and gets with the crate `object_store`: what a link and a server give.

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

/// MiB per second of puts, and of gets of the same objects.
pub(super) fn rates(server: &Server, bytes: u64) -> Result<(f64, f64)> {
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
    let rate = |started: Instant| ((count * OBJECT_BYTES) >> 20) as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    runtime.block_on(put_all(&store, count))?;
    let put = rate(started);
    let started = Instant::now();
    let got = runtime.block_on(get_all(&store, count))?;
    ensure!(got == count * OBJECT_BYTES, "{got} bytes were got");
    Ok((put, rate(started)))
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
