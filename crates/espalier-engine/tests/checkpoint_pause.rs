//! A store changes hands between two checkpoints, never in one.

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{Device, GatedDevice, MemoryDevice, Result, SimulatedEnvironment};
use espalier_sync::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Keeps the caller of one write or sync waiting.
#[derive(Debug)]
struct Slow {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Writes and syncs that pass before the one that waits.
    before: Option<u32>,
    waits: bool,
    /// None came.
    ended: bool,
}

impl Slow {
    /// A write has ended, or a sync begins.
    fn changed(&self) {
        let mut state = self.state.lock();
        match state.before {
            Some(0) => {
                (state.before, state.waits) = (None, true);
                self.changed.notify_all();
                self.changed.wait_while(&mut state, |state| state.waits);
            }
            Some(before) => state.before = Some(before - 1),
            None => {}
        }
    }

    /// False if none came before [`Self::end`].
    fn wait_until_one_waits(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.waits && !state.ended);
        state.waits
    }

    fn let_go(&self) {
        self.state.lock().waits = false;
        self.changed.notify_all();
    }

    /// Nothing further comes.
    fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

impl Device for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.inner.write_at(offset, buffers)?;
        self.changed();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.changed();
        self.inner.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }
}

fn open(device: Arc<dyn Device>) -> espalier_engine::Result<Arc<Store>> {
    Store::open(device, Arc::new(SimulatedEnvironment::new(1)), OpenOptions::default())
}

/// Opens the store as a process that may not change it yet.
fn look(device: &Arc<Slow>) -> espalier_engine::Result<Arc<Store>> {
    open(GatedDevice::closed_before(device.clone(), Duration::ZERO))
}

#[test]
fn a_pause_waits_for_a_checkpoint_under_way_and_keeps_others_from_beginning() {
    let device = Arc::new(Slow {
        inner: MemoryDevice::new(64 << 20),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let env = Arc::new(SimulatedEnvironment::new(1));
    Store::format(device.clone(), env, &FormatOptions::default()).unwrap();
    let store = open(device.clone()).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    // Each write and sync of a checkpoint waits once.
    let mut half_written = 0;
    for before in 0.. {
        let mut batch = Batch::new();
        batch.insert(IndexId { volume, index: 0 }, b"key", before.to_string().into_bytes());
        store.commit(batch).unwrap();
        *device.state.lock() = State { before: Some(before), ..State::default() };
        let seen = std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| {
                let made = store.checkpoint();
                device.end();
                made
            });
            let waits = device.wait_until_one_waits();
            let seen =
                waits.then(|| (store.pause_checkpoints(Duration::ZERO).is_some(), look(&device).is_ok()));
            device.let_go();
            checkpoint.join().unwrap().unwrap();
            seen
        });
        let Some((is_paused, can_look)) = seen else { break };
        assert!(!is_paused, "write or sync {before}");
        half_written += u32::from(!can_look);
    }
    // What a pause is for: another process would have to end the checkpoint.
    assert!(half_written > 0);
    *device.state.lock() = State::default();
    let pause = store.pause_checkpoints(Duration::ZERO).expect("no checkpoint is under way");
    look(&device).unwrap();
    std::thread::scope(|scope| {
        let paused = || store.pause_checkpoints(Duration::ZERO).is_none();
        assert!(scope.spawn(paused).join().unwrap());
    });
    drop(pause);
    store.checkpoint().unwrap();
}
