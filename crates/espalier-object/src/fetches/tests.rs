//! A frame is got once however many readers want it, what is got ahead follows the reader, and
//! whatever a request gives, readers get what was written.

use super::*;
use crate::bucket::{Bucket, Condition};
use crate::segment::SegmentBuilder;
use crate::simulated::{SimulatedBucket, Trouble};
use espalier_storage::{BLOCK, Environment, Random, SimulatedEnvironment};
use std::time::Duration;

struct World {
    requests: Requests,
    fetches: Fetches,
    objects: BTreeMap<ObjectId, NewObject>,
}

/// Objects of so many blocks each, in which each block has its number.
fn world(blocks: &[u32], limit: u64, trouble: Trouble) -> World {
    let bucket = SimulatedBucket::new(7);
    let mut objects = BTreeMap::new();
    for (number, blocks) in (1..).zip(blocks) {
        let id = ObjectId::new(1, number);
        let mut builder = SegmentBuilder::new(id, 99);
        (0..*blocks).for_each(|block| builder.push(u64::from(block), &content(id, block)));
        let segment = builder.seal();
        let put =
            Request::Put { name: segment.object.name(), body: segment.body(), condition: Condition::None };
        bucket.call(put).unwrap();
        objects.insert(id, segment.object);
    }
    bucket.set_trouble(trouble);
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(3));
    let requests = Requests::new(Arc::new(bucket), environment, Some(Duration::from_secs(10_000)));
    World { requests, fetches: Fetches::new(limit), objects }
}

fn content(id: ObjectId, block: u32) -> Vec<u8> {
    let word = format!("{id} {block:6} ");
    word.into_bytes().into_iter().cycle().take(BLOCK).collect()
}

impl World {
    fn ids(&self) -> Vec<ObjectId> {
        self.objects.keys().copied().collect()
    }

    fn cover(&self, wanted: &[FrameKey], purpose: Purpose) -> Vec<Arc<Fetch>> {
        let wanted = wanted.iter().copied().collect();
        self.fetches.cover(&self.requests, &self.objects, &wanted, purpose, |_, _| false).unwrap()
    }

    /// Reads frames as a device does, and checks them.
    fn read(&self, wanted: &[FrameKey]) {
        let mut read = 0;
        for fetch in self.cover(wanted, Purpose::Read) {
            let got = fetch.wait(&self.requests, |_| {}).unwrap();
            let mut taken = Vec::new();
            for (frame, bytes) in fetch.frames.clone().zip(&got) {
                if wanted.contains(&(fetch.object.id, frame)) {
                    let block = content(fetch.object.id, frame * FRAME_BLOCKS);
                    assert_eq!(bytes[..BLOCK], block[..]);
                    taken.push(frame);
                    read += 1;
                }
            }
            self.fetches.taken(&fetch, &taken);
        }
        assert_eq!(read, wanted.len());
    }

    fn bytes(&self) -> u64 {
        self.fetches.table.lock().bytes
    }
}

#[test]
fn a_frame_is_got_once_with_its_neighbours() {
    let world = world(&[2048], 64 << 20, Trouble::default());
    let id = world.ids()[0];
    let (first, second) = (world.cover(&[(id, 21)], Purpose::Read), world.cover(&[(id, 22)], Purpose::Read));
    assert!(Arc::ptr_eq(&first[0], &second[0]));
    assert_eq!((first[0].frames.clone(), world.requests.counts().gets), (20..24, 1));
    let frames = first[0].wait(&world.requests, |frames| assert_eq!(frames.len(), 4)).unwrap();
    // The second reader has the same bytes, and nothing is kept of them a second time.
    let again = second[0].wait(&world.requests, |_| panic!("they landed already")).unwrap();
    assert_eq!(frames, again);
    world.fetches.taken(&first[0], &[20, 21, 22]);
    assert!(world.fetches.has((id, 20)) && world.bytes() > 0);
    world.fetches.taken(&first[0], &[23]);
    assert_eq!((world.fetches.has((id, 23)), world.bytes()), (false, 0));
}

#[test]
fn copies_get_what_they_want_and_no_more() {
    let world = world(&[2048], 64 << 20, Trouble::default());
    let id = world.ids()[0];
    let fetches = world.cover(&[(id, 3), (id, 4), (id, 9)], Purpose::Copy);
    let frames: Vec<_> = fetches.iter().map(|fetch| fetch.frames.clone()).collect();
    assert_eq!(frames, [3..5, 9..10]);
}

