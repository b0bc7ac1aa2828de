//! Mounts that are there already: `mount -o remount`, and a second mount of the same image.
//!
//! The kernel keeps some options with each mount: read-only, set-id bits, devices, programs,
//! symbolic links. These change by a call to the kernel. The rule for the times of last access
//! changes by a command to the server. All others are fixed when the server starts, and a mount
//! that asks for other ones is refused and says which.

use super::options::{Settings, differing};
use super::plan::Plan;
use crate::args;
use crate::info;
use crate::mounts;
use crate::umount;
use anyhow::{Context, Result, bail, ensure};
use espalier_fs::{Atime, FileSystem};
use espalier_fuse::COMMAND_XATTR;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Weak};

/// What the names of the commands begin with that set the rule for times of last access.
const SET_ATIME: &str = "atime.";

/// The rules, under the names of their mount options.
const RULES: [(&str, Atime); 3] =
    [("relatime", Atime::Relative), ("strictatime", Atime::Strict), ("noatime", Atime::Never)];

/// What a server that serves `fs` answers to a command of this module; `None` for others.
pub(super) fn server_side(fs: &Arc<FileSystem>) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let fs: Weak<FileSystem> = Arc::downgrade(fs);
    move |command| {
        let name = command.strip_prefix(SET_ATIME)?;
        let (_, rule) = RULES.iter().find(|(rule, _)| *rule == name)?;
        fs.upgrade()?.set_atime(*rule);
        Some(json!({ "atime": name }).to_string())
    }
}

/// Carries out `mount -o remount,...` on the mount at the directory that `args` name.
pub(super) fn remount(args: &args::Mount, settings: &Settings) -> Result<()> {
    let dir = umount::absolute(args.mount_point()?)?;
    let shown = dir.display();
    let mount = mounts::at(&dir).context("the table of mounts cannot be read")?;
    ensure!(mount.is_some_and(|m| m.is_espalier()), "{shown}: no Espalier file system is mounted there");
    ensure!(
        rustix::process::geteuid().is_root(),
        "{shown}: only root can remount; unmount it and mount it anew"
    );
    let description = info::ask_server(&dir)?;
    let asked = without_atime(&settings.words);
    refuse_differing(&asked, &running_options(&description), &dir, "unmount it and mount it anew")?;
    let server_reads_only = description["mount"]["read_only"] == Value::Bool(true);
    ensure!(
        settings.mount.read_only || !server_reads_only,
        "{shown}: the server has opened {} for reading only; unmount it and mount it anew",
        description["image"].as_str().unwrap_or("the image")
    );
    if asked != settings.words {
        let (name, _) = RULES[settings.atime as usize];
        let command = format!("{COMMAND_XATTR}{SET_ATIME}{name}");
        let mut answer = [0u8; 256];
        rustix::fs::getxattr(&dir, &*command, &mut answer)
            .with_context(|| format!("{shown}: the server cannot change the times of last access"))?;
    }
    espalier_fuse::remount(&dir, &settings.mount).with_context(|| format!("{shown} cannot be remounted"))
}

/// Makes the image that is mounted at `at` appear where `plan` says, too.
pub(super) fn bind(plan: &Plan, at: &Path) -> Result<()> {
    let description = info::ask_server(at)?;
    let advice = "give the same options, or unmount it first";
    refuse_differing(&plan.settings.words, &running_options(&description), at, advice)?;
    espalier_fuse::bind(at, &plan.dir, &plan.settings.mount).with_context(|| {
        let (source, at, dir) = (plan.source.display(), at.display(), plan.dir.display());
        format!("{source} is mounted at {at} and cannot be shown at {dir} as well")
    })
}

fn running_options(description: &Value) -> String {
    description["mount"]["options"].as_str().unwrap_or_default().to_owned()
}

fn refuse_differing(asked: &str, running: &str, dir: &Path, advice: &str) -> Result<()> {
    let differing = differing(asked, running);
    if !differing.is_empty() {
        bail!(
            "the server of {} runs without {}, which cannot change now; {advice}",
            dir.display(),
            differing.join(",")
        );
    }
    Ok(())
}

/// The list without the options that choose a rule for times of last access.
fn without_atime(list: &str) -> String {
    const ALL: [&str; 6] = ["atime", "noatime", "relatime", "norelatime", "strictatime", "nostrictatime"];
    super::options::split(list).filter(|option| !ALL.contains(option)).collect::<Vec<_>>().join(",")
}
