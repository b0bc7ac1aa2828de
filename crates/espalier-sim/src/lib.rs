//! Models, workloads and crash simulation for Espalier's tests (unpublished).
//!
//! A seed names a list of [`Step`]s ([`Workload`]); a driver carries them out on a store and on a
//! [`Model`] of it and compares:
//!
//! - [`differential`]: every answer of the store is the model's answer, snapshots included;
//! - [`crash`]: what is found after a power cut is a prefix of the batches, at or after the last
//!   acknowledged sync, for a power cut at every change of the device, and for one during recovery;
//! - [`concurrent`]: what many threads see of each other is whole batches, in one order;
//! - [`fault`]: with failing, lying, rotting and full devices every answer is right or an error;
//! - [`soak`]: all of them, by name and seed.
//!
//! Steps are data, so that a failing list can be [minimized](minimize::minimize) and shown.

pub mod concurrent;
pub mod crash;
mod crash_device;
pub mod differential;
mod failure;
pub mod fault;
mod history;
mod journaled;
pub mod minimize;
mod model;
mod object;
mod setup;
pub mod soak;
mod walk;
mod workload;

pub use crash_device::CrashDevice;
pub use failure::{Failure, Outcome, catch};
pub use journaled::{JournaledPoint, SimulatedJournaledDevice};
pub use model::{Change, Model, ShortPrefix, VolumeStep, merge_functions};
pub use object::SimulatedObjectDevice;
pub use setup::{Bench, Setup};
pub use walk::{Move, Reference};
pub use workload::{Profile, Step, Workload};

/// The seeds of a test run: those of `ESPALIER_SEED` (separated by commas) if it is set, or
/// `regressions` and `count` others, the same in every run.
///
/// # Panics
/// If `ESPALIER_SEED` is set to something that is no list of numbers.
pub fn seeds(regressions: &[u64], count: u64) -> Vec<u64> {
    match std::env::var("ESPALIER_SEED") {
        Ok(list) => list.split(',').map(|s| s.trim().parse().expect("ESPALIER_SEED holds numbers")).collect(),
        Err(_) => regressions.iter().copied().chain(1..=count).collect(),
    }
}

/// How many steps to take: `ESPALIER_STEPS` if it is set, or `otherwise`.
///
/// # Panics
/// If `ESPALIER_STEPS` is set to something that is no number.
pub fn steps(otherwise: usize) -> usize {
    match std::env::var("ESPALIER_STEPS") {
        Ok(number) => number.parse().expect("ESPALIER_STEPS holds a number"),
        Err(_) => otherwise,
    }
}
