//! What is measured. A step works inside one directory and ends when its work is durable.

use crate::contender::Contender;
use crate::options::Options;
use crate::{system, tree};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Sizes and inputs, the same for all contenders.
pub(crate) struct Setting {
    pub(crate) tarball: PathBuf,
    pub(crate) file_bytes: u64,
    pub(crate) overwrites: u64,
    pub(crate) appends: u64,
    /// Bytes of memory to touch before a stage.
    pub(crate) touch: u64,
}

impl Setting {
    /// The sizes that a user asks for, and the tree, which is made if it is not there.
    pub(crate) fn prepare(options: &Options) -> Result<Self> {
        Ok(Self {
            tarball: tree::prepare(options)?,
            file_bytes: options.file_size,
            overwrites: options.overwrites,
            appends: options.appends,
            touch: options.touch,
        })
    }

    /// Reads the archive, so that unpacking never waits for it.
    pub(crate) fn warm_up(&self) -> Result<()> {
        std::io::copy(&mut File::open(&self.tarball)?, &mut std::io::sink())?;
        Ok(())
    }
}

/// One measured piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Unpack,
    GrepCold,
    FindCold,
    FindWarm,
    ListCold,
    ListWarm,
    Remove,
    WriteSequential,
    ReadSequential,
    Overwrite4B,
    Overwrite4K,
    AppendFsync,
    Recovery,
}

/// Steps that run on one mount, one after the other. The first finds cold caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) steps: Vec<Step>,
}

/// Everything, in order: a stage may build on what earlier ones left behind.
const STAGES: &[&[Step]] = &[
    &[Step::Unpack],
    &[Step::GrepCold],
    &[Step::FindCold, Step::FindWarm],
    &[Step::ListCold, Step::ListWarm],
    &[Step::Remove],
    &[Step::WriteSequential],
    &[Step::ReadSequential],
    &[Step::Overwrite4B],
    &[Step::Overwrite4K],
    &[Step::AppendFsync],
    &[Step::Recovery],
];

/// Picks the stages that contain the named steps, and what these need.
pub(crate) fn stages(names: &[String]) -> Result<Vec<Stage>> {
    let all: Vec<Step> = STAGES.concat();
    let known = || all.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ");
    let mut wanted = Vec::new();
    for name in names {
        if name == "all" {
            wanted.extend(&all);
            continue;
        }
        match all.iter().find(|s| s.name() == name) {
            Some(step) => wanted.extend(step.needs().iter().copied().chain([*step])),
            None => bail!("'{name}' is no step; there are all, {}", known()),
        }
    }
    let chosen = STAGES.iter().filter(|stage| stage.iter().any(|s| wanted.contains(s)));
    Ok(chosen.map(|stage| Stage { steps: stage.to_vec() }).collect())
}

impl Stage {
    pub(crate) fn name(&self) -> &'static str {
        self.steps[0].name()
    }

    /// Leaves every cache cold but for what feeds the stage.
    pub(crate) fn prepare(&self, setting: &Setting) -> Result<()> {
        system::drop_caches()?;
        system::touch_memory(setting.touch)?;
        if self.steps.contains(&Step::Unpack) || self.steps.contains(&Step::Recovery) {
            setting.warm_up()?;
        }
        Ok(())
    }
}

impl Step {
    /// True if the contender can do this.
    pub(crate) fn is_possible(self, contender: &Contender) -> bool {
        use Step::*;
        let without_data = [Unpack, Remove, WriteSequential, Overwrite4B, Overwrite4K, AppendFsync];
        contender.keeps_data() || without_data.contains(&self)
    }

