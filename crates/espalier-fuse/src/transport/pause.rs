//! Pausing a connection: its threads read no request, and serve none, until they are told to go on.
//!
//! A request that a thread has read it serves to the end before it pauses. A thread that waits for
//! a request is woken by a signal whose handler does nothing: the kernel ends the `read`, and gives
//! out no request with it. The signal can come a moment before the `read`, so it is sent again
//! until the thread has paused.

use espalier_sync::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Ends the `read` of a thread. The rest of the program has no use for it.
const WAKE_SIGNAL: libc::c_int = libc::SIGUSR2;

/// How long a thread has to pause after a signal before it gets another one.
const SIGNAL_INTERVAL: Duration = Duration::from_micros(500);

/// Whether the readers of a connection are to pause, and which are there.
#[derive(Default)]
pub(super) struct PauseGate {
    wanted: AtomicBool,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    readers: Vec<Weak<ReaderState>>,
    /// Readers that have not paused.
    running: usize,
}

struct ReaderState {
    thread: libc::pid_t,
    /// It is in `read`, or about to be or just back.
    is_reading: AtomicBool,
}

/// A thread that reads requests, until this is dropped.
pub(super) struct Reader<'a> {
    gate: &'a PauseGate,
    state: Arc<ReaderState>,
}

impl PauseGate {
    /// The gate of a connection whose readers pause before the first request.
    pub(super) fn closed() -> Self {
        Self { wanted: AtomicBool::new(true), ..Self::default() }
    }

    /// The calling thread is a reader from now on. If readers are to pause it comes back later.
    pub(super) fn join(&self) -> Reader<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let state = Arc::new(ReaderState { thread, is_reading: AtomicBool::new(false) });
        let mut gate = self.state.lock();
        gate.readers.retain(|reader| reader.strong_count() > 0);
        gate.readers.push(Arc::downgrade(&state));
        self.run_when_allowed(gate);
        Reader { gate: self, state }
    }

    fn run_when_allowed(&self, mut gate: MutexGuard<'_, GateState>) {
        self.changed.wait_while(&mut gate, |_| self.wanted.load(Ordering::Acquire));
        gate.running += 1;
    }

    fn stop_running(&self) {
        self.state.lock().running -= 1;
        self.changed.notify_all();
    }

    /// True if readers are to pause.
    pub(super) fn is_closed(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Has all readers pause: when this returns none of them has a request. False if that took
    /// longer than `limit`; then they go on.
    pub(super) fn close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        self.wanted.store(true, Ordering::SeqCst);
        let mut gate = self.state.lock();
        while gate.running > 0 {
            if Instant::now() > deadline {
                drop(gate);
                self.open();
                return false;
            }
            for reader in gate.readers.iter().filter_map(Weak::upgrade) {
                if reader.is_reading.load(Ordering::SeqCst) {
                    signal(reader.thread);
                }
            }
            self.changed.wait_for(&mut gate, SIGNAL_INTERVAL);
        }
        true
    }

    /// Lets all readers go on.
    pub(super) fn open(&self) {
        let gate = self.state.lock();
        self.wanted.store(false, Ordering::SeqCst);
        drop(gate);
        self.changed.notify_all();
    }
}

impl Reader<'_> {
    /// Calls `read`, which waits for a request, unless readers are to pause: then it waits until
    /// they go on first. `read` fails with [`io::ErrorKind::Interrupted`] when it is interrupted.
    pub(super) fn read<T>(&self, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            if self.gate.is_closed() {
                self.gate.stop_running();
                self.gate.run_when_allowed(self.gate.state.lock());
            }
            self.state.is_reading.store(true, Ordering::Relaxed);
            let result = read();
            self.state.is_reading.store(false, Ordering::Relaxed);
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Calls `rest`, in which the thread reads nothing.
    pub(super) fn rest<T>(&self, rest: impl FnOnce() -> T) -> T {
        self.gate.stop_running();
        let result = rest();
        self.gate.run_when_allowed(self.gate.state.lock());
        result
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.gate.stop_running();
    }
}

/// The error of a pause that requests keep from beginning.
pub(super) fn requests_take_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "requests are under way that take long")
}

/// Wakes a thread of this process from a system call that waits.
fn signal(thread: libc::pid_t) {
    static HANDLED: Once = Once::new();
    extern "C" fn nothing(_: libc::c_int) {}
    HANDLED.call_once(|| {
        // SAFETY: zeros are a valid `sigaction` without flags and with an empty mask: what the
        // signal interrupts is not begun anew. The handler does nothing, so it may run anywhere.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(WAKE_SIGNAL, &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: takes numbers only. A thread that has ended gets none: the call fails.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, WAKE_SIGNAL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn readers_pause_with_nothing_in_hand_and_go_on() {
        let gate = PauseGate::default();
        let (reader, mut writer) = pipe().unwrap();
        let (read, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let thread = gate.join();
                    let once = || match rustix::io::read(&reader, &mut [0; 1][..]) {
                        Ok(0) => Ok(false),
                        Ok(_) => {
                            read.fetch_add(1, Ordering::SeqCst);
                            Ok(true)
                        }
                        Err(error) => Err(error.into()),
                    };
                    while thread.read(once).unwrap() {
                        thread.rest(std::thread::yield_now);
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for round in 1..=50 {
                writer.write_all(&[1; 4]).unwrap();
                while read.load(Ordering::SeqCst) < 2 * round {
                    std::thread::yield_now();
                }
                assert!(gate.close(Duration::from_secs(60)));
                // A thread that rests has served nothing yet, but reads nothing either.
                let before = read.load(Ordering::SeqCst);
                writer.write_all(&[1; 4]).unwrap();
                std::thread::yield_now();
                assert_eq!(read.load(Ordering::SeqCst), before);
                gate.open();
            }
            drop(writer);
        });
        assert_eq!((read.into_inner(), served.into_inner()), (400, 400));
        drop(reader);
    }

    #[test]
    fn a_reader_that_takes_too_long_lets_all_go_on() {
        let gate = PauseGate::closed();
        let (mut reader, writer) = pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = gate.join();
                thread.read(|| Ok(())).unwrap();
                // It serves what it has read.
                reader.read_exact(&mut [0]).unwrap();
                thread.read(|| Ok(())).unwrap();
            });
            gate.open();
            while gate.state.lock().running == 0 {
                std::thread::yield_now();
            }
            assert!(!gate.close(Duration::ZERO) || gate.state.lock().running == 0);
            (&writer).write_all(&[1]).unwrap();
            gate.open();
        });
        assert!(gate.close(Duration::ZERO), "no reader is left");
    }
}
