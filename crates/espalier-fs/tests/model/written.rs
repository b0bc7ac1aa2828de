//! Power cuts while many files are written by one call: what is found afterwards are the batches up
//! to one of them, each as a whole.

use crate::crash::{History, crash, hash_found};
use crate::run::Run;
use crate::world::Random;
use espalier_fs::{
    Content, Credentials, Links, NewAttributes, Open, PathCaller, Paths, WriteHow, WriteRequest,
};
use espalier_storage::SimulatedDevice;
use std::sync::Arc;

/// Directories that are there before, with files that are replaced.
const DIRECTORIES: [&str; 4] = ["/a", "/a/b", "/c", "/d"];

/// The tree before: in each directory files, one with a second name in another directory.
fn start(root: &PathCaller) {
    for dir in DIRECTORIES {
        root.mkdir(dir, 0o755).unwrap();
        for n in 0..6 {
            let file = root.open(&format!("{dir}/{n}"), &Open::create(0o644)).unwrap();
            file.write_at(0, &vec![n as u8; 5000 * n]).unwrap();
        }
    }
    root.link("/a/5", "/d/again", Links::Stay).unwrap();
    root.link("/c/4", "/c/twice", Links::Stay).unwrap();
}

/// Files of all sizes, some of which replace others.
fn files(random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let file = |_| {
        let name = *random.pick(&["0", "1", "4", "5", "again", "twice", "new", "other", "third"]);
        let path = format!("{}/{name}", random.pick(&DIRECTORIES));
        let length = *random.pick(&[0, 1, 100, 5000, 70_000]);
        (path, vec![random.below(256) as u8; length])
    };
    (0..30).map(file).collect()
}

fn one(seed: u64) -> usize {
    let device = Arc::new(SimulatedDevice::new(32 << 20, seed));
    let run = Run::on(seed, device.clone());
    let paths = Paths::new(run.fs.clone()).unwrap();
    let root = paths.caller(Credentials::default());
    start(&root);
    run.fs.syncfs().unwrap();
    let mut random = Random(seed ^ 0x0b01);
    let files = files(&mut random);
    let value = vec![7; 1 + random.below(4000)];
    let xattrs: [(&[u8], &[u8]); 1] = [(b"user.x", &value)];
    let attributes =
        NewAttributes { mode: Some(0o640), mtime: Some(5), xattrs: &xattrs, ..Default::default() };
    let requests: Vec<_> = files
        .iter()
        .map(|(path, data)| WriteRequest { at: path.into(), content: Content::Data(data), attributes })
        .collect();
    device.record_crash_points(1 + random.next() % 4);
    let mut began = device.counts().changes();
    let mut history = History::new(began);
    history.record_view(0, hash_found(&run.fs));
    root.write_many(&requests, WriteHow::default(), &mut |batch| {
        batch.result.unwrap();
        run.world.step(20_000_000);
        history.record_view(began, hash_found(&run.fs));
        if random.chance(3) {
            run.fs.syncfs().unwrap();
            history.promise(device.counts().changes(), None);
        }
        began = device.counts().changes();
        true
    });
    run.fs.syncfs().unwrap();
    history.promise(device.counts().changes(), None);
    device.record_crash_points(0);
    let points = device.take_crash_points();
    for point in &points {
        crash::<SimulatedDevice>(&run, &history, point, random.next());
    }
    points.len()
}

#[test]
fn power_cuts_leave_whole_batches() {
    let seeds = crate::seeds(30);
    let (count, cuts) = (seeds.clone().count(), seeds.map(one).sum::<usize>());
    assert!(cuts > 5 * count, "{cuts} power cuts in {count} runs");
}
