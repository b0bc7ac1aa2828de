//! What is measured. A step works inside one directory and ends when its work is durable.

mod access;
mod recovery;
pub(crate) mod small;
pub(crate) mod trees;

use crate::contender::Contender;
use crate::options::{Options, chosen};
use crate::system::{self, make_durable};
use crate::tree;
use access::RandomReads;
use anyhow::{Context, Result, bail};
pub(crate) use recovery::recovery;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
pub(crate) use trees::drain;

/// Sizes and inputs, the same for all contenders.
pub(crate) struct Setting {
    pub(crate) tarball: PathBuf,
    pub(crate) file_bytes: u64,
    pub(crate) overwrites: u64,
    /// Random reads of 4 KiB.
    pub(crate) reads: u64,
    pub(crate) appends: u64,
    /// Files of 200 bytes.
    pub(crate) small_files: u64,
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
            reads: options.reads.min(options.file_size / 4096),
            appends: options.appends,
            small_files: options.small_files,
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The name in tables and on the command line.
    pub(crate) name: &'static str,
    /// The smallest ratio (time of the best kernel file system by that of Espalier) that is enough.
    goal: Option<f64>,
    /// The steps whose results it works on.
    needs: &'static [&'static str],
    /// True if a server can do it that does not keep what is written.
    without_data: bool,
    /// Does it; the result is the seconds that it measured itself, if it did.
    work: fn(&Place<'_>) -> Result<Option<f64>>,
}

/// Where a step works, and on how much.
struct Place<'a> {
    setting: &'a Setting,
    root: &'a Path,
}

impl Place<'_> {
    /// The source tree.
    fn tree(&self) -> PathBuf {
        self.root.join(SOURCES)
    }

    /// The large file.
    fn file(&self) -> PathBuf {
        self.root.join("file")
    }

    /// The tree of small files.
    fn small(&self) -> PathBuf {
        self.root.join("small")
    }

    /// What is taken away after the stage, outside of all times.
    fn scrap(&self) -> PathBuf {
        self.root.join(SCRAP)
    }

    /// Reads 4 KiB at random places of the large file.
    fn reads(&self, engine: &'static str, direct: bool, jobs: u64, depth: u64) -> Result<Option<f64>> {
        let how = RandomReads { engine, direct, jobs, depth };
        access::read_random(&self.file(), self.setting.file_bytes, self.setting.reads, how).map(Some)
    }
}

/// The source tree.
const SOURCES: &str = "tree";

/// What a stage leaves that no other one needs.
const SCRAP: &str = "scrap";

/// Describes a step, for [`STAGES`].
const fn step(name: &'static str, work: fn(&Place<'_>) -> Result<Option<f64>>) -> Step {
    Step { name, goal: None, needs: &[], without_data: false, work }
}

impl Step {
    const fn goal(mut self, ratio: f64) -> Self {
        self.goal = Some(ratio);
        self
    }

    const fn needs(mut self, names: &'static [&'static str]) -> Self {
        self.needs = names;
        self
    }

    const fn without_data(mut self) -> Self {
        self.without_data = true;
        self
    }
}

/// The step that is a mount after a kill, and takes the contender itself.
pub(crate) const RECOVERY: &str = "recovery";

const TREE: &[&str] = &["unpack"];
const MAKES_REPOSITORY: &str = "git_commit";
const REPOSITORY: &[&str] = &["unpack", MAKES_REPOSITORY];
const FILE: &[&str] = &["write_seq"];
const SMALL: &[&str] = &["toku_create"];

