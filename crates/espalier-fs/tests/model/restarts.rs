//! Syncs, and file systems that go on where others were.

use crate::run::{Run, open_fs, open_options, open_store};
use espalier_fs::FileSystem;

impl Run {
    pub(crate) fn sync(&mut self) {
        let (id, node) = self.any();
        self.last = format!("sync {id}");
        match self.random.below(3) {
            0 => {
                self.fs.fsync(node, self.random.chance(2)).expect("fsync");
                let object = &self.tree.objects[id];
                // What has no name is lost in a crash, so nothing can be promised of it.
                if object.is_dir() || object.names > 0 {
                    self.synced = Some(Some(id).filter(|_| !object.is_dir()));
                }
                return;
            }
            1 => self.fs.syncfs().expect("syncfs"),
            _ => self.fs.background_tick().expect("tick"),
        }
        self.synced = Some(None);
        match self.random.below(8) {
            0 => self.store.checkpoint().expect("checkpoint"),
            1..=2 => while self.store.step().expect("background work") {},
            3 => while self.store.read_ahead() {},
            _ => {}
        }
    }

    /// Opens the file system anew, with or without having given back what was in use.
    pub(crate) fn remount(&mut self) {
        self.last = "remount".into();
        let polite = self.random.chance(2);
        if polite {
            while self.open.len() > 1 {
                self.forget();
            }
        }
        // Without this the times of the last read may be lost, which is allowed.
        self.fs.syncfs().expect("syncfs");
        self.synced = Some(None);
        if polite {
            self.fs.close().expect("close");
        }
        self.open.truncate(1);
        match self.random.below(3) {
            0 => {}
            1 => {
                self.store.close().expect("close");
                self.store = open_store(&self.device, &self.world);
            }
            _ => self.store = open_store(&self.device, &self.world),
        }
        self.fs = open_fs(&self.store, &self.world, &mut self.random, &self.caring, self.keeps_handles);
        self.compare_all();
    }

    /// Another file system goes on in place of this one. What is in use stays in use.
    pub(crate) fn hand_over(&mut self) {
        self.last = "hand over".into();
        let state = self.fs.hand_over().expect("hand over");
        let cut = self.handle_random.below(state.len());
        if self.handle_random.chance(2) {
            self.store = open_store(&self.device, &self.world);
        }
        let open = |run: &mut Self, state: &[u8]| {
            let options = open_options(&mut run.handle_random, &run.caring, run.keeps_handles);
            FileSystem::open_handed_over(run.store.clone(), run.world.clone(), options, state)
        };
        assert!(open(self, &state[..cut]).is_err(), "seed {}: {cut} of {}", self.seed, state.len());
        self.fs = open(self, &state).expect("what was handed over is taken");
        self.synced = Some(None);
        let nameless = self.open.iter().filter(|(id, ..)| self.tree.objects[*id].names == 0).count();
        self.handed_over = (self.handed_over.0 + 1, self.handed_over.1 + nameless);
        self.compare_all();
    }
}
