//! Many renames as one step: reads the steps from a file of the mount, and tells the kernel of
//! every name that then means something else.

use super::super::errno::{Errno, or_errno, shown_path};
use super::super::node_tag;
use crate::notifier::Notifier;
use crate::protocol::control::{self, RawStep};
use crate::protocol::notify::Notification;
use espalier_fs::{Caller, FileSystem, NodeId, RenameAction, RenameStep};

/// The longest file with steps, in bytes.
const MAX_STEPS_BYTES: u64 = 64 << 20;
/// Of up to so many steps the kernel is told one by one; of more, that no name is known any more.
const MAX_TOLD_STEPS: usize = 2048;

/// Nodes that were looked up, with the references that are given back in the end.
struct Known<'a> {
    fs: &'a FileSystem,
    held: Vec<NodeId>,
}

impl Known<'_> {
    fn look(&mut self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let entry = self.fs.lookup(dir, name).ok()?;
        self.held.push(entry.node);
        Some(entry.node)
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.held.iter().for_each(|node| self.fs.forget(*node, 1));
    }
}

/// Carries out the steps that lie in `file`, between places below `target` and names in `staging`.
pub(super) fn rename_all(
    fs: &FileSystem,
    notifier: Option<&Notifier>,
    (target, staging): (NodeId, NodeId),
    file: NodeId,
    caller: &Caller,
) -> Result<(), Errno> {
    if node_tag::tag(staging) != 0 || node_tag::tag(file) != 0 {
        return Err(Errno(libc::EXDEV));
    }
    let text = read_steps(fs, file)?;
    let steps = decode(&text).ok_or(Errno(libc::EINVAL))?;
    let mut known = Known { fs, held: Vec::new() };
    let told = steps.len() <= MAX_TOLD_STEPS;
    let notifications = if told { changes(&mut known, target, staging, &steps) } else { Vec::new() };
    let done = fs.rename_all(target, staging, &steps, caller);
    // Also if nothing was changed: a look-up may have seen what was taken back.
    match notifier {
        Some(notifier) if told => notifier.notify_and_wait(notifications),
        Some(notifier) => notifier.notify_and_wait([Notification::Epoch]),
        None => {}
    }
    or_errno(done, || shown_path(fs, target))
}

fn read_steps(fs: &FileSystem, file: NodeId) -> Result<Vec<u8>, Errno> {
    let path = || shown_path(fs, file);
    let size = or_errno(fs.getattr(file), path)?.size;
    if size > MAX_STEPS_BYTES {
        return Err(Errno(libc::E2BIG));
    }
    let mut text = vec![0; size as usize];
    let mut filled = 0;
    while filled < text.len() {
        match or_errno(fs.read(file, filled as u64, &mut text[filled..]), path)? {
            0 => break,
            read => filled += read,
        }
    }
    text.truncate(filled);
    Ok(text)
}

fn decode(mut text: &[u8]) -> Option<Vec<RenameStep>> {
    let mut steps = Vec::new();
    while !text.is_empty() {
        let step = RawStep::take_from(&mut text)?;
        let action = match step.action {
            control::ENTER => RenameAction::Enter,
            control::LEAVE => RenameAction::Leave,
            control::EXCHANGE => RenameAction::Exchange,
            control::ATTRIBUTES => RenameAction::ExchangeAttributes,
            _ => return None,
        };
        let place: Vec<Vec<u8>> = step.place.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
        let names = place.iter().map(Vec::as_slice).chain([step.staged]);
        if names.into_iter().any(|name| matches!(name, b"" | b"." | b"..") || name.contains(&b'/')) {
            return None;
        }
        steps.push(RenameStep { action, place, staged: step.staged.to_vec(), expected: step.expected });
    }
    Some(steps)
}

/// What the kernel is to be told of the steps.
fn changes(
    known: &mut Known<'_>,
    target: NodeId,
    staging: NodeId,
    steps: &[RenameStep],
) -> Vec<Notification> {
    let inode = |node: NodeId| Notification::Inode { node: node.0, data: None };
    let mut all = vec![inode(target), inode(staging)];
    for step in steps {
        let mut dir = Some(target);
        let Some((name, above)) = step.place.split_last() else { continue };
        for name in above {
            dir = dir.and_then(|dir| known.look(dir, name));
        }
        for (dir, name) in dir.map(|dir| (dir, name)).into_iter().chain([(staging, &step.staged)]) {
            all.push(Notification::Entry { parent: dir.0, name: name.clone(), expire: true });
            all.extend([Some(dir), known.look(dir, name)].into_iter().flatten().map(inode));
        }
    }
    all
}
