//! The same question about many workspaces: most of the time goes by in the mount's server, which
//! answers several callers at a time.

use crate::error::Result;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many threads ask at most.
const MAX_THREADS: usize = 8;

/// What `ask` gives for each of `items`, in their order.
///
/// # Errors
/// The first of those that `ask` gives; what follows it is not asked any more.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    if threads == 1 || items.len() < 2 {
        return items.iter().map(ask).collect();
    }
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, Result<R>)>> = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        let mut own = Vec::new();
        while let Some((number, item)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            items.get(number).map(|item| (number, item))
        } {
            let answer = ask(item);
            if answer.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            own.push((number, answer));
        }
        answers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).append(&mut own);
    };
    std::thread::scope(|scope| {
        // The caller is one of them; a thread that cannot be made is not needed.
        for _ in 1..threads.min(items.len()) {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut answers = answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests;
