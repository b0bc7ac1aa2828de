//! A real block device: a loop device over an image. It takes root, so an ordinary user's run
//! passes it over, aloud; under CI (`CI` is set) that is a failure.

use espalier_storage::{AlignedBuf, Device, ErrorKind, FileDevice, OpenMode};
use std::path::Path;
use std::process::Command;

const LEN: u64 = 32 << 20;

/// Runs a system command; its trimmed output if it succeeded.
fn run(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Option<Self> {
        std::fs::File::create(image).unwrap().set_len(LEN).unwrap();
        run("losetup", &["--find", "--show", "--direct-io=on", image.to_str()?]).map(Self)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0]);
    }
}

struct Mount(String);

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[&self.0]);
    }
}

#[test]
fn reads_writes_locks_and_claims() {
    let build = std::env::current_exe().unwrap();
    let folder = tempfile::TempDir::new_in(build.parent().unwrap()).unwrap();
    let Some(device) = Loop::new(&folder.path().join("image")) else {
        assert!(std::env::var_os("CI").is_none(), "this test takes root and loop devices");
        eprintln!("PASSED OVER: no loop device to be had; this test takes root");
        return;
    };
    let path = &device.0;
    reads_and_writes(path);
    keeps_others_out(path);
    respects_mounts(path, folder.path());
}

fn reads_and_writes(path: &str) {
    let device = FileDevice::create(path, LEN).expect("a block device that is large enough");
    assert!(device.is_block_device() && device.is_direct());
    assert_eq!(device.len(), LEN);
    let mut buffer = AlignedBuf::zeroed(8192);
    buffer.fill(7);
    device.write_at(LEN - 8192, &[&buffer]).unwrap();
    device.sync().unwrap();
    device.discard(0, 1 << 20).unwrap();
    buffer.fill(0);
    device.read_at(LEN - 8192, &mut buffer).unwrap();
    assert!(buffer.iter().all(|b| *b == 7));
    assert_eq!(device.grow(LEN * 2).unwrap_err().kind, ErrorKind::Unsupported);
    device.grow(LEN).unwrap();
    drop(device);
    assert_eq!(FileDevice::create(path, LEN * 2).unwrap_err().kind, ErrorKind::NoSpace);
    assert!(Path::new(path).exists(), "a failed creation leaves a device node alone");
}

fn keeps_others_out(path: &str) {
    let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite] {
        assert_eq!(FileDevice::open(path, mode).unwrap_err().kind, ErrorKind::Busy);
    }
    assert_eq!(run("mkfs.ext4", &["-q", path]), None, "the claim keeps other programs out");
    device.release_claim();
    assert_eq!(FileDevice::open(path, OpenMode::ReadWrite).unwrap_err().kind, ErrorKind::Busy);
}

fn respects_mounts(path: &str, folder: &Path) {
    run("mkfs.ext4", &["-q", path]).expect("mkfs.ext4 runs");
    let point = folder.join("mount point").display().to_string();
    std::fs::create_dir(&point).unwrap();
    run("mount", &[path, &point]).expect("the loop device can be mounted");
    let mount = Mount(point.clone());
    let error = FileDevice::open(path, OpenMode::ReadWrite).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.to_string().contains(&point), "{error}");
    FileDevice::open(path, OpenMode::ReadOnly).expect("readers do no harm");
    drop(mount);
    FileDevice::open(path, OpenMode::ReadWrite).expect("free again after the unmount");
}
