use super::*;
use espalier_engine::Store;
use espalier_fs::{Caller, NewNode};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};

const GRACE: Duration = Duration::from_secs(9 * 60);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A state with one file.
fn state() -> Arc<FileSystem> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(Arc::clone(&device), Arc::clone(&environment), &Default::default()).unwrap();
    let options = espalier_engine::OpenOptions {
        memory: 16 << 20,
        merge: espalier_fs::merge_functions(),
        ..Default::default()
    };
    let store = Store::open(device, Arc::clone(&environment), options).unwrap();
    FileSystem::format(&store, &Default::default()).unwrap();
    let fs = FileSystem::open(store, environment, Default::default()).unwrap();
    let made = fs.mknod(NodeId::ROOT, b"file", NewNode::Regular, 0o644, &Caller::default()).unwrap();
    fs.forget(made.node, 1);
    fs
}

/// Has the kernel know the file of the state that is shown; its node.
fn look_up(table: &StateTable) -> NodeId {
    let volume = table.of(NodeId::ROOT).unwrap();
    let tag = table.table.lock().newest;
    NodeId(tag | volume.fs().lookup(NodeId::ROOT, b"file").unwrap().node.0)
}

#[test]
fn the_grace_of_a_state_counts_from_when_it_was_last_that_of_the_store() {
    let table = StateTable::new(true);
    let start = Instant::now();
    table.show(state(), start).unwrap();
    let first = look_up(&table);
    // The one that is shown has no end.
    assert_eq!(table.close(start + 100 * GRACE, GRACE), 0);
    assert!(table.of(first).is_ok());
    // The mount was cut off for eight minutes, and then shows what is there.
    let last_current = start + seconds(60);
    table.show(state(), last_current).unwrap();
    let second = look_up(&table);
    let shown = last_current + seconds(8 * 60);
    assert_eq!(table.close(shown, GRACE), 1);
    assert!(table.of(first).is_ok());
    assert_eq!(table.close(last_current + GRACE - seconds(1), GRACE), 1);
    assert!(table.of(first).is_ok());
    assert_eq!(table.close(last_current + GRACE, GRACE), 0);
    assert_eq!(table.of(first).err(), Some(Errno(libc::ESTALE)));
    assert!(table.of(second).is_ok() && table.of(NodeId::ROOT).is_ok());
    // After a longer time without the store its end has come at once.
    let last_current = shown;
    table.show(state(), last_current).unwrap();
    assert_eq!(table.close(last_current + 2 * GRACE, GRACE), 0);
    assert_eq!(table.of(second).err(), Some(Errno(libc::ESTALE)));
    assert!(table.of(NodeId::ROOT).is_ok());
}

#[test]
fn a_state_of_which_the_kernel_knows_nothing_is_closed_at_once() {
    let table = StateTable::new(true);
    let now = Instant::now();
    table.show(state(), now).unwrap();
    let node = look_up(&table);
    table.show(state(), now).unwrap();
    assert_eq!(table.close(now, GRACE), 1);
    table.forget(node, 1);
    assert_eq!(table.close(now, GRACE), 0);
    assert_eq!(table.of(node).err(), Some(Errno(libc::ESTALE)));
}
