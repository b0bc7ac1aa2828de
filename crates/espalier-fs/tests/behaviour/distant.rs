//! A file system in an object store far away: how often it waits for an answer, counted.
//!
//! A *round* is a request that begins when the one before has been answered. Requests side by side
//! are one round, and rounds are what a user waits for.

use espalier_engine::{OpenOptions, Store};
use espalier_fs::{Caller, FileSystem, FormatOptions, NewNode, NodeId, merge_functions};
use espalier_object::{Access, ObjectDevice, Options, Present, RequestCounts, SimulatedBucket};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, SimulatedEnvironment};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;
const DIRECTORIES: usize = 20;
const FILES: usize = 40;
const LARGE_MIB: usize = 64;

/// A store, and what has it open.
struct Distant {
    bucket: Arc<SimulatedBucket>,
    environment: Arc<dyn Environment>,
}

struct Mount {
    device: Arc<ObjectDevice>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
}

/// What something took.
#[derive(Debug)]
struct Cost {
    rounds: u64,
    puts: u64,
    gets: u64,
    most_at_a_time: usize,
}

impl Distant {
    fn new() -> Self {
        let bucket = Arc::new(SimulatedBucket::new(3));
        let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(3));
        ObjectDevice::create(bucket.clone(), &environment, 100 * GIB, &options(), Present::Refuse)
            .expect("create");
        let this = Self { bucket, environment };
        let device = this.device();
        Store::format(device.clone(), this.environment.clone(), &Default::default()).expect("format");
        let store = this.store(&device);
        FileSystem::format(&store, &FormatOptions::default()).expect("format");
        store.close().expect("close");
        device.close().expect("close");
        this
    }

    fn device(&self) -> Arc<ObjectDevice> {
        let access = Access::Write;
        Arc::new(
            ObjectDevice::open(self.bucket.clone(), &self.environment, access, options()).expect("device"),
        )
    }

    fn store(&self, device: &Arc<ObjectDevice>) -> Arc<Store> {
        let options = OpenOptions { memory: 512 << 20, merge: merge_functions(), ..Default::default() };
        let device: Arc<dyn Device> = device.clone();
        Store::open(device, self.environment.clone(), options).expect("open")
    }

    fn mount(&self) -> Mount {
        let device = self.device();
        let store = self.store(&device);
        let fs = FileSystem::open(store.clone(), self.environment.clone(), Default::default()).expect("open");
        Mount { device, store, fs }
    }

    /// What `work` takes; `counts` are those of the device that it uses.
    fn cost<T>(&self, work: impl FnOnce() -> (T, RequestCounts)) -> (T, Cost) {
        let before = self.bucket.rounds();
        self.bucket.take_most_under_way();
        let (done, counts) = work();
        let (rounds, most_at_a_time) = (self.bucket.rounds() - before, self.bucket.take_most_under_way());
        (done, Cost { rounds, puts: counts.puts, gets: counts.gets, most_at_a_time })
    }
}

impl Mount {
    fn counts_since(&self, before: &RequestCounts) -> RequestCounts {
        let now = self.device.request_counts();
        RequestCounts { puts: now.puts - before.puts, gets: now.gets - before.gets, ..now }
    }

    /// As the server does at the end of a mount.
    fn unmount(&self) {
        self.fs.close().expect("close");
        self.store.close().expect("close");
        self.device.close().expect("close");
    }
}

fn options() -> Options {
    Options { host: "test".into(), ..Options::default() }
}

fn content(number: usize) -> Vec<u8> {
    (0..5000 + number * 37).map(|at| (at * 31 + number) as u8).collect()
}

fn file(fs: &FileSystem, parent: NodeId, name: &str) -> NodeId {
    fs.mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &Caller::default()).expect("mknod").node
}

/// Directories of small files, as an archive is unpacked.
fn unpack(mount: &Mount) {
    for dir in 0..DIRECTORIES {
        let name = format!("dir{dir:02}");
        let node =
            mount.fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &Caller::default()).expect("mkdir").node;
        for number in 0..FILES {
            let file = file(&mount.fs, node, &format!("file{number:02}"));
            mount.fs.write(file, 0, &content(dir * FILES + number), false).expect("write");
            while mount.store.step().expect("step") {}
        }
    }
}

#[test]
fn a_mount_waits_for_few_answers() {
    let distant = Distant::new();
    let mount = distant.mount();
    unpack(&mount);
    mount.unmount();
    let (mount, cost) = distant.cost(|| {
        let mount = distant.mount();
        mount.fs.getattr(NodeId::ROOT).expect("the root is there");
        let counts = mount.device.request_counts();
        (mount, counts)
    });
    assert!(cost.rounds <= 5 && cost.puts + cost.gets <= 26, "{cost:?}");
    let before = mount.device.request_counts();
    let ((), cost) = distant.cost(|| {
        mount.unmount();
        ((), mount.counts_since(&before))
    });
    assert!(cost.rounds <= 3 && cost.puts <= 3, "{cost:?}");
}

