//! What a part works with: a contender, the server, and where the figures go.

use super::contender::Contender;
use super::figures::Figures;
use super::processors::ProcessorTime;
use super::proxy::Traffic;
use super::server::Server;
use crate::options::Options;
use crate::steps::Setting;
use crate::system::Undo;
use anyhow::Result;
use std::time::Instant;

/// The contender whose figures are those of plain puts and gets.
pub(super) const PLAIN: &str = "plain";

/// What a part works with.
pub(super) struct Bench<'a, 's> {
    pub(super) contender: &'a mut Contender<'s>,
    pub(super) server: &'s Server,
    pub(super) setting: &'a Setting,
    pub(super) options: &'a Options,
    pub(super) undo: &'a Undo,
    pub(super) figures: &'a mut Figures,
    pub(super) delay_ms: u64,
    /// Processor time of what was measured last.
    pub(super) worked: ProcessorTime,
}

impl Bench<'_, '_> {
    pub(super) fn tell(&mut self, name: &str, value: f64) {
        self.figures.tell(&self.contender.name, self.delay_ms, name, value);
    }

    /// A file system without anything in it, mounted.
    pub(super) fn fresh(&mut self) -> Result<()> {
        self.contender.make(self.undo)?;
        self.contender.mount().map(drop)
    }

    /// Unmounts, and mounts with cold caches.
    pub(super) fn remount(&mut self) -> Result<()> {
        self.contender.unmount()?;
        self.contender.mount().map(drop)
    }

    /// Does something, and tells seconds, requests and bytes under its name; returns the seconds
    /// that it took, and the requests.
    pub(super) fn measure(
        &mut self,
        name: &str,
        work: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<(f64, Traffic)> {
        let before = self.server.proxy.traffic();
        let processors = ProcessorTime::now(self.server.process())?;
        let started = Instant::now();
        work(self)?;
        let seconds = started.elapsed().as_secs_f64();
        let traffic = self.server.proxy.traffic().since(&before);
        self.worked = ProcessorTime::now(self.server.process())?.since(&processors);
        self.tell(&format!("{name}_s"), seconds);
        self.tell(&format!("{name}_requests"), traffic.requests() as f64);
        self.tell(&format!("{name}_mib"), mib(traffic.bytes_put + traffic.bytes_got));
        Ok((seconds, traffic))
    }

    /// Tells a rate by that of plain gets or puts, if they were measured.
    pub(super) fn tell_rate(&mut self, name: &str, bytes: u64, seconds: f64, plain: &str) {
        let rate = mib(bytes) / seconds;
        self.tell(&format!("{name}_mib_s"), rate);
        if let Some(plain) = self.figures.median(PLAIN, self.delay_ms, plain) {
            self.tell(&format!("{name}_by_plain"), rate / plain);
        }
    }

    /// Tells the processor time for each MiB of what was measured last, by process, and what part
    /// of the rate of plain gets or puts a machine reaches at most whose processors are never
    /// idle: their processor time by this one.
    pub(super) fn tell_work(&mut self, name: &str, bytes: u64, plain: &str) {
        let ProcessorTime { client, server, all } = self.worked;
        let rest = (all - client - server).max(0.0);
        for (part, seconds) in [("all", all), ("client", client), ("server", server), ("rest", rest)] {
            self.tell(&format!("{name}_{part}_cpu_ms_mib"), seconds * 1e3 / mib(bytes));
        }
        if let Some(plain) = self.figures.median(PLAIN, self.delay_ms, plain) {
            self.tell(&format!("{name}_cpu_bound"), plain * mib(bytes) / (all * 1e3));
        }
    }
}

/// Bytes in MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}