    /// The name in tables and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unpack => "unpack",
            Self::GrepCold => "grep_cold",
            Self::FindCold => "find_cold",
            Self::FindWarm => "find_warm",
            Self::ListCold => "ls_lR_cold",
            Self::ListWarm => "ls_lR_warm",
            Self::Remove => "rm_rf",
            Self::WriteSequential => "write_seq",
            Self::ReadSequential => "read_seq_cold",
            Self::Overwrite4B => "overwrite_4B",
            Self::Overwrite4K => "overwrite_4K",
            Self::AppendFsync => "append_fsync",
            Self::Recovery => "recovery",
        }
    }

    /// The smallest ratio (time of the best kernel file system by that of Espalier) we are content
    /// with.
    pub(crate) fn floor(name: &str) -> Option<f64> {
        Some(match name {
            "unpack" => 0.5,
            "grep_cold" => 2.0,
            "rm_rf" => 1.0 / 1.5,
            "write_seq" | "read_seq_cold" => 0.7,
            "overwrite_4B" => 4.0,
            "overwrite_4K" => 1.0,
            "append_fsync" => 0.9,
            _ => return None,
        })
    }

    fn needs(self) -> &'static [Self] {
        match self {
            Self::GrepCold | Self::FindCold | Self::FindWarm => &[Self::Unpack],
            Self::ListCold | Self::ListWarm | Self::Remove => &[Self::Unpack],
            Self::ReadSequential | Self::Overwrite4B | Self::Overwrite4K => &[Self::WriteSequential],
            _ => &[],
        }
    }

    /// Does the work in `root`; returns the seconds until it was durable.
    pub(crate) fn run(self, root: &Path, setting: &Setting) -> Result<f64> {
        let started = Instant::now();
        let tree = root.join("tree");
        let file = root.join("file");
        match self {
            Self::Unpack => {
                std::fs::create_dir(&tree)?;
                system::output(Command::new("tar").arg("-xf").arg(&setting.tarball).arg("-C").arg(&tree))?;
            }
            Self::GrepCold => drain("grep", &["-r", "cpu_to_be64"], &tree)?,
            Self::FindCold | Self::FindWarm => drain("find", &["."], &tree)?,
            Self::ListCold | Self::ListWarm => drain("ls", &["-lR", "."], &tree)?,
            Self::Remove => drop(system::output(Command::new("rm").arg("-rf").arg(&tree))?),
            Self::WriteSequential => write_sequential(&file, setting.file_bytes)?,
            Self::ReadSequential => read_sequential(&file, setting.file_bytes)?,
            Self::Overwrite4B => overwrite(&file, setting.file_bytes, setting.overwrites, 4)?,
            Self::Overwrite4K => overwrite(&file, setting.file_bytes, setting.overwrites, 4096)?,
            Self::AppendFsync => append(&root.join("log"), setting.appends)?,
            Self::Recovery => bail!("recovery is no ordinary step"),
        }
        make_durable(root)?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// syncfs, and an fsync of the root directory, because a FUSE server never hears of syncfs.
pub(crate) fn make_durable(root: &Path) -> Result<()> {
    let dir = File::open(root)?;
    rustix::fs::syncfs(&dir).context("syncfs")?;
    dir.sync_all().context("fsync of the root directory")
}

/// Runs a program in `dir` and reads what it prints (grep would stop early at /dev/null).
pub(crate) fn drain(program: &str, arguments: &[&str], dir: &Path) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} cannot be run"))?;
    let mut out = child.stdout.take().context("no pipe")?;
    let printed = std::io::copy(&mut out, &mut std::io::sink())?;
    let status = child.wait()?;
    ensure!(status.success() && printed > 0, "{program} failed ({status}) or found nothing");
    Ok(())
}

/// A small reproducible generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

const MIB: usize = 1 << 20;

fn write_sequential(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    // Incompressible; every mebibyte differs in its first bytes, so that none equals another.
    let mut chunk = vec![0; MIB];
    Random(1).fill(&mut chunk);
    for number in 0..bytes / MIB as u64 {
        chunk[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

fn read_sequential(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; MIB];
    for number in 0..bytes / MIB as u64 {
        file.read_exact(&mut chunk)?;
        ensure!(chunk[..8] == number.to_le_bytes(), "mebibyte {number} of {} is wrong", path.display());
    }
    Ok(())
}

fn overwrite(path: &Path, bytes: u64, count: u64, length: usize) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut random = Random(length as u64);
    let mut data = vec![0; length];
    for _ in 0..count {
        random.fill(&mut data);
        let slot = random.next() % (bytes / length as u64);
        file.write_all_at(&data, slot * length as u64)?;
    }
    Ok(file.sync_all()?)
}

fn append(path: &Path, count: u64) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o644).open(path)?;
    let mut data = [0; 4096];
    let mut random = Random(3);
    for _ in 0..count {
        random.fill(&mut data);
        file.write_all(&data)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Kills the server in the middle of an unpack; returns the seconds the next mount took. `None` for
/// a contender without a server.
pub(crate) fn recovery(contender: &mut Contender, setting: &Setting) -> Result<Option<f64>> {
    contender.mount()?;
    if contender.daemon()?.is_none() {
        contender.unmount()?;
        return Ok(None);
    }
    let tree = contender.dir.join("killed");
    std::fs::create_dir(&tree)?;
    let mut tar = Command::new("tar")
        .args(["-xf", "-", "-C"])
        .arg(&tree)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut feed = tar.stdin.take().context("no pipe")?;
    let half = std::fs::metadata(&setting.tarball)?.len() / 2;
    std::io::copy(&mut File::open(&setting.tarball)?.take(half), &mut feed)?;
    contender.kill()?;
    drop(feed);
    let _ = tar.wait();
    let seconds = contender.mount()?;
    let entries = std::fs::read_dir(&contender.dir)?.count();
    ensure!(entries > 0, "nothing is left after recovery");
    contender.unmount()?;
    Ok(Some(seconds))
}
