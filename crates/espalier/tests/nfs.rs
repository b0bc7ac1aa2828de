//! An NFS server that works by file handles (nfs-ganesha) exports a directory of a mount.

mod common;

use common::Place;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A server that ends with the test.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Exports `directory`; `place` is for its files.
    fn start(place: &Place, directory: &Path) -> Self {
        // It is free again when the server asks for it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (state, export) = (place.base.path().display(), directory.display());
        let configuration = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false; \
             Enable_RQUOTA = false; Enable_UDP = false; }}\n\
             NFS_KRB5 {{ Active_krb5 = false; }}\n\
             NFSv4 {{ Graceless = true; RecoveryRoot = {state}; }}\n\
             EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /export; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Filesystem_Id = 7.7; FSAL {{ Name = VFS; }} }}\n"
        );
        fs::write(place.path("ganesha.conf"), configuration).unwrap();
        let process = Command::new("ganesha.nfsd")
            .arg("-F")
            .arg("-f")
            .arg(place.path("ganesha.conf"))
            .arg("-L")
            .arg(place.path("ganesha.log"))
            .arg("-p")
            .arg(place.path("ganesha.pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { process, port };
        while !server.ask("nfs-ls", "").status.success() {
            let ended = server.process.try_wait().unwrap();
            let log = fs::read_to_string(place.path("ganesha.log")).unwrap_or_default();
            assert!(ended.is_none(), "the server ended: {log}");
            std::thread::yield_now();
        }
        server
    }

    /// Has a client do something with a path.
    fn ask(&self, client: &str, path: &str) -> Output {
        let url = format!("nfs://127.0.0.1/export/{path}?version=4&nfsport={}", self.port);
        Command::new("timeout").args(["60", client, &url]).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn assert_content(&self, path: &str, content: &[u8]) {
        let read = self.ask("nfs-cat", path);
        assert!(read.status.success(), "{path}: {}", String::from_utf8_lossy(&read.stderr));
        assert!(read.stdout == content, "{path}: {} bytes", read.stdout.len());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("-v").stdin(Stdio::null()).output().is_ok()
}

#[test]
fn an_nfs_server_finds_files_that_the_kernel_has_dropped() {
    if !["ganesha.nfsd", "nfs-ls", "nfs-cat"].into_iter().all(is_installed) {
        assert!(std::env::var_os("CI").is_none(), "scripts/install-deps test installs nfs-ganesha");
        eprintln!("there is no NFS server: run scripts/install-deps test");
        return;
    }
    let place = Place::with_image("64M");
    place.mount(&["-o", "nfs_export"]).ok();
    let export = place.dir.join("export");
    fs::create_dir_all(export.join("a/b")).unwrap();
    let large: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(export.join("a/b/large"), &large).unwrap();
    fs::write(export.join("a/small"), "small").unwrap();
    let drop_caches = || fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let server = Server::start(&place, &export);
    for _ in 0..3 {
        server.assert_content("a/b/large", &large);
        server.assert_content("a/small", b"small");
        drop_caches();
    }
    fs::rename(export.join("a/b"), export.join("c")).unwrap();
    drop_caches();
    server.assert_content("c/large", &large);
    drop(server);
    place.umount().ok();
    place.fsck().ok();
}
