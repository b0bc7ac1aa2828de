//! Server: versitygw on a directory, with a bucket for each contender, behind a proxy.

use super::proxy::Proxy;
use crate::system::Undo;
use anyhow::{Context, Result, ensure};
use espalier_sync::Mutex;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const ACCESS_KEY: &str = "espalier";
pub(super) const SECRET_KEY: &str = "espaliersecret";
const REGION: &str = "us-east-1";
const START_LIMIT: Duration = Duration::from_secs(30);

/// The variables from which programs take their credentials.
pub(super) const CREDENTIALS: &[(&str, &str)] =
    &[("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY), ("AWS_REGION", REGION)];

/// A server and the proxy before it.
pub(super) struct Server {
    base: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) proxy: Proxy,
    child: Arc<Mutex<Child>>,
}

/// A program that scripts/install-deps put into its folder, or else one of the path.
pub(super) fn tool(name: &str) -> PathBuf {
    let home = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| home("HOME").map(|home| home.join(".cache")));
    let tools = home("ESPALIER_TOOLS").or_else(|| cache.map(|cache| cache.join("espalier/tools")));
    let installed = tools.map(|tools| tools.join("bin").join(name)).filter(|path| path.exists());
    installed.unwrap_or_else(|| name.into())
}

/// True if a program can be run.
pub(super) fn is_there(program: &Path) -> bool {
    let mut command = Command::new(program);
    let child =
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.is_ok_and(|mut child| child.wait().is_ok())
}

/// A port that is free now.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Waits until something listens.
pub(super) fn wait_for(address: SocketAddr, child: &mut Child) -> Result<()> {
    let end = Instant::now() + START_LIMIT;
    while TcpStream::connect(address).is_err() {
        ensure!(child.try_wait()?.is_none(), "the server at {address} has ended");
        ensure!(Instant::now() < end, "the server at {address} does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Server {
    /// Starts one whose objects lie in the folder `objects` of `base`, which is emptied before.
    pub(super) fn start(base: &Path, undo: &Undo) -> Result<Self> {
        let base = base.join("objects");
        if base.exists() {
            std::fs::remove_dir_all(&base)?;
        }
        std::fs::create_dir_all(&base)?;
        let program = tool("versitygw");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut command = Command::new(&program);
        command.args(["--port", &address.to_string(), "--region", REGION, "--quiet", "posix"]).arg(&base);
        command.env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| {
            format!(
                "{} cannot be run: scripts/install-deps objects of the sources installs it",
                program.display()
            )
        })?;
        let child = Arc::new(Mutex::new(child));
        undo.push({
            let child = Arc::clone(&child);
            move || end(&mut child.lock())
        });
        wait_for(address, &mut child.lock())?;
        Ok(Self { base, address, proxy: Proxy::start(address)?, child })
    }

    /// The number of the server's process.
    pub(super) fn process(&self) -> u32 {
        self.child.lock().id()
    }

    /// An empty bucket.
    pub(super) fn make_bucket(&self, name: &str) -> Result<()> {
        let bucket = self.base.join(name);
        if bucket.exists() {
            std::fs::remove_dir_all(&bucket)?;
        }
        std::fs::create_dir(&bucket).with_context(|| bucket.display().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child.lock());
    }
}

/// Ends a server; one that has ended already is none's business any more.
pub(super) fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
