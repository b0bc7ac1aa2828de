//! Threads that make streams, each one at a time.
//!
//! A thread that has made a stream waits for the next one: to start one takes as long as to list a
//! hundred files. A stream never waits for a thread that makes another one.

use espalier_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that wait for a stream, at most.
const MAX_IDLE_THREADS: usize = 8;

/// What makes a stream.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The threads; they end when it is dropped, after what they make.
#[derive(Default)]
pub(crate) struct StreamThreads {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    /// Each has a thread that waits for it.
    jobs: VecDeque<Job>,
    /// Threads that wait.
    idle: usize,
    is_stopping: bool,
}

impl StreamThreads {
    /// Has a thread do a job now.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn run(&self, job: Job) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.idle > state.jobs.len() {
            state.jobs.push_back(job);
            drop(state);
            self.shared.wanted.notify_one();
            return Ok(());
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let body = move || {
            job();
            while let Some(job) = shared.next() {
                job();
            }
        };
        let thread = std::thread::Builder::new().name("client-stream".into()).spawn(body)?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

impl Drop for StreamThreads {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.wanted.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Waits for a job; `None` if the thread is to end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        if state.idle == MAX_IDLE_THREADS {
            return None;
        }
        state.idle += 1;
        while state.jobs.is_empty() && !state.is_stopping {
            self.wanted.wait(&mut state);
        }
        state.idle -= 1;
        state.jobs.pop_front()
    }
}

#[cfg(test)]
mod tests;
