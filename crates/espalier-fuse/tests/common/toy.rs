//! A file system of a few lines in memory, spoken to by protocol only: what a transport costs and
//! whether it works shows without anything below it.

use espalier_fuse::protocol::Moment;
use espalier_fuse::protocol::reply::{self, Attributes, Directory, Statistics};
use espalier_fuse::protocol::{Header, Operation, decode_parts};
use espalier_fuse::transport::{Handler, Outcome, Request, may_commit};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex};

struct Node {
    mode: u32,
    nlink: u32,
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
}

struct State {
    nodes: HashMap<u64, Node>,
    next: u64,
}

/// The file system. A look-up of a name that begins with `wait` waits until [`Toy::open_gate`], and
/// so does reading a file whose content begins so; reading one whose content begins with `hold`
/// waits until [`Toy::let_go`], with all in its buffer. Making a directory whose name begins with
/// `early` waits at the gate before, of one whose name begins with `late` is held afterwards. A
/// look-up of a name that begins with `panic` panics. Nothing of that happens in a [`Toy::plain`]
/// one.
pub(crate) struct Toy {
    plain: bool,
    sink: Option<Box<dyn Sink>>,
    state: Mutex<State>,
    gate: Gate,
    hold: Gate,
    forgotten: Mutex<u64>,
    unanswered: Mutex<usize>,
    written: Mutex<Vec<usize>>,
}

/// Where what is written goes.
pub(crate) trait Sink: Send + Sync {
    /// Takes it.
    fn write(&self, data: &[u8]);

    /// Makes it durable.
    fn sync(&self) -> std::io::Result<()>;
}

/// Forgets it.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn write(&self, _: &[u8]) {}

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Where requests wait.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    came: usize,
}

