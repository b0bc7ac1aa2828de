//! Contenders: file systems whose data lies in the objects of one bucket.
//!
//! `espalier` takes mount options behind a plus sign; `espalier+journal` and `espalier+disk_cache`
//! get a file and a directory of their own. `before` is another build. JuiceFS keeps its names in a
//! Redis that is started for it; rclone and s3fs make one object of each file.

use super::proxy::Proxy;
use super::server::{self, ACCESS_KEY, CREDENTIALS, SECRET_KEY, Server, tool};
use crate::options::Options;
use crate::system::{self, Undo};
use anyhow::{Context, Result, bail, ensure};
use espalier_sync::Mutex;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Virtual size of each file system of ours.
const DEVICE_SIZE: &str = "100G";
/// A mount that is not there by then does not come.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
/// What is not written back by then, behind an unmount, is not: small files, one after the other,
/// with several slow requests each.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Espalier,
    JuiceFs,
    Rclone,
    S3fs,
}

/// One contender on one server.
pub(super) struct Contender<'a> {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// Files of its own, beside the bucket.
    base: PathBuf,
    kind: Kind,
    program: PathBuf,
    mount_options: Vec<String>,
    cache: u64,
    server: &'a Server,
    /// Where JuiceFS keeps its names.
    redis: Option<(u16, Arc<Mutex<Child>>)>,
}

impl<'a> Contender<'a> {
    /// `None` for a program that is not installed.
    ///
    /// # Errors
    /// If there is no contender of that name.
    pub(super) fn new(
        name: &str,
        options: &Options,
        server: &'a Server,
        undo: &Undo,
    ) -> Result<Option<Self>> {
        let mut words = name.split('+').map(str::to_owned);
        let (kind, program) = match words.next().as_deref() {
            Some("espalier") => (Kind::Espalier, options.espalier().to_owned()),
            Some("before") => (Kind::Espalier, options.before.clone().context("`before` needs --before")?),
            Some("juicefs") => (Kind::JuiceFs, tool("juicefs")),
            Some("rclone") => (Kind::Rclone, tool("rclone")),
            Some("s3fs") => (Kind::S3fs, tool("s3fs")),
            _ => bail!("'{name}' is no contender; there are espalier, before, juicefs, rclone and s3fs"),
        };
        if !server::is_there(&program)
            || (kind == Kind::JuiceFs && !server::is_there(Path::new("redis-server")))
        {
            println!("{name}: {} is not installed", program.display());
            return Ok(None);
        }
        let root = std::path::absolute(&options.dir)?;
        let dir = root.join("mnt").join(name);
        let base = root.join("own").join(name);
        for path in [&dir, &base] {
            std::fs::create_dir_all(path)?;
        }
        undo.push({
            let dir = dir.clone();
            move || drop(system::run("umount", &["-l".as_ref(), dir.as_os_str()]))
        });
        let program = if program.components().count() > 1 { std::path::absolute(program)? } else { program };
        let (mount_options, cache) = (words.collect(), options.cache);
        let name = name.to_owned();
        Ok(Some(Self { name, dir, base, kind, program, mount_options, cache, server, redis: None }))
    }

    /// True for Espalier, of this build or another.
    pub(super) fn is_ours(&self) -> bool {
        self.kind == Kind::Espalier
    }

    /// The URL of a file system of ours, reached through a proxy.
    fn url(&self, proxy: &Proxy) -> String {
        format!("s3://{}/fs?endpoint={}", self.bucket(), proxy.endpoint())
    }