/// Everything, in order: a stage, whose steps run on one mount one after the other, finds cold
/// caches, and may build on what earlier ones left behind. The goals are those of a compleat file
/// system (EuroSys 2022) as far as the protocol of FUSE lets a server reach them.
const STAGES: &[&[Step]] = &[
    &[
        step("unpack", |at| trees::unpack(&at.setting.tarball, &at.tree()).map(|()| None))
            .goal(0.6)
            .without_data(),
        step("grep_new_warm", |at| grep(&at.tree())).goal(0.85).needs(TREE),
    ],
    &[
        step("grep_cold", |at| grep(&at.tree())).goal(2.0).needs(TREE),
        step("grep_warm", |at| grep(&at.tree())).goal(0.85).needs(TREE),
    ],
    &[
        step("find_cold", |at| shown("find", &["."], &at.tree())).goal(1.0).needs(TREE),
        step("find_warm", |at| shown("find", &["."], &at.tree())).goal(0.85).needs(TREE),
    ],
    &[
        step("ls_lR_cold", |at| shown("ls", &["-lR", "."], &at.tree())).goal(1.0).needs(TREE),
        step("ls_lR_warm", |at| shown("ls", &["-lR", "."], &at.tree())).goal(0.85).needs(TREE),
    ],
    &[step("du_cold", |at| shown("du", &["-s", "."], &at.tree())).goal(1.0).needs(TREE)],
    &[step("tar_cold", |at| shown("tar", &["-cf", "-", "."], &at.tree())).goal(1.0).needs(TREE)],
    &[step("cp_reflink", |at| trees::copy(&at.tree(), &at.scrap()).map(|()| None)).goal(0.85).needs(TREE)],
    &[step("rsync", |at| trees::rsync(&at.tree(), &at.scrap()).map(|()| None)).goal(0.85).needs(TREE)],
    &[step(MAKES_REPOSITORY, |at| trees::commit(&at.tree()).map(|()| None)).goal(0.85).needs(TREE)],
    &[step("git_status_cold", |at| trees::status(&at.tree()).map(|()| None)).goal(1.0).needs(REPOSITORY)],
    &[step("git_clone", |at| trees::clone(&at.tree(), &at.scrap()).map(|()| None))
        .goal(0.85)
        .needs(REPOSITORY)],
    &[step("rm_rf", |at| remove(&at.tree())).goal(1.0).needs(TREE).without_data()],
    &[step("toku_create", |at| small::create(&at.small(), at.setting.small_files).map(|()| None))
        .goal(0.85)
        .without_data()],
    &[step("toku_find_cold", |at| shown("find", &["."], &at.small())).goal(1.0).needs(SMALL)],
    &[step("toku_grep_cold", |at| shown("grep", &["-rc", "x", "."], &at.small())).goal(1.0).needs(SMALL)],
    &[step("toku_rm_rf", |at| remove(&at.small())).goal(1.0).needs(SMALL).without_data()],
    &[step("write_seq", |at| access::write_sequential(&at.file(), at.setting.file_bytes).map(|()| None))
        .goal(0.7)
        .without_data()],
    &[step("read_seq_cold", |at| access::read_sequential(&at.file(), at.setting.file_bytes).map(|()| None))
        .goal(0.9)
        .needs(FILE)],
    &[step("read_4K", |at| at.reads("psync", false, 1, 1)).goal(0.75).needs(FILE)],
    &[step("read_4K_threads", |at| at.reads("psync", false, 4, 1)).goal(0.75).needs(FILE)],
    &[step("read_4K_direct", |at| at.reads("psync", true, 1, 1)).goal(0.75).needs(FILE)],
    &[step("read_4K_direct4", |at| at.reads("psync", true, 4, 1)).goal(0.75).needs(FILE)],
    &[step("read_4K_aio8", |at| at.reads("libaio", true, 1, 8)).goal(0.75).needs(FILE)],
    &[step("read_4K_aio32", |at| at.reads("libaio", true, 1, 32)).goal(0.75).needs(FILE)],
    &[step("read_4K_uring8", |at| at.reads("io_uring", false, 1, 8)).goal(0.75).needs(FILE)],
    &[step("read_4K_uring32", |at| at.reads("io_uring", false, 1, 32)).goal(0.75).needs(FILE)],
    &[step("overwrite_4B", |at| overwrite(at, 4)).goal(4.0).needs(FILE).without_data()],
    &[step("overwrite_4K", |at| overwrite(at, 4096)).goal(1.0).needs(FILE).without_data()],
    &[step("append_fsync", |at| access::append(&at.root.join("log"), at.setting.appends).map(|()| None))
        .goal(0.9)
        .without_data()],
    &[step(RECOVERY, |_| bail!("recovery is no ordinary step"))],
];

