//! Whole archives: `tar` on every file system, `espalier import` and `export` on ours, into the
//! mount and into the image, and how long the device takes for as many bytes.

use super::bench::Bench;
use super::figures::{CLIENT, EMBEDDED, What};
use super::work::Work;
use crate::system;
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RECORD_BYTES: usize = 512;
/// What is read from the device at a time.
const DEVICE_READ_BYTES: usize = 1 << 20;

/// Both trees.
pub(super) fn all(bench: &mut Bench<'_>) -> Result<()> {
    let works = bench.works;
    let files = bench.options.dir.join(format!("files-{}.tar", works[0].files.len()));
    if !files.exists() {
        write_archive(&works[0], &files)?;
    }
    let trees = bench.archive.to_path_buf();
    for (work, archive) in works.iter().zip([files, trees]) {
        one(bench, work, &archive)?;
    }
    bench.contender.unmount()
}

fn one(bench: &mut Bench<'_>, work: &Work, archive: &Path) -> Result<()> {
    let what = |step: &str| What::seconds(work.name, step, 0);
    let column = bench.contender.name.clone();
    let (by_tar, by_import) = (format!("{}-tar", work.name), format!("{}-import", work.name));
    bench.mount_cold()?;
    read_through(archive)?;
    bench.time_change(&column, &what("tar"), |root| {
        std::fs::create_dir(root.join(&by_tar))?;
        let mut tar = Command::new("tar");
        system::output(tar.arg("-xf").arg(archive).arg("-C").arg(root.join(&by_tar))).map(drop)
    })?;
    bench.mount_cold()?;
    let top = bench.contender.dir.join(&by_tar);
    bench.time(&column, &what("export"), |_| {
        drained(Command::new("tar").arg("-cf").arg("-").arg("-C").arg(&top).arg("."), work.bytes)
    })?;
    let Some(program) = bench.contender.program().map(Path::to_path_buf) else { return Ok(()) };
    bench.mount_cold()?;
    read_through(archive)?;
    bench.time_change(CLIENT, &what("import"), |root| {
        let mut import = Command::new(&program);
        system::output(import.arg("import").arg(archive).arg(root.join(&by_import))).map(drop)
    })?;
    bench.mount_cold()?;
    bench.time(CLIENT, &what("export"), |root| {
        drained(Command::new(&program).arg("export").arg(root.join(&by_import)).arg("-"), work.bytes)
    })?;
    embedded(bench, work, archive, &program)
}

/// The same without a mount.
fn embedded(bench: &mut Bench<'_>, work: &Work, archive: &Path, program: &Path) -> Result<()> {
    let what = |step: &str| What::seconds(work.name, step, 0);
    let device = bench.contender.device().to_path_buf();
    let mut inside = device.clone().into_os_string();
    inside.push(format!(":{}-embedded", work.name));
    bench.contender.unmount()?;
    system::drop_caches()?;
    read_through(archive)?;
    bench.time(EMBEDDED, &what("import"), |_| {
        system::output(Command::new(program).arg("import").arg(archive).arg(&inside)).map(drop)
    })?;
    system::drop_caches()?;
    bench.time(EMBEDDED, &what("export"), |_| {
        drained(Command::new(program).arg("export").arg(&inside).arg("-"), work.bytes)
    })?;
    let column = bench.contender.name.clone();
    bench.time(&column, &what("device"), |_| read_device(&device, work.bytes))?;
    bench.contender.mount().map(drop)
}

/// Runs a program and reads what it writes, at least so many bytes.
fn drained(command: &mut Command, least: u64) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().context("no pipe")?;
    let (mut buffer, mut written) = (vec![0; DEVICE_READ_BYTES], 0);
    loop {
        match out.read(&mut buffer)? {
            0 => break,
            length => written += length as u64,
        }
    }
    let status = child.wait()?;
    ensure!(status.success() && written >= least, "{command:?} failed ({status}) or wrote too little");
    Ok(())
}

/// Reads so many bytes from the beginning of the device, past the pages of the kernel.
fn read_device(device: &Path, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(device)?;
    let layout = std::alloc::Layout::from_size_align(DEVICE_READ_BYTES, 4096)?;
    let mut memory = vec![0u8; layout.size() + layout.align()];
    let skip = memory.as_ptr().align_offset(layout.align());
    let aligned = &mut memory[skip..skip + layout.size()];
    let mut at = 0;
    while at < bytes {
        let length = rustix::io::pread(&file, &mut *aligned, at)?;
        ensure!(length > 0, "the device ends after {at} bytes");
        at += length as u64;
    }
    Ok(())
}

/// Reads a file, so that nothing waits for it later.
fn read_through(path: &Path) -> Result<()> {
    std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
    Ok(())
}

/// Writes the regular files of a tree as a tar archive (ustar).
fn write_archive(work: &Work, to: &Path) -> Result<()> {
    let partial = PathBuf::from(to).with_extension("partial");
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
    for file in work.regular() {
        let content = work.content(file);
        out.write_all(&header(&file.path, file.mode, content.len())?)?;
        out.write_all(content)?;
        out.write_all(&vec![0; content.len().next_multiple_of(RECORD_BYTES) - content.len()])?;
    }
    out.write_all(&[0; 2 * RECORD_BYTES])?;
    out.into_inner()?.sync_all()?;
    Ok(std::fs::rename(partial, to)?)
}

fn header(path: &str, mode: u32, length: usize) -> Result<[u8; RECORD_BYTES]> {
    let mut record = [0; RECORD_BYTES];
    let mut put = |at: usize, field: &str| record[at..at + field.len()].copy_from_slice(field.as_bytes());
    ensure!(path.len() <= 100, "{path} is too long for a header");
    put(0, path);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{length:011o}"));
    put(136, &format!("{:011o}", 1_700_000_000));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\u{0}00");
    let sum: u32 = record.iter().map(|byte| u32::from(*byte)).sum();
    record[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(record)
}
