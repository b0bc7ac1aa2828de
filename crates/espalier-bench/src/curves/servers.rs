//! What servers do, by the number of their threads: mail in maildirs, and the personalities of
//! filebench (fileserver, webserver, varmail) with their mix of operations.

use super::bench::Bench;
use crate::random::Random;
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads there are.
const THREADS: [u64; 4] = [1, 2, 4, 8];

/// Files of one thread, by their numbers: it takes some away and makes new ones.
struct Files {
    dir: PathBuf,
    /// The numbers from the oldest file that is there to the next one.
    first: AtomicU64,
    next: AtomicU64,
    /// Bytes of a file, on average.
    mean: usize,
}

impl Files {
    /// Makes a directory with files.
    fn new(dir: PathBuf, count: u64, mean: usize) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let files = Self { dir, first: AtomicU64::new(0), next: AtomicU64::new(0), mean };
        let mut random = Random(count + 1);
        for _ in 0..count {
            files.create(&mut random, false)?;
        }
        Ok(files)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:08}"))
    }

    /// One of the files that are there. Only their own thread takes any away.
    fn any(&self, random: &mut Random) -> PathBuf {
        let (first, next) = (self.first.load(Ordering::Relaxed), self.next.load(Ordering::Relaxed));
        self.path(first + random.next() % (next - first).max(1))
    }

    /// Makes a file of a random length around the mean.
    fn create(&self, random: &mut Random, durable: bool) -> Result<()> {
        let mut content = vec![0; self.mean / 2 + random.next() as usize % self.mean];
        random.fill(&mut content);
        let mut file = File::create(self.path(self.next.fetch_add(1, Ordering::Relaxed)))?;
        file.write_all(&content)?;
        if durable {
            file.sync_all()?;
        }
        Ok(())
    }

    /// Takes the oldest file away.
    fn delete(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.path(self.first.fetch_add(1, Ordering::Relaxed)))?)
    }

    fn append(&self, random: &mut Random, length: usize, durable: bool) -> Result<()> {
        append(&self.any(random), random, length, durable)
    }

    fn read(&self, random: &mut Random) -> Result<()> {
        std::fs::read(self.any(random))?;
        Ok(())
    }
}

fn append(path: &Path, random: &mut Random, length: usize, durable: bool) -> Result<()> {
    let mut content = vec![0; length];
    random.fill(&mut content);
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(&content)?;
    if durable {
        file.sync_all()?;
    }
    Ok(())
}

/// Runs an operation on files of each thread, with ever more threads.
fn by_threads(
    bench: &mut Bench<'_>,
    curve: &'static str,
    files: u64,
    mean: usize,
    operations: u64,
    operation: impl Fn(&Files, &mut Random) -> Result<()> + Sync,
) -> Result<()> {
    for threads in THREADS {
        let of = |thread| bench.root().join(format!("{curve}-{threads}-{thread}"));
        let each = (bench.count(files) / threads).max(4);
        let sets: Vec<_> =
            (0..threads).map(|thread| Files::new(of(thread), each, mean)).collect::<Result<_>>()?;
        bench.settle()?;
        let rate = bench.rate(threads, bench.count(operations), |thread, random| {
            operation(sets.get(thread as usize).context("a thread without files")?, random)
        })?;
        bench.point(curve, threads as f64, rate);
        for set in sets {
            std::fs::remove_dir_all(set.dir)?;
        }
    }
    Ok(())
}

/// filebench's `fileserver`: create, append 16 KiB, read whole, delete, stat; 128 KiB on average.
pub(super) fn fileserver(bench: &mut Bench<'_>) -> Result<()> {
    by_threads(bench, "fileserver", 10_000, 128 << 10, 4_000, |files, random| {
        files.create(random, false)?;
        files.append(random, 16 << 10, false)?;
        files.read(random)?;
        files.delete()?;
        std::fs::metadata(files.any(random))?;
        Ok(())
    })
}

