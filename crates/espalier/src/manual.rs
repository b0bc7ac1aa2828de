//! `espalier man`: writes the manual pages.
//!
//! The pages of commands are made of the command line itself, so they say what the program does;
//! pages of section 5 and 8 are written, and take their lists of options from the same place. That
//! of git-espalier, a script, is written as a whole.

mod examples;
mod page;

use crate::args::{Cli, Man};
use anyhow::{Context, Result};
use clap::CommandFactory;
use page::Page;
use std::fs;

/// The written pages: name, section, text from `.SH NAME` on.
const WRITTEN: [(&str, &str, &str); 7] = [
    ("git-espalier", "1", include_str!("manual/git-espalier.1")),
    ("espalier", "5", include_str!("manual/espalier.5")),
    ("espalier.toml", "5", include_str!("manual/espalier.toml.5")),
    ("mkfs.espalier", "8", include_str!("manual/mkfs.espalier.8")),
    ("mount.espalier", "8", include_str!("manual/mount.espalier.8")),
    ("umount.espalier", "8", include_str!("manual/umount.espalier.8")),
    ("fsck.espalier", "8", include_str!("manual/fsck.espalier.8")),
];

/// Other names of pages: the page itself, and the name.
const ALIASES: [(&str, &str); 5] = [
    ("espalier-resize", "espalier-grow"),
    ("espalier-workspace", "espalier-ws"),
    ("mount.espalier", "mount.fuse.espalier"),
    ("umount.espalier", "umount.fuse.espalier"),
    ("umount.espalier", "umount.fuseblk.espalier"),
];

/// Runs the command.
pub(crate) fn run(args: &Man) -> Result<()> {
    for page in pages()? {
        let dir = args.dir.join(format!("man{}", page.section));
        fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        let path = dir.join(format!("{}.{}", page.name, page.section));
        fs::write(&path, &page.text).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

/// Every page.
fn pages() -> Result<Vec<Page>> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_commands(&root, "espalier", &mut pages)?;
    for (name, section, text) in WRITTEN {
        pages.push(Page::written(name, section, text, &root)?);
    }
    for (name, alias) in ALIASES {
        let page = pages.iter().find(|page| page.name == name).map(|page| page.called(alias));
        pages.push(page.with_context(|| format!("there is no page {name}"))?);
    }
    Ok(pages)
}

/// A page for a command, and for each command below it.
fn add_commands(command: &clap::Command, name: &str, pages: &mut Vec<Page>) -> Result<()> {
    let below: Vec<(String, &clap::Command)> = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .map(|below| (format!("{name}-{}", below.get_name()), below))
        .collect();
    let also: Vec<&str> = below.iter().map(|(name, _)| name.as_str()).collect();
    pages.push(Page::of_command(command, name, &also)?);
    below.iter().try_for_each(|(name, below)| add_commands(below, name, pages))
}

#[cfg(test)]
mod tests;