#[test]
fn a_checkpoint_waits_for_two_answers_and_a_sync_too() {
    let distant = Distant::new();
    let mount = distant.mount();
    let file = file(&mount.fs, NodeId::ROOT, "file");
    for checkpoint in [false, true] {
        mount.fs.write(file, 0, &content(7), false).expect("write");
        let before = mount.device.request_counts();
        let ((), cost) = distant.cost(|| {
            match checkpoint {
                false => mount.fs.fsync(file, false).expect("fsync"),
                true => mount.store.checkpoint().expect("checkpoint"),
            }
            ((), mount.counts_since(&before))
        });
        assert_eq!((cost.rounds, cost.puts, cost.gets), (2, 2, 0));
    }
    mount.unmount();
}

/// What is written is on its way before a sync wants it, many requests at a time; and a file that
/// is read comes the same way.
#[test]
fn a_large_file_is_put_and_got_side_by_side() {
    let distant = Distant::new();
    let mount = distant.mount();
    let file = file(&mount.fs, NodeId::ROOT, "file");
    let data: Vec<u8> = (0..MIB).map(|at| (at / 4096 * 7 + at) as u8).collect();
    let before = mount.device.request_counts();
    let ((), cost) = distant.cost(|| {
        for at in 0..LARGE_MIB {
            mount.fs.write(file, (at * MIB) as u64, &data, false).expect("write");
            while mount.store.step().expect("step") {}
        }
        ((), mount.counts_since(&before))
    });
    assert!(cost.rounds == 0 && cost.most_at_a_time >= 6, "{cost:?}");
    mount.unmount();
    let mount = distant.mount();
    let before = mount.device.request_counts();
    let ((), cost) = distant.cost(|| {
        let file = mount.fs.lookup(NodeId::ROOT, b"file").expect("it is there").node;
        let mut buffer = vec![0; MIB / 4];
        for at in 0..LARGE_MIB * 4 {
            let read = mount.fs.read(file, (at * buffer.len()) as u64, &mut buffer).expect("read");
            let part = at % 4 * buffer.len();
            assert!(read == buffer.len() && buffer == data[part..part + buffer.len()], "part {at}");
            while mount.store.read_ahead() {}
        }
        ((), mount.counts_since(&before))
    });
    // Without reading ahead it is one for each read.
    assert!(cost.rounds <= 9, "{cost:?}");
    assert!(cost.most_at_a_time >= 8, "{cost:?}");
    mount.unmount();
}

/// Directory by directory, file by file, as `grep -r` does.
#[test]
fn a_search_through_a_tree_waits_for_few_answers() {
    let distant = Distant::new();
    let mount = distant.mount();
    unpack(&mount);
    mount.unmount();
    let mount = distant.mount();
    let before = mount.device.request_counts();
    let ((), cost) = distant.cost(|| {
        for dir in 0..DIRECTORIES {
            let name = format!("dir{dir:02}");
            let node = mount.fs.lookup(NodeId::ROOT, name.as_bytes()).expect("a directory").node;
            for number in 0..FILES {
                let name = format!("file{number:02}");
                let entry = mount.fs.lookup(node, name.as_bytes()).expect("a file");
                let expected = content(dir * FILES + number);
                let mut buffer = vec![0; expected.len()];
                let read = mount.fs.read(entry.node, 0, &mut buffer).expect("read");
                assert!(read == buffer.len() && buffer == expected, "{dir}, {number}");
                while mount.store.read_ahead() {}
            }
        }
        ((), mount.counts_since(&before))
    });
    assert!(cost.rounds <= 7, "{cost:?}");
    mount.unmount();
}

/// Objects are paid for: what the log does not need lies in none.
#[test]
fn what_the_log_forgets_is_discarded() {
    // Where the log begins: docs/format.md.
    const LOG_START: u64 = 32;
    let distant = Distant::new();
    let mount = distant.mount();
    let node = file(&mount.fs, NodeId::ROOT, "file");
    let used = || {
        let mut block = AlignedBuf::zeroed(BLOCK);
        let is_used = |number: &u64| -> bool {
            mount.device.read_at((LOG_START + number) * BLOCK as u64, &mut block).expect("read");
            block.iter().any(|byte| *byte != 0)
        };
        (0..256).filter(is_used).count()
    };
    assert_eq!(used(), 0);
    for round in 0..3 {
        for number in 0..8 {
            mount.fs.write(node, number << 20, &content(7), false).expect("write");
            mount.fs.fsync(node, false).expect("fsync");
        }
        assert!(used() >= 8, "round {round}: {} blocks", used());
        mount.store.checkpoint().expect("checkpoint");
        assert_eq!(used(), 0, "round {round}");
    }
    mount.unmount();
}