/// filebench's `webserver`: ten files of 16 KiB read, 16 KiB appended to a log.
pub(super) fn webserver(bench: &mut Bench<'_>) -> Result<()> {
    by_threads(bench, "webserver", 10_000, 16 << 10, 5_000, |files, random| {
        for _ in 0..10 {
            files.read(random)?;
        }
        append(&files.dir.join("log"), random, 16 << 10, false)
    })
}

/// filebench's `varmail`: delete; create and fsync; read, append and fsync; read; 16 KiB on
/// average.
pub(super) fn varmail(bench: &mut Bench<'_>) -> Result<()> {
    by_threads(bench, "varmail", 1_000, 16 << 10, 4_000, |files, random| {
        files.delete()?;
        files.create(random, true)?;
        files.read(random)?;
        files.append(random, 16 << 10, true)?;
        files.read(random)
    })
}

/// A mail server with maildirs: of twenty operations five deliver (write, fsync, rename into
/// `new`), eight read, four mark (rename with other flags), two move to another box, one expunges.
pub(super) fn mail(bench: &mut Bench<'_>) -> Result<()> {
    for threads in THREADS {
        let root = bench.root().join(format!("mail-{threads}"));
        let each = (bench.count(10_000) / threads).max(16);
        let boxes: Vec<_> = (0..threads)
            .map(|thread| Mail::new(&root.join(thread.to_string()), each).map(espalier_sync::Mutex::new))
            .collect::<Result<_>>()?;
        bench.settle()?;
        let rate = bench.rate(threads, bench.count(20_000), |thread, random| {
            boxes.get(thread as usize).context("a thread without a box")?.lock().operate(random)
        })?;
        bench.point("mail", threads as f64, rate);
        drop(boxes);
        std::fs::remove_dir_all(root)?;
    }
    Ok(())
}

/// Two boxes of a user, and the paths of the messages in them.
struct Mail {
    root: PathBuf,
    messages: Vec<PathBuf>,
    delivered: u64,
}

impl Mail {
    fn new(root: &Path, count: u64) -> Result<Self> {
        for part in ["inbox", "archive"] {
            for kind in ["tmp", "new", "cur"] {
                std::fs::create_dir_all(root.join(part).join(kind))?;
            }
        }
        let mut mail = Self { root: root.into(), messages: Vec::new(), delivered: 0 };
        let mut random = Random(count);
        for _ in 0..count {
            mail.deliver(&mut random, false)?;
        }
        Ok(mail)
    }

    /// Messages have 1 to 64 KiB, small ones more often.
    fn deliver(&mut self, random: &mut Random, durable: bool) -> Result<()> {
        let mut content = vec![0; (1 << (10 + random.next() % 6)) + random.next() as usize % 1024];
        random.fill(&mut content);
        let name = format!("{}.M1P1.host", self.delivered);
        self.delivered += 1;
        let written = self.root.join("inbox/tmp").join(&name);
        let mut file = File::create(&written)?;
        file.write_all(&content)?;
        if durable {
            file.sync_all()?;
        }
        let place = self.root.join("inbox/new").join(name);
        std::fs::rename(written, &place)?;
        self.messages.push(place);
        Ok(())
    }

    fn operate(&mut self, random: &mut Random) -> Result<()> {
        let kind = random.next() % 20;
        if kind < 5 || self.messages.is_empty() {
            return self.deliver(random, true);
        }
        let at = random.next() as usize % self.messages.len();
        let path = &self.messages[at];
        match kind {
            5..13 => drop(std::fs::read(path)?),
            13..19 => {
                let name =
                    path.file_name().and_then(|name| name.to_str()).context("a message without a name")?;
                let name = name.split(':').next().unwrap_or(name);
                let part = if kind < 17 { "inbox/cur" } else { "archive/cur" };
                let flags = ["S", "RS", "FS", "T"][random.next() as usize % 4];
                let place = self.root.join(part).join(format!("{name}:2,{flags}"));
                std::fs::rename(path, &place)?;
                self.messages[at] = place;
            }
            _ => std::fs::remove_file(self.messages.swap_remove(at))?,
        }
        Ok(())
    }
}
