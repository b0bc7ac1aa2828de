//! What a part works with, and how its work is timed.

use super::figures::{Figures, What};
use super::work::Work;
use crate::contender::Contender;
use crate::options::Options;
use crate::system;
use crate::system::make_durable;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Instant;

/// What a part works with: a contender that is freshly made and not mounted.
pub(super) struct Bench<'a> {
    pub(super) contender: &'a mut Contender,
    pub(super) options: &'a Options,
    pub(super) works: &'a [Work; 2],
    /// The source tree as an archive.
    pub(super) archive: &'a Path,
    pub(super) figures: &'a mut Figures,
}

impl Bench<'_> {
    /// Tells a figure in a column of the table.
    pub(super) fn tell(&mut self, column: &str, what: &What, value: f64) {
        println!("         {column:<12} {:<36} {value:>12.3}", what.title());
        self.figures.add(column, what, value);
    }

    /// Does work on the mounted contender and tells how many seconds it took.
    pub(super) fn time(
        &mut self,
        column: &str,
        what: &What,
        work: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let top = self.contender.dir.clone();
        let started = Instant::now();
        work(&top).with_context(|| what.title())?;
        let seconds = started.elapsed().as_secs_f64();
        self.tell(column, what, seconds);
        Ok(())
    }

    /// The same for work that changes something: it ends when everything is durable.
    pub(super) fn time_change(
        &mut self,
        column: &str,
        what: &What,
        work: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        self.time(column, what, |top| {
            work(top)?;
            make_durable(top)
        })
    }

    /// A fresh mount with dropped caches.
    pub(super) fn mount_cold(&mut self) -> Result<()> {
        if system::is_mounted(&self.contender.dir) {
            self.contender.unmount()?;
        }
        system::drop_caches()?;
        system::touch_memory(self.options.touch)?;
        self.contender.mount()?;
        Ok(())
    }
}

/// Shares work out to threads: `work` gets the number of its thread. The first error counts.
pub(super) fn by_clients(clients: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || work(number))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client of the benchmark panicked")))
        });
        ended.fold(Ok(()), Result::and)
    })
}