impl Gate {
    fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    fn came(&self) -> usize {
        self.state.lock().unwrap().came
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.came += 1;
        while !state.open {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Toy {
    pub(crate) fn new() -> Self {
        let root = Node { mode: libc::S_IFDIR | 0o755, nlink: 2, data: Vec::new(), entries: BTreeMap::new() };
        Self {
            plain: false,
            sink: None,
            state: Mutex::new(State { nodes: HashMap::from([(1, root)]), next: 2 }),
            gate: Gate::default(),
            hold: Gate::default(),
            forgotten: Mutex::new(0),
            unanswered: Mutex::new(0),
            written: Mutex::default(),
        }
    }

    /// One in which every name is a name.
    pub(crate) fn plain() -> Self {
        Self { plain: true, ..Self::new() }
    }

    /// A plain one that gives away what is written, and knows nothing of it afterwards.
    pub(crate) fn into_sink(sink: impl Sink + 'static) -> Self {
        Self { sink: Some(Box::new(sink)), ..Self::plain() }
    }

    /// Lets every waiting request pass, now and later.
    pub(crate) fn open_gate(&self) {
        self.gate.open();
    }

    /// How many requests have come to the gate.
    pub(crate) fn waiting(&self) -> usize {
        self.gate.came()
    }

    /// Lets every held request go on, now and later.
    pub(crate) fn let_go(&self) {
        self.hold.open();
    }

    /// How many requests have been held.
    pub(crate) fn held(&self) -> usize {
        self.hold.came()
    }

    /// How many replies or changes were not wanted any more.
    pub(crate) fn unanswered(&self) -> usize {
        *self.unanswered.lock().unwrap()
    }

    /// The lengths of the writes that came.
    pub(crate) fn written(&self) -> Vec<usize> {
        self.written.lock().unwrap().clone()
    }

    /// Makes a file in the root that the kernel has not heard of.
    pub(crate) fn plant(&self, name: &str, data: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        let (id, _) = state.make(1, name.as_bytes(), libc::S_IFREG | 0o644).unwrap();
        state.node(id).unwrap().data = data;
    }

    /// How many references were given back.
    pub(crate) fn forgotten(&self) -> u64 {
        *self.forgotten.lock().unwrap()
    }
}

fn attributes(ino: u64, node: &Node) -> Attributes {
    let zero = Moment { seconds: 0, nanoseconds: 0 };
    Attributes {
        ino,
        size: node.data.len() as u64,
        blocks: node.data.len().div_ceil(512) as u64,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        generation: 0,
        mode: node.mode,
        nlink: node.nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_size: 4096,
        follow: false,
    }
}

type Answer = Result<usize, i32>;

impl State {
    fn node(&mut self, id: u64) -> Result<&mut Node, i32> {
        self.nodes.get_mut(&id).ok_or(libc::ESTALE)
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<(u64, Attributes), i32> {
        let id = self.next;
        if self.node(parent)?.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.node(parent)?.entries.insert(name.to_vec(), id);
        self.next += 1;
        let node = Node { mode, nlink: 1, data: Vec::new(), entries: BTreeMap::new() };
        let attributes = attributes(id, &node);
        self.nodes.insert(id, node);
        Ok((id, attributes))
    }

    fn find(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        self.node(parent)?.entries.get(name).copied().ok_or(libc::ENOENT)
    }
}

impl Toy {
    fn answer(&self, id: u64, operation: Operation<'_>) -> Result<Body, i32> {
        match (&self.sink, &operation) {
            (Some(sink), Operation::Write { data, .. }) => {
                sink.write(data);
                return Ok(Body::Written(data.len() as u32));
            }
            (Some(sink), Operation::Sync { .. } | Operation::SyncDirectory { .. }) => {
                sink.sync().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
                return Ok(Body::Empty);
            }
            _ => {}
        }
        let mut state = self.state.lock().unwrap();
        Ok(match operation {
            Operation::Lookup { name } => match state.find(id, name) {
                Ok(found) => Body::Entry(found, attributes(found, state.node(found)?)),
                Err(_) => Body::None,
            },
            Operation::GetAttributes => Body::Attributes(attributes(id, state.node(id)?)),
            Operation::SetAttributes(set) => {
                let node = state.node(id)?;
                if let Some(size) = set.size {
                    node.data.resize(size as usize, 0);
                }
                if let Some(mode) = set.mode {
                    node.mode = mode;
                }
                Body::Attributes(attributes(id, node))
            }
            Operation::MakeNode { name, mode, .. } => {
                let (id, attributes) = state.make(id, name, mode)?;
                Body::Entry(id, attributes)
            }
            Operation::Create { name, mode, .. } => {
                let (id, attributes) = state.make(id, name, libc::S_IFREG | mode)?;
                Body::Opened(id, attributes)
            }
            Operation::SymbolicLink { name, .. } => {
                let (id, attributes) = state.make(id, name, libc::S_IFLNK | 0o777)?;
                Body::Entry(id, attributes)
            }
            Operation::MakeDirectory { name, mode, .. } => {
                let (id, attributes) = state.make(id, name, libc::S_IFDIR | mode)?;
                Body::Entry(id, attributes)
            }
            Operation::Unlink { name } | Operation::RemoveDirectory { name } => {
                state.find(id, name)?;
                state.node(id)?.entries.remove(name);
                Body::Empty
            }
            Operation::Write { offset, data, .. } => {
                self.written.lock().unwrap().push(data.len());
                let (start, node) = (offset as usize, state.node(id)?);
                if node.data.len() < start + data.len() {
                    node.data.resize(start + data.len(), 0);
                }
                node.data[start..start + data.len()].copy_from_slice(data);
                Body::Written(data.len() as u32)
            }
            Operation::FileSystemStatistics => Body::Statistics,
            Operation::Sync { .. } | Operation::SyncDirectory { .. } | Operation::Release => Body::Empty,
            Operation::Destroy | Operation::SyncFileSystem => Body::Empty,
            Operation::Ioctl { .. } => return Err(libc::ENOTTY),
            Operation::GetXattr { .. } => return Err(libc::ENODATA),
            _ => return Err(libc::ENOSYS),
        })
    }

    fn read(&self, id: u64, offset: u64, size: u32, out: &mut [u8]) -> Answer {
        let begins = |with: &[u8]| {
            Ok::<_, i32>(!self.plain && self.state.lock().unwrap().node(id)?.data.starts_with(with))
        };
        if begins(b"wait")? {
            self.gate.pass();
        }
        let mut state = self.state.lock().unwrap();
        let rest = state.node(id)?.data.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(size as usize);
        out[..length].copy_from_slice(&rest[..length]);
        drop(state);
        if begins(b"hold")? {
            self.hold.pass();
        }
        Ok(length)
    }

    fn list(&self, id: u64, offset: u64, size: u32, plus: bool, out: &mut [u8]) -> Answer {
        let mut state = self.state.lock().unwrap();
        let entries: Vec<_> = state.node(id)?.entries.iter().map(|(name, id)| (name.clone(), *id)).collect();
        let mut body = Directory::new(&mut out[..size as usize], plus);
        for (index, (name, id)) in entries.iter().enumerate().skip(offset as usize) {
            let attributes = attributes(*id, state.node(*id)?);
            if !body.add(name, *id, attributes.mode >> 12, index as u64 + 1, Some((*id, &attributes))) {
                break;
            }
        }
        Ok(body.len())
    }
}

enum Body {
    Empty,
    None,
    Entry(u64, Attributes),
    /// A new file that is open.
    Opened(u64, Attributes),
    Attributes(Attributes),
    Written(u32),
    Statistics,
}

impl Handler for Toy {
    fn handle(&self, request: &Request<'_>, out: &mut [u8], received: usize) -> Outcome {
        let id = request.header.node;
        let operation =
            decode_parts(&request.header, request.argument, &out[..received], request.dialect).unwrap();
        let result = match operation {
            Operation::Forget { count } => {
                *self.forgotten.lock().unwrap() += count;
                return Outcome::Silent;
            }
            Operation::BatchForget(list) => {
                *self.forgotten.lock().unwrap() += list.iter().map(|(_, count)| count).sum::<u64>();
                return Outcome::Silent;
            }
            Operation::Read { offset, size, .. } => self.read(id, offset, size, out),
            Operation::ReadDirectory { offset, size, plus } => self.list(id, offset, size, plus, out),
            other => {
                let is_late =
                    matches!(other, Operation::MakeDirectory { name, .. } if name.starts_with(b"late"));
                match other {
                    _ if self.plain => {}
                    Operation::Lookup { name } if name.starts_with(b"wait") => self.gate.pass(),
                    Operation::Lookup { name } if name.starts_with(b"panic") => panic!("asked to"),
                    Operation::MakeDirectory { name, .. } => {
                        if name.starts_with(b"early") {
                            self.gate.pass();
                        }
                        if !may_commit() {
                            *self.unanswered.lock().unwrap() += 1;
                            return Outcome::Error(libc::EINTR);
                        }
                    }
                    _ => {}
                }
                let body = self.answer(id, other);
                if is_late && !self.plain {
                    self.hold.pass();
                }
                body.map(|body| match body {
                    Body::Empty => 0,
                    Body::None => reply::no_entry(out),
                    Body::Entry(node, attributes) => reply::entry(out, node, &attributes),
                    Body::Opened(node, attributes) => {
                        let length = reply::entry(out, node, &attributes);
                        length + reply::opened(&mut out[length..])
                    }
                    Body::Attributes(attributes) => reply::attribute_reply(out, &attributes),
                    Body::Written(count) => reply::written(out, count),
                    Body::Statistics => reply::statistics(
                        out,
                        &Statistics {
                            blocks: 1 << 20,
                            free: 1 << 20,
                            available: 1 << 20,
                            files: 0,
                            files_free: 0,
                            block_size: 4096,
                            name_max: 255,
                        },
                    ),
                })
            }
        };
        match result {
            Ok(length) => Outcome::Reply(length),
            Err(errno) => Outcome::Error(errno),
        }
    }

    fn unanswered(&self, header: &Header, reply: &[u8]) {
        *self.forgotten.lock().unwrap() += reply::references(header.opcode, reply).count() as u64;
        *self.unanswered.lock().unwrap() += 1;
    }
}
