//! How long a clone takes, what it adds, and what else is done to a whole tree.

use super::bench::{Bench, files_below};
use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// How often an operation that costs peers seconds is repeated.
const REPEATS: usize = 5;

/// A clone straight after unpacking, one at rest, and the other operations on a tree of that size.
pub(super) fn of_a_tree(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root();
    let empty = bench.contender.used_bytes()?;
    let tree = bench.unpack("tree")?;
    let in_source = files_below(&tree, 1)?.pop().context("the tree has no file")?;
    let fresh = root.join("fresh");
    let in_clone = fresh.join(in_source.strip_prefix(&tree)?);
    bench.time("clone_fresh_and_use_ms", |bench| {
        bench.clone_tree(&tree, &fresh)?;
        for entry in std::fs::read_dir(&fresh)? {
            entry?.metadata()?;
        }
        touch(&in_source, b"source")?;
        touch(&in_clone, b"clone")
    })?;
    bench.settle()?;
    bench.contender.remount_cold()?;
    let before = at_rest(bench)?;
    for number in 0..REPEATS {
        let clone = root.join(format!("clone-{number}"));
        bench.time("clone_ms", |bench| bench.clone_tree(&tree, &clone))?;
    }
    let added = at_rest(bench)?.saturating_sub(before);
    bench.tell("clone_adds_kib", added as f64 / 1024.0 / REPEATS as f64);
    let (here, there) = (root.join("here"), root.join("there"));
    for dir in [&here, &there] {
        std::fs::create_dir(dir)?;
    }
    std::fs::rename(root.join("clone-0"), here.join("moved"))?;
    for number in 0..REPEATS {
        let (from, to) = if number % 2 == 0 { (&here, &there) } else { (&there, &here) };
        bench.time("move_ms", |_| Ok(std::fs::rename(from.join("moved"), to.join("moved"))?))?;
    }
    for number in 0..REPEATS {
        let owner = (1000 + number).to_string();
        bench.time("chown_ms", |bench| chown(bench, &owner, &root.join("clone-1")))?;
    }
    for number in 1..REPEATS {
        let clone = root.join(format!("clone-{number}"));
        bench.time("remove_clone_ms", |bench| bench.remove_tree(&clone))?;
    }
    for dir in [&fresh, &there, &here] {
        bench.remove_tree(dir)?;
    }
    let full = at_rest(bench)?;
    bench.time("remove_ms", |bench| bench.remove_tree(&tree))?;
    // Nearly all must come back; what lists free space may take a little.
    let seconds = bench.wait_for_space(empty + full.saturating_sub(empty) / 50)?;
    bench.tell("space_back_s", seconds);
    Ok(())
}

/// A clone of a tree with ten thousand hard links, half of which cross its boundary.
pub(super) fn with_links(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root();
    let tree = bench.unpack("tree")?;
    let links = bench.count(10_000);
    let (inside, outside) = (tree.join("links"), root.join("links"));
    for dir in [&inside, &outside] {
        std::fs::create_dir(dir)?;
    }
    let files = files_below(&tree, links)?;
    for number in 0..links {
        let dir = if number % 2 == 0 { &inside } else { &outside };
        std::fs::hard_link(&files[number % files.len()], dir.join(number.to_string()))?;
    }
    let plain = bench.unpack("plain")?;
    bench.settle()?;
    bench.contender.remount_cold()?;
    for number in 0..REPEATS {
        let (linked, without) =
            (root.join(format!("linked-{number}")), root.join(format!("without-{number}")));
        bench.time("clone_ms", |bench| bench.clone_tree(&plain, &without))?;
        bench.time("clone_with_links_ms", |bench| bench.clone_tree(&tree, &linked))?;
    }
    tell_ratio(bench, "clone_with_links_by_without", "clone_with_links_ms", "clone_ms");
    Ok(())
}

/// A clone of ten unpacked trees beside a clone of one of them.
pub(super) fn of_ten_trees(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.root();
    for number in 0..bench.count(10) {
        bench.unpack(&format!("ten/{number}"))?;
    }
    bench.settle()?;
    bench.contender.remount_cold()?;
    for number in 0..REPEATS {
        let (one, ten) = (root.join(format!("one-{number}")), root.join(format!("ten-{number}")));
        bench.time("clone_ms", |bench| bench.clone_tree(&root.join("ten/0"), &one))?;
        bench.time("clone_of_ten_trees_ms", |bench| bench.clone_tree(&root.join("ten"), &ten))?;
    }
    tell_ratio(bench, "clone_of_ten_by_one", "clone_of_ten_trees_ms", "clone_ms");
    Ok(())
}

/// The ratio of two medians of this contender.
fn tell_ratio(bench: &mut Bench<'_>, name: &str, above: &str, below: &str) {
    let median = |name| bench.figures.median(&bench.contender.name, name);
    if let (Some(above), Some(below)) = (median(above), median(below)) {
        bench.tell(name, above / below);
    }
}

/// Bytes in use after everything was written and mounted again.
fn at_rest(bench: &mut Bench<'_>) -> Result<u64> {
    bench.settle()?;
    bench.contender.unmount()?;
    bench.contender.mount()?;
    bench.contender.used_bytes()
}

/// Writes a few bytes into the middle of a file.
fn touch(file: &Path, bytes: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).open(file)?;
    Ok(file.write_all_at(bytes, 16)?)
}

/// Gives everything in `dir` to the owner with this number.
fn chown(bench: &Bench<'_>, owner: &str, dir: &Path) -> Result<()> {
    let dir = dir.as_os_str();
    let ours = bench.contender.espalier(&["chown".as_ref(), "-R".as_ref(), owner.as_ref(), dir])?;
    if ours.is_none() {
        crate::system::output(Command::new("chown").arg("-R").arg(owner).arg(dir))?;
    }
    Ok(())
}
