//! Tests of what happens between a charge and its call.

use crate::model::access::Judge;
use crate::namespace::rename::{RenameLock, rename};
use crate::test_support::empty;
use crate::{Caller, FileSystem, FsErrorKind, NewNode, NodeId, RenameMode, TreeLimits};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn limit(fs: &FileSystem, dir: NodeId, bytes: usize) {
    let limits = TreeLimits { exclusive: Some(bytes as u64), total: None };
    fs.set_quota(dir, Some(limits), &Caller::default(), false).unwrap();
}

fn file(fs: &FileSystem, dir: NodeId) -> NodeId {
    fs.mknod(dir, b"file", NewNode::Regular, 0o644, &Caller::default()).unwrap().node
}

/// Writes bytes that cannot be compressed.
fn write(fs: &FileSystem, file: NodeId, bytes: usize) -> crate::Result<()> {
    write_by(bytes, |offset, data| fs.write(file, offset, data, false))
}

fn write_by(bytes: usize, write: impl Fn(u64, &[u8]) -> crate::Result<usize>) -> crate::Result<()> {
    let mut data = vec![0; MIB];
    let mut random = espalier_storage::Random::new(bytes as u64);
    (0..bytes / MIB).try_for_each(|number| {
        random.fill(&mut data);
        write((number * MIB) as u64, &data).map(drop)
    })
}

fn dir(fs: &FileSystem, name: &[u8]) -> NodeId {
    fs.mkdir(NodeId::ROOT, name, 0o755, &Caller::default()).unwrap().node
}

#[test]
fn what_is_written_while_a_directory_moves_counts_where_it_comes_to() {
    let (_store, _env, fs) = empty();
    let (limited, moving) = (dir(&fs, b"limited"), dir(&fs, b"moving"));
    limit(&fs, limited, 8 * MIB);
    fs.quota(limited, &Caller::default()).unwrap();
    let (inside, outside) = (file(&fs, limited), file(&fs, moving));
    let (from, to) = ((NodeId::ROOT, &b"moving"[..]), (limited, &b"moved"[..]));
    // What moves is counted, then written to, then moved.
    let mode = RenameMode::NoReplace;
    let charge = fs.quotas().charge_rename(from, to, mode).unwrap();
    write(&fs, outside, 6 * MIB).unwrap();
    charge
        .end(rename(&fs.quotas().namespace, &RenameLock::default(), from, to, mode, Judge::Kernel))
        .unwrap();
    let error = write(&fs, inside, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), FsErrorKind::QuotaExceeded);
}

#[test]
fn a_write_under_way_counts_where_its_directory_comes_to_meanwhile() {
    let (_store, _env, fs) = empty();
    let (limited, moving) = (dir(&fs, b"limited"), dir(&fs, b"moving"));
    limit(&fs, limited, 8 * MIB);
    fs.quota(limited, &Caller::default()).unwrap();
    let (inside, outside) = (file(&fs, limited), file(&fs, moving));
    let quotas = fs.quotas();
    let call = || {
        fs.rename(NodeId::ROOT, b"moving", limited, b"moved", RenameMode::NoReplace)?;
        // The rename is counted.
        fs.mknod(limited, b"more", NewNode::Regular, 0o644, &Caller::default())?;
        write_by(6 * MIB, |offset, data| fs.write_charged(outside, offset, data))
    };
    quotas.grow(outside, || super::growth::data(6 << 20, 4096), call).unwrap();
    let error = write(&fs, inside, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), FsErrorKind::QuotaExceeded);
}

#[test]
fn what_was_written_while_there_was_no_limit_counts_for_the_next_one() {
    let (_store, _env, fs) = empty();
    let limited = dir(&fs, b"limited");
    limit(&fs, limited, 8 * MIB);
    let inside = file(&fs, limited);
    // It keeps what is known of the tree.
    let nameless = fs.tmpfile(limited, 0o600, &Caller::default()).unwrap().node;
    write(&fs, nameless, MIB).unwrap();
    fs.set_quota(limited, None, &Caller::default(), false).unwrap();
    write(&fs, inside, 10 * MIB).unwrap();
    limit(&fs, limited, 8 * MIB);
    let error = write(&fs, nameless, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), FsErrorKind::QuotaExceeded);
}

#[test]
fn the_first_call_after_a_mount_does_not_wait_for_a_count() {
    let (store, env, fs) = empty();
    let limited = dir(&fs, b"limited");
    let inside = file(&fs, limited);
    write(&fs, inside, 10 * MIB).unwrap();
    limit(&fs, limited, 16 * MIB);
    fs.close().unwrap();
    let fs: Arc<FileSystem> = FileSystem::open(store.clone(), env, Default::default()).unwrap();
    let limited = fs.lookup(NodeId::ROOT, b"limited").unwrap().node;
    let inside = fs.lookup(limited, b"file").unwrap().node;
    let before = store.statistics().checkpoints;
    fs.write(inside, 10 << 20, &[1; 4096], false).unwrap();
    assert_eq!(store.statistics().checkpoints, before, "a count makes a checkpoint");
    fs.background_tick().unwrap();
    let before = store.statistics().checkpoints;
    assert!(before > 0);
    fs.write(inside, 11 << 20, &[1; 1 << 20], false).unwrap();
    assert_eq!(store.statistics().checkpoints, before, "it was counted in the background");
    assert_eq!(write(&fs, inside, 32 * MIB).unwrap_err().kind(), FsErrorKind::QuotaExceeded);
}