    fn bucket(&self) -> String {
        self.name.replace('+', "-").replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "")
    }

    /// A program with the credentials that it needs.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(CREDENTIALS.iter().copied()).env("HOME", &self.base).stdin(Stdio::null());
        // No TLS is spoken, and rclone refuses to begin with certificates of the machine's own.
        command.env_remove("AWS_CA_BUNDLE");
        command
    }

    /// Runs our program.
    ///
    /// # Errors
    /// If it fails.
    pub(super) fn espalier(&self, arguments: &[&str]) -> Result<String> {
        system::output(self.command(&self.program).args(arguments))
    }

    /// Makes an empty file system in an empty bucket.
    ///
    /// # Errors
    /// If a program fails.
    pub(super) fn make(&mut self, undo: &Undo) -> Result<()> {
        std::fs::remove_dir_all(&self.base)?;
        std::fs::create_dir_all(&self.base)?;
        self.server.make_bucket(&self.bucket())?;
        match self.kind {
            Kind::Espalier => {
                drop(self.espalier(&["mkfs", "--size", DEVICE_SIZE, &self.url(&self.server.proxy)])?)
            }
            Kind::JuiceFs => self.make_juicefs(undo)?,
            Kind::Rclone => {}
            Kind::S3fs => {
                let mut open = std::fs::File::options();
                let mut file = open
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(self.base.join("passwd"))?;
                std::io::Write::write_all(&mut file, format!("{ACCESS_KEY}:{SECRET_KEY}\n").as_bytes())?;
            }
        }
        Ok(())
    }

    fn make_juicefs(&mut self, undo: &Undo) -> Result<()> {
        if let Some((_, child)) = self.redis.take() {
            server::end(&mut child.lock());
        }
        let port = server::free_port()?;
        let mut command = Command::new("redis-server");
        // Names are durable when an fsync returns, as the data is.
        command.args(["--port", &port.to_string(), "--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", ""]).arg("--dir").arg(&self.base);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("redis-server")?;
        let child = Arc::new(Mutex::new(child));
        undo.push({
            let child = Arc::clone(&child);
            move || server::end(&mut child.lock())
        });
        server::wait_for(([127, 0, 0, 1], port).into(), &mut child.lock())?;
        self.redis = Some((port, child));
        let bucket = format!("{}/{}", self.server.proxy.endpoint(), self.bucket());
        let mut command = self.command(&self.program);
        command.args(["format", "--storage", "s3", "--bucket", &bucket, "--trash-days", "0"]);
        command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]);
        system::output(command.arg(self.names()).arg("bench")).map(drop)
    }

    /// Where JuiceFS keeps its names.
    fn names(&self) -> String {
        format!("redis://127.0.0.1:{}/1", self.redis.as_ref().map_or(0, |(port, _)| *port))
    }

    /// Mounts with cold caches; returns the seconds that it took.
    ///
    /// # Errors
    /// If the program fails.
    pub(super) fn mount(&self) -> Result<f64> {
        system::drop_caches()?;
        let mut command = self.command(&self.program);
        let caches = self.base.join("cache");
        if caches.exists() && self.kind != Kind::Espalier {
            std::fs::remove_dir_all(&caches)?;
        }
        match self.kind {
            Kind::Espalier => {
                self.mount_ours(&mut command, &self.dir, &self.server.proxy, &self.mount_options)
            }
            Kind::JuiceFs => {
                command.args(["mount", "-d", "--no-usage-report", "--cache-dir"]).arg(&caches);
                command.args(["--log", "/dev/null"]).arg(self.names()).arg(&self.dir);
            }
            Kind::Rclone => {
                let remote = format!(":s3:{}", self.bucket());
                command.args(["mount", "--daemon", "--vfs-cache-mode", "writes", "--vfs-write-back", "0s"]);
                command.args([
                    "--s3-provider",
                    "Other",
                    "--s3-env-auth",
                    "--s3-endpoint",
                    &self.server.proxy.endpoint(),
                ]);
                command.args(["--s3-force-path-style", "--config", "/dev/null", "--cache-dir"]).arg(&caches);
                command.arg(remote).arg(&self.dir);
            }
            Kind::S3fs => {
                command.arg(self.bucket()).arg(&self.dir).arg("-o");
                command.arg(format!("url={},use_path_request_style", self.server.proxy.endpoint()));
                command.arg("-o").arg(format!("passwd_file={}", self.base.join("passwd").display()));
            }
        }
        let started = Instant::now();
        match self.kind {
            Kind::Espalier => drop(system::output(&mut command)?),
            // The servers of others keep what they print on open.
            _ => {
                let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
                ensure!(status.success(), "{} cannot be mounted: {status}", self.name);
            }
        }
        while !system::is_mounted(&self.dir) {
            ensure!(started.elapsed() < MOUNT_LIMIT, "{} does not mount", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn mount_ours(&self, command: &mut Command, dir: &Path, proxy: &Proxy, options: &[String]) {
        let option = |word: &String| match word.as_str() {
            "journal" => format!("journal={}", self.base.join("journal").display()),
            "disk_cache" => format!("disk_cache={}", self.base.join("cache").display()),
            other => other.to_owned(),
        };
        let mut options: Vec<String> = options.iter().map(option).collect();
        options.push(format!("logfile={}", self.base.join("server.log").display()));
        command.args(["mount", "--cache", &self.cache.to_string(), "-o", &options.join(",")]);
        command.arg(self.url(proxy)).arg(dir);
    }

    /// Mounts the same file system of ours a second time, for reading, in another directory and
    /// through a proxy of its own.
    ///
    /// # Errors
    /// If the program fails.
    pub(super) fn mount_reader(&self, dir: &Path, proxy: &Proxy) -> Result<()> {
        let mut command = self.command(&self.program);
        self.mount_ours(&mut command, dir, proxy, &["ro".into(), "follow".into()]);
        system::output(&mut command).map(drop)
    }

    /// Unmounts; returns when everything is in the store.
    ///
    /// # Errors
    /// If the program fails.
    pub(super) fn unmount(&self) -> Result<()> {
        self.unmount_dir(&self.dir)
    }

    /// The same for another directory.
    ///
    /// # Errors
    /// As above.
    pub(super) fn unmount_dir(&self, dir: &Path) -> Result<()> {
        match self.kind {
            Kind::Espalier => system::output(self.command(&self.program).arg("umount").arg(dir))?,
            Kind::JuiceFs => {
                system::output(self.command(&self.program).args(["umount", "--flush"]).arg(dir))?
            }
            Kind::Rclone | Kind::S3fs => system::run("umount", &[dir.as_os_str()])?,
        };
        let started = Instant::now();
        // The process writes back what is left behind the unmount.
        while system::is_mounted(dir) || (self.kind == Kind::Rclone && self.has_unwritten()) {
            ensure!(started.elapsed() < WRITE_BACK_LIMIT, "{} does not unmount", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// True while rclone says of a file in its cache that it is not written back.
    fn has_unwritten(&self) -> bool {
        let notes = self.base.join("cache/vfsMeta");
        let found = system::run("grep", &["-rl".as_ref(), "\"Dirty\": true".as_ref(), notes.as_os_str()]);
        found.is_ok_and(|names| !names.trim().is_empty())
    }
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some((_, child)) = &self.redis {
            server::end(&mut child.lock());
        }
    }
}
