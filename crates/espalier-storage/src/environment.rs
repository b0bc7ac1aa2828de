//! Time, randomness and threads, so that nothing above touches them directly.

use espalier_sync::Mutex;
use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Everything that is not a pure function of its input, other than I/O.
pub trait Environment: Send + Sync + Debug {
    /// Wall-clock time since the Unix epoch, as of the last tick of the clock: what the kernel uses
    /// for times of files, which can be compared with it.
    fn now(&self) -> Duration;

    /// Time since some fixed moment; never goes backward.
    fn monotonic(&self) -> Duration;

    /// An unpredictable number (predictable under simulation). Where the system has none, it is one
    /// that no other call of this process gets, not even without its highest bit.
    fn random(&self) -> u64;

    /// How many background threads the user of this environment may start; 0 under simulation,
    /// where background work is stepped by the caller.
    fn threads(&self) -> usize;

    /// Starts a background thread. A foreground thread that wakes on the same CPU preempts it,
    /// where the system allows for that.
    ///
    /// # Errors
    /// If the system has no thread left to give.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle>;

    /// Lets the calling thread rest.
    fn sleep(&self, duration: Duration);
}

/// Waits for a thread started with [`Environment::spawn`].
pub struct JoinHandle(Option<std::thread::JoinHandle<()>>);

impl JoinHandle {
    /// Returns when the thread has ended; a panic in it is resumed here.
    pub fn join(mut self) {
        if let Some(handle) = self.0.take()
            && let Err(panic) = handle.join()
        {
            std::panic::resume_unwind(panic)
        }
    }
}

impl Debug for JoinHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinHandle")
    }
}

/// The real world.
#[derive(Debug)]
pub struct SystemEnvironment {
    started: std::time::Instant,
    threads: usize,
}

impl SystemEnvironment {
    /// An environment that allows `threads` background threads. Two are enough for most stores: one
    /// writes a checkpoint while the other absorbs and flushes. With none, callers do that work.
    pub fn new(threads: usize) -> Self {
        Self { started: std::time::Instant::now(), threads }
    }
}

impl Environment for SystemEnvironment {
    fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one `timespec`, which lives for the length of the call.
        let known = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) } == 0;
        if !known {
            return SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        }
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn random(&self) -> u64 {
        let mut bytes = [0u8; 8];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_ne_bytes(bytes),
            // A filter of system calls refuses it.
            _ => unused_number(),
        }
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle> {
        let body = move || {
            let _listed = Listed::new();
            step_back();
            body();
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(JoinHandle(Some(thread)))
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A number that this process has not had before, and others hardly have.
fn unused_number() -> u64 {
    static BEGIN: OnceLock<u64> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    /// Odd, so its multiples differ in every number of low bits.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let begin = BEGIN.get_or_init(|| {
        let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        // Where the system places this differs from process to process.
        nanoseconds ^ (&raw const CALLS).addr().rotate_left(20) as u64
    });
    let process = u64::from(std::process::id()) << 32;
    begin.wrapping_add(process).wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(STEP))
}

/// The background threads of this process.
static BACKGROUND: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Calls `each` with the number (`gettid(2)`) of every background thread of this process: those
/// that a [`SystemEnvironment`] started. None of them ends meanwhile.
pub fn each_background_thread(each: &mut dyn FnMut(i32)) {
    BACKGROUND.lock().iter().for_each(|thread| each(*thread));
}

/// The calling thread is a background thread until this is dropped.
struct Listed(i32);

impl Listed {
    fn new() -> Self {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        BACKGROUND.lock().push(thread);
        Self(thread)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        BACKGROUND.lock().retain(|thread| *thread != self.0);
    }
}

/// The time slice of background threads, in nanoseconds; that of others is about 3 ms.
const BACKGROUND_SLICE_NANOSECONDS: u64 = 20_000_000;

/// Gives the calling thread a long time slice. It gets as much of a CPU as before, but in longer
/// pieces and later: a thread that wakes up on its CPU and has a shorter slice runs at once. Linux
/// before 6.12 has one slice for all and takes no notice; a refusal costs nothing else.
fn step_back() {
    const SCHED_ATTR_BYTES: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: integers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `SCHED_ATTR_BYTES` bytes to where `attributes` lives for
    // the length of the call.
    let known =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SCHED_ATTR_BYTES, 0) } == 0;
    let fair = attributes.sched_policy == libc::SCHED_OTHER as u32;
    if known && fair {
        attributes.size = SCHED_ATTR_BYTES;
        attributes.sched_runtime = BACKGROUND_SLICE_NANOSECONDS;
        // SAFETY: the kernel only reads `attributes`, which lives for the length of the call.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::mpsc;

    #[test]
    fn numbers_differ_where_the_system_has_no_random_ones() {
        let numbers: HashSet<u64> = (0..100_000).map(|_| unused_number() << 1).collect();
        assert_eq!(numbers.len(), 100_000);
    }

    #[test]
    fn background_threads_are_known_while_they_live() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let body = move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("the test waits");
            // Until the other end is dropped.
            let _ = ended.recv();
        };
        let thread = SystemEnvironment::new(1).spawn("test", Box::new(body)).expect("a thread");
        let number = told.recv().expect("the thread tells");
        let is_known = || {
            let mut known = false;
            each_background_thread(&mut |thread| known |= thread == number);
            known
        };
        assert!(is_known());
        drop(end);
        thread.join();
        assert!(!is_known());
    }
}
