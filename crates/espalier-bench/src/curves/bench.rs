//! What a scenario works with: a mounted contender, how much to do, and where the points go.

use super::report::Curves;
use crate::contender::Contender;
use crate::options::Options;
use crate::random::Random;
use crate::steps::Setting;
use crate::system;
use crate::system::make_durable;
use anyhow::Result;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What a scenario works with.
pub(super) struct Bench<'a> {
    pub(super) contender: &'a mut Contender,
    pub(super) options: &'a Options,
    pub(super) setting: &'a Setting,
    pub(super) curves: &'a mut Curves,
}

impl Bench<'_> {
    /// The root of the file system.
    pub(super) fn root(&self) -> PathBuf {
        self.contender.dir.clone()
    }

    /// A number of things, divided by the scale.
    pub(super) fn count(&self, full: u64) -> u64 {
        (full / self.options.scale.max(1) as u64).max(8)
    }

    /// Adds a point of this contender to a curve.
    pub(super) fn point(&mut self, curve: &'static str, x: f64, y: f64) {
        println!("         {:<12} {curve:<20} {x:>12.1} {y:>14.3}", self.contender.name);
        self.curves.add(curve, &self.contender.name, x, y);
    }

    /// Makes everything durable.
    pub(super) fn settle(&self) -> Result<()> {
        make_durable(&self.root())
    }

    /// A fresh file system, mounted.
    pub(super) fn renew(&mut self) -> Result<()> {
        self.contender.unmount()?;
        self.contender.make()?;
        self.contender.mount()?;
        system::drop_caches()
    }

    /// Does `operations` operations on some threads until they are durable; the result is how many
    /// there were in a second. An operation gets the number of its thread and that thread's source
    /// of numbers.
    pub(super) fn rate<O>(&self, threads: u64, operations: u64, operation: O) -> Result<f64>
    where
        O: Fn(u64, &mut Random) -> Result<()> + Sync,
    {
        let started = Instant::now();
        let left = AtomicU64::new(operations);
        let one = |thread: u64| -> Result<()> {
            let mut random = Random(thread + 1);
            let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            while take().is_ok() {
                operation(thread, &mut random)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn({
                        let one = &one;
                        move || one(thread)
                    })
                })
                .collect();
            running.into_iter().try_for_each(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        self.settle()?;
        Ok(operations as f64 / started.elapsed().as_secs_f64())
    }
}