#[test]
fn a_reader_that_goes_on_needs_few_requests() {
    let world = world(&[2048], 64 << 20, Trouble::default());
    let id = world.ids()[0];
    (0..128).for_each(|frame| world.read(&[(id, frame)]));
    // 4, then 1 and 16 ahead, then 1 and 64 ahead in two gets, then 1 and the rest in two.
    assert_eq!(world.requests.counts().gets, 9);
    assert_eq!(world.bytes(), 0);
    // One that jumps about gets no more than the neighbours.
    let before = world.requests.counts().bytes_got;
    [100, 40, 80, 20, 60, 0].iter().for_each(|frame| world.read(&[(id, *frame)]));
    assert!(world.requests.counts().bytes_got - before < 6 * 4 * (66 << 10));
}

#[test]
fn announced_frames_are_got_together_and_once() {
    let world = world(&[2048, 30], 64 << 20, Trouble::default());
    let (one, two) = (world.ids()[0], world.ids()[1]);
    let announced = [(one, 1), (one, 4), (one, 20), (one, 21), (two, 0), (two, 1)];
    let fetches = world.cover(&announced, Purpose::Announced);
    let frames: Vec<_> = fetches.iter().map(|fetch| fetch.frames.clone()).collect();
    assert_eq!(frames, [1..5, 20..22, 0..2]);
    world.cover(&announced, Purpose::Announced);
    announced.iter().for_each(|key| world.read(&[*key]));
    assert_eq!(world.requests.counts().gets, 3);
    // Between two announcements lies what another fetch has.
    world.cover(&[(one, 40)], Purpose::Copy);
    let frames: Vec<_> = world
        .cover(&[(one, 39), (one, 41)], Purpose::Announced)
        .iter()
        .map(|fetch| fetch.frames.clone())
        .collect();
    assert_eq!(frames, [39..40, 41..42]);
}

#[test]
fn a_get_that_failed_is_begun_again_by_the_next_reader() {
    let world = world(&[64], 64 << 20, Trouble::default());
    let id = world.ids()[0];
    let mut gone = world.objects[&id];
    gone.nonce += 1;
    let objects = [(id, gone)].into();
    let wanted = [(id, 0)].into();
    let fetches =
        world.fetches.cover(&world.requests, &objects, &wanted, Purpose::Copy, |_, _| false).unwrap();
    let failed = |fetch: &Fetch| fetch.wait(&world.requests, |_| {}).unwrap_err().kind;
    assert_eq!([failed(&fetches[0]), failed(&fetches[0])], [FailureKind::NotFound; 2]);
    world.fetches.failed(&fetches[0]);
    world.read(&[(id, 0)]);
    let unknown = [(ObjectId::new(9, 9), 0)].into();
    let refused = world.fetches.cover(&world.requests, &objects, &unknown, Purpose::Copy, |_, _| false);
    assert_eq!(refused.unwrap_err().kind, FailureKind::NotFound);
}

#[test]
fn whatever_happens_readers_get_what_was_written_and_the_limit_holds() {
    let limit = 6 << 20;
    // What is damaged each time that it is got is an error, and rightly: that is to be rare.
    let trouble = Trouble { fail: 9, damage: 40, cut: 40, lose_reply: 9, ..Trouble::default() };
    let world = world(&[2048, 700, 16, 1, 2048], limit, trouble);
    let mut random = Random::new(11);
    let mut at: FrameKey = (world.ids()[0], 0);
    for _ in 0..600 {
        let id = *random.choose(&world.ids());
        let frames = world.objects[&id].blocks.div_ceil(FRAME_BLOCKS);
        let start = random.below(u64::from(frames)) as u32;
        let some: Vec<FrameKey> = (start..frames)
            .step_by(1 + random.index(5))
            .take(random.index(20) + 1)
            .map(|n| (id, n))
            .collect();
        match random.below(4) {
            0 => drop(world.cover(&some, Purpose::Announced)),
            1 => world.read(&some),
            // One reader goes on.
            _ => {
                let all = world.objects[&at.0].blocks.div_ceil(FRAME_BLOCKS);
                at = if at.1 + 1 < all { (at.0, at.1 + 1) } else { (id, 0) };
                world.read(&[at]);
            }
        }
        let table = world.fetches.table.lock();
        let bytes: u64 = table.fetches.values().map(|entry| entry.fetch.bytes()).sum();
        assert_eq!(table.bytes, bytes);
        assert!(bytes <= limit + (8 << 20), "{bytes}");
        assert!(table.order.len() <= 3 * table.fetches.len() + 2 * RECENT_GETS);
        let ends: Vec<_> =
            table.fetches.values().map(|e| (e.fetch.object.id, e.fetch.frames.clone())).collect();
        assert!(ends.windows(2).all(|w| w[0].0 != w[1].0 || w[0].1.end <= w[1].1.start), "{ends:?}");
    }
}
