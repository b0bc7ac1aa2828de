//! `espalier diff` and `espalier du`: what differs between two trees, and the space that trees
//! take.

use crate::args::{Diff, Du};
use crate::control;
use crate::place::{self, CALLER, Inside};
use crate::ui::{self, say};
use crate::units::Size;
use anyhow::{Context, Result, bail};
use espalier_fs::Change;
use espalier_fuse::control::{DIFF, DIFF_NEXT, DIFFERENCES_BYTES, EXCLUSIVE_SPACE, SPACE, size};
use serde_json::json;
use std::path::Path;

/// Where the fields of an answer with differences are.
const LENGTH_OFFSET: usize = 16;
const DATA_OFFSET: usize = 24;

/// Runs `espalier diff`.
pub(crate) fn run(args: &Diff) -> Result<()> {
    let mut told = Told::new(args.json);
    match (place::inside(&args.old), place::inside(&args.new)) {
        (None, None) => on_mount(args, &mut told)?,
        (Some(old), Some(new)) => in_image(&old, &new, &mut told)?,
        _ => bail!("both must lie in the same image, or in the same mount"),
    }
    told.finish()
}

/// Differences, printed as they come or in the end.
struct Told {
    json: bool,
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    nodes: u64,
}

impl Told {
    fn new(json: bool) -> Self {
        Self { json, added: Vec::new(), removed: Vec::new(), changed: Vec::new(), nodes: 0 }
    }

    fn tell(&mut self, kind: u8, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        if !self.json {
            say!("{} {path}", char::from(kind));
            return;
        }
        match kind {
            b'+' => self.added.push(path),
            b'-' => self.removed.push(path),
            _ => self.changed.push(path),
        }
    }

    fn finish(self) -> Result<()> {
        if self.json {
            let Self { added, removed, changed, nodes, .. } = self;
            let all = json!({"added": added, "removed": removed, "changed": changed, "nodes_read": nodes});
            say!("{}", serde_json::to_string_pretty(&all)?);
        }
        Ok(())
    }
}

/// Compares two directories of an image that is not mounted.
fn in_image(old: &Inside, new: &Inside, told: &mut Told) -> Result<()> {
    if old.image.canonicalize().ok() != new.image.canonicalize().ok() {
        bail!("{old} and {new} lie in different images");
    }
    place::open(&old.image, true, |image| {
        let (before, after) = (image.find(old)?, image.find(new)?);
        let begun = after.fs.diff_trees(&before.fs, before.node, after.node, &CALLER);
        let mut diff = begun.map_err(|error| place::explain(error, new))?;
        while let Some((change, path)) = diff.next()?.filter(|_| ui::is_heard()) {
            let kind = match change {
                Change::Added => b'+',
                Change::Removed => b'-',
                Change::Changed => b'~',
            };
            told.tell(kind, &path);
        }
        told.nodes = diff.nodes();
        Ok(())
    })
}

fn on_mount(args: &Diff, told: &mut Told) -> Result<()> {
    let (old, new) = (control::open(&args.old)?, control::open(&args.new)?);
    let mut begin = control::token(&old, &args.old)?.to_vec();
    begin.resize(size(DIFF), 0);
    control::ask(&new, DIFF, &mut begin).map_err(|error| control::explain(error, &args.new))?;
    let session = begin[16..24].to_vec();
    loop {
        let mut answer = vec![0; size(DIFF_NEXT)];
        answer[..8].copy_from_slice(&session);
        control::ask(&new, DIFF_NEXT, &mut answer).map_err(|error| control::explain(error, &args.new))?;
        told.nodes = u64::from_ne_bytes(answer[8..16].try_into()?).max(told.nodes);
        let length = u32::from_ne_bytes(answer[LENGTH_OFFSET..LENGTH_OFFSET + 4].try_into()?) as usize;
        if length == 0 || !ui::is_heard() {
            break;
        }
        let mut rest = answer[DATA_OFFSET..].get(..length.min(DIFFERENCES_BYTES)).unwrap_or_default();
        while let Some((&[kind, low, high], behind)) = rest.split_first_chunk::<3>() {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((path, behind)) = behind.split_at_checked(length) else {
                bail!("the server's answer is cut off");
            };
            told.tell(kind, path);
            rest = behind;
        }
    }
    Ok(())
}

/// Runs `espalier du`.
pub(crate) fn du(args: &Du) -> Result<()> {
    for path in &args.paths {
        let Space { bytes, exclusive } = match place::inside(path) {
            Some(inside) => place::open(&inside.image, true, |image| {
                let found = image.find(&inside)?;
                let space = found.fs.space_of_tree(found.node);
                space.map(Space::from).map_err(|error| place::explain(error, &inside))
            }),
            None if args.exclusive => exclusive_on_mount(path),
            None => space_on_mount(path),
        }
        .with_context(|| "space cannot be told")?;
        if args.json {
            say!("{}", json!({"path": path.to_string_lossy(), "bytes": bytes, "exclusive": exclusive}));
        } else {
            let shown = bytes.filter(|_| !args.exclusive).unwrap_or(exclusive);
            say!("{:>12}  {}", Size(shown), path.display());
        }
    }
    Ok(())
}

/// Bytes that a tree takes, if that was asked, and those that nothing else shares.
struct Space {
    bytes: Option<u64>,
    exclusive: u64,
}

impl From<(u64, u64)> for Space {
    fn from((bytes, exclusive): (u64, u64)) -> Self {
        Self { bytes: Some(bytes), exclusive }
    }
}

fn space_on_mount(path: &Path) -> Result<Space> {
    let mut answer = [0; size(SPACE)];
    control::ask(&control::open(path)?, SPACE, &mut answer).map_err(|error| control::explain(error, path))?;
    let (bytes, exclusive) = answer.split_at(8);
    Ok(Space::from((u64::from_ne_bytes(bytes.try_into()?), u64::from_ne_bytes(exclusive.try_into()?))))
}

/// Also for users that are not root, and without a look at what is shared.
fn exclusive_on_mount(path: &Path) -> Result<Space> {
    let mut answer = [0; size(EXCLUSIVE_SPACE)];
    control::ask(&control::open(path)?, EXCLUSIVE_SPACE, &mut answer)
        .map_err(|error| control::explain(error, path))?;
    Ok(Space { bytes: None, exclusive: u64::from_ne_bytes(answer) })
}