fn shown(program: &str, arguments: &[&str], dir: &Path) -> Result<Option<f64>> {
    drain(program, arguments, dir).map(|()| None)
}

fn grep(dir: &Path) -> Result<Option<f64>> {
    shown("grep", &["-r", "cpu_to_be64"], dir)
}

fn remove(dir: &Path) -> Result<Option<f64>> {
    system::output(Command::new("rm").arg("-rf").arg(dir))?;
    Ok(None)
}

fn overwrite(at: &Place<'_>, length: usize) -> Result<Option<f64>> {
    access::overwrite(&at.file(), at.setting.file_bytes, at.setting.overwrites, length)?;
    Ok(None)
}

/// The steps that run on one mount, one after the other. The first finds cold caches.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) steps: Vec<Step>,
    /// True if no later stage needs the repository in the source tree.
    ends_repository: bool,
}

/// What there is to choose from.
pub(crate) fn names() -> Vec<&'static str> {
    STAGES.iter().copied().flatten().map(|step| step.name).collect()
}

/// Picks the stages that contain the named steps, and what these need.
pub(crate) fn stages(asked: &[String]) -> Result<Vec<Stage>> {
    let named = chosen(names(), asked)?.into_iter().filter_map(named);
    let wanted: Vec<&str> = named.flat_map(|step| step.needs.iter().copied().chain([step.name])).collect();
    let chosen = STAGES.iter().filter(|stage| stage.iter().any(|step| wanted.contains(&step.name)));
    let mut chosen: Vec<Stage> =
        chosen.map(|stage| Stage { steps: stage.to_vec(), ends_repository: false }).collect();
    if let Some(last) = chosen.iter_mut().rfind(|stage| stage.has_repository()) {
        last.ends_repository = true;
    }
    Ok(chosen)
}

fn named(name: &str) -> Option<&'static Step> {
    STAGES.iter().copied().flatten().find(|step| step.name == name)
}

/// What is asked of the step with this name.
pub(crate) fn goal(name: &str) -> Option<f64> {
    named(name)?.goal
}

/// Does the work of the step with this name in `root`; returns the seconds until it was durable.
pub(crate) fn run(name: &str, root: &Path, setting: &Setting) -> Result<f64> {
    named(name).with_context(|| format!("'{name}' is no step"))?.run(root, setting)
}

impl Stage {
    pub(crate) fn name(&self) -> &'static str {
        self.steps[0].name
    }

    /// True if it is the mount after a kill.
    pub(crate) fn is_recovery(&self) -> bool {
        self.name() == RECOVERY
    }

    /// Leaves every cache cold but for what feeds the stage.
    pub(crate) fn prepare(&self, setting: &Setting) -> Result<()> {
        system::drop_caches()?;
        system::touch_memory(setting.touch)?;
        if self.name() == "unpack" || self.is_recovery() {
            setting.warm_up()?;
        }
        Ok(())
    }

    /// True if there is a repository in the source tree after it.
    fn has_repository(&self) -> bool {
        self.steps.iter().any(|step| step.name == MAKES_REPOSITORY || step.needs.contains(&MAKES_REPOSITORY))
    }

    /// Takes away what no later stage needs. `rm_rf` removes the same files after a commit as
    /// without one, and so as many as a contender that cannot commit.
    pub(crate) fn clear(&self, root: &Path) -> Result<()> {
        let mut useless = vec![root.join(SCRAP)];
        if self.ends_repository {
            useless.push(root.join(SOURCES).join(".git"));
        }
        for path in useless.iter().filter(|path| path.exists()) {
            std::fs::remove_dir_all(path).with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    }
}

impl Step {
    /// True if the contender can do this.
    pub(crate) fn is_possible(&self, contender: &Contender) -> bool {
        contender.keeps_data() || self.without_data
    }

    /// Does the work in `root`; returns the seconds until it was durable.
    pub(crate) fn run(&self, root: &Path, setting: &Setting) -> Result<f64> {
        let started = Instant::now();
        let measured = (self.work)(&Place { setting, root })?;
        make_durable(root)?;
        Ok(measured.unwrap_or(started.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests;
