use super::*;
use crate::metrics::Recorder;
use crate::protocol::control::{CLONE, TOKEN, TOKEN_BYTES, clone_argument, size};
use crate::protocol::{Dialect, HEADER_BYTES};
use espalier_engine::Store;
use espalier_fs::{Caller, FsErrorKind, NewNode};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

/// Serves a request of root on `node` with these fields in its argument and this payload; the body
/// of the reply, or an error number.
fn answer(
    dispatcher: &Dispatcher,
    (node, opcode): (NodeId, u32),
    fields: [u32; 8],
    payload: &[u8],
) -> Result<Vec<u8>, i32> {
    let mut header = [(HEADER_BYTES as u32).to_ne_bytes(), opcode.to_ne_bytes()].concat();
    header.extend(1u64.to_ne_bytes());
    header.extend(node.0.to_ne_bytes());
    header.resize(HEADER_BYTES, 0);
    let argument: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    let recorder = Recorder::new(&dispatcher.metrics);
    let request = Request {
        header: Header::decode(&header).unwrap(),
        argument: &argument,
        dialect: &Dialect::default(),
        arrival: recorder.wait().arrived(),
        recorder: &recorder,
    };
    let mut buffer = vec![0; 16 << 10];
    buffer[..payload.len()].copy_from_slice(payload);
    match dispatcher.handle(&request, &mut buffer, payload.len()) {
        Outcome::Reply(length) => Ok(buffer[..length].to_vec()),
        Outcome::Error(errno) => Err(errno),
        Outcome::Silent => Ok(Vec::new()),
    }
}

/// Serves an ioctl; its output, or an error number.
fn ioctl(dispatcher: &Dispatcher, node: NodeId, command: u32, input: &[u8]) -> Result<Vec<u8>, i32> {
    let is_read = command >> 31 != 0;
    let room = if is_read { size(command) as u32 } else { 0 };
    // File handle, flags, command, address of the argument, lengths of input and output.
    let fields = [0, 0, 0, command, 0, 0, input.len() as u32, room];
    let body = answer(dispatcher, (node, opcode::IOCTL), fields, input)?;
    // The result, flags and numbers of the ioctl come first.
    Ok(body[16..].to_vec())
}

/// Calls `change` with 0, 1, 2, … until there is no room.
fn until_full<T>(mut change: impl FnMut(u64) -> espalier_fs::Result<T>) {
    let refused = (0..).find_map(|n| change(n).err()).unwrap();
    assert_eq!(refused.kind(), FsErrorKind::NoSpace, "{refused}");
}

/// An empty file system, and its store.
fn file_system(options: espalier_fs::OpenOptions) -> Arc<FileSystem> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(Arc::clone(&device), Arc::clone(&environment), &Default::default()).unwrap();
    let of_store = espalier_engine::OpenOptions {
        memory: 16 << 20,
        merge: espalier_fs::merge_functions(),
        ..Default::default()
    };
    let store = Store::open(device, Arc::clone(&environment), of_store).unwrap();
    FileSystem::format(&store, &Default::default()).unwrap();
    FileSystem::open(store, environment, options).unwrap()
}

fn dispatcher(fs: &Arc<FileSystem>) -> Dispatcher {
    Dispatcher::new(Arc::clone(fs), true, None, None, Arc::new(Metrics::default()))
}

#[test]
fn a_clone_that_waits_for_unlinked_files_keeps_its_token() {
    // The kernel lets go of an unlinked file when it is asked to.
    let (held, drains) =
        (Arc::new(OnceLock::<(Weak<FileSystem>, NodeId)>::new()), Arc::new(AtomicUsize::new(0)));
    let drain: espalier_fs::ForgetDrain = Arc::new({
        let (held, drains) = (Arc::clone(&held), Arc::clone(&drains));
        move || {
            if drains.fetch_add(1, Ordering::Relaxed) == 0
                && let Some((fs, node)) = held.get()
            {
                fs.upgrade().unwrap().forget(*node, 1);
            }
        }
    });
    let fs = file_system(espalier_fs::OpenOptions { forget_drain: Some(drain), ..Default::default() });
    let (root, caller) = (NodeId::ROOT, Caller::default());
    let make =
        |dir, name: &str| fs.mknod(dir, name.as_bytes(), NewNode::Regular, 0o644, &caller).unwrap().node;
    let unlinked = make(root, "unlinked");
    let data = vec![7; 1 << 20];
    for n in 0..16 {
        fs.write(unlinked, n << 20, &data, false).unwrap();
    }
    let source = fs.mkdir(root, b"source", 0o755, &caller).unwrap().node;
    make(source, "file");
    let filler = make(root, "filler");
    fs.unlink(root, b"unlinked").unwrap();
    until_full(|n| fs.write(filler, n << 20, &data, false));
    until_full(|n| fs.write(filler, (100 << 20) + (n << 12), &data[..4096], false));
    until_full(|n| fs.clone_tree(source, root, format!("clone{n}").as_bytes(), &caller));
    held.set((Arc::downgrade(&fs), unlinked)).unwrap();
    drains.store(0, Ordering::Relaxed);

    let dispatcher = dispatcher(&fs);
    let token: Token = ioctl(&dispatcher, source, TOKEN, &[]).unwrap().try_into().unwrap();
    assert_eq!(token.len(), TOKEN_BYTES);
    let argument = clone_argument(&token, b"copy").unwrap();
    assert_eq!(ioctl(&dispatcher, root, CLONE, &argument), Ok(Vec::new()));
    assert_eq!(drains.load(Ordering::Relaxed), 1, "the first answer was that there is no room");
    let copy = fs.lookup(root, b"copy").unwrap().node;
    fs.lookup(copy, b"file").unwrap();
    let argument = clone_argument(&token, b"another").unwrap();
    assert_eq!(ioctl(&dispatcher, root, CLONE, &argument), Err(libc::ESTALE), "it is used up");
}

#[test]
fn nodes_that_the_kernel_never_had_are_stale() {
    let dispatcher = dispatcher(&file_system(Default::default()));
    let tag = 0xffff << 48;
    for node in [tag, tag | 2, u64::MAX] {
        for opcode in [opcode::GETATTR, opcode::READDIR] {
            let told = answer(&dispatcher, (NodeId(node), opcode), [0; 8], &[]);
            assert_eq!(told, Err(libc::ESTALE), "{node:x} {opcode}");
        }
    }
    answer(&dispatcher, (NodeId(tag | 1), opcode::GETATTR), [0; 8], &[]).unwrap();
}
