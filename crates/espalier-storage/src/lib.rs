//! The seam between Espalier and the world: a small [`Device`] trait for storage and an
//! [`Environment`] for time, randomness and threads.
//!
//! Protocol: everything above performs all its I/O through one [`Device`] and asks one
//! [`Environment`] for everything that is not a pure function of its input, so that a seeded
//! simulation can drive crashes, torn writes, errors and a full disk, and replay them.
//!
//! Invariants:
//! - every offset, length and buffer address is a multiple of [`BLOCK`] (asserted by each device);
//! - a write is durable once a later [`Device::sync`] has returned, and not before;
//! - writes between two syncs may reach the medium in any order, or torn at 512-byte sectors.

mod aligned;
mod counting;
mod device;
mod environment;
mod error;
mod file;
mod gate;
mod memory;
mod overlay;
mod pool;
mod random;
mod request;
mod simulated;

pub use aligned::AlignedBuf;
pub use counting::{CountingDevice, Counts, RequestCount, SIZE_CLASSES};
pub use device::{BLOCK, Device};
pub use environment::{Environment, JoinHandle, SystemEnvironment, each_background_thread};
pub use error::{Error, ErrorKind, Operation, Result};
pub use file::{Existing, FileDevice, FileOptions, OpenMode};
pub use gate::GatedDevice;
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use pool::{BufferPool, PooledBuf};
pub use random::Random;
pub use request::{check_discard, check_read, check_write};
pub use simulated::{
    CrashPoint, Fault, FaultCounts, Image, OperationCounts, SECTOR, SimulatedDevice, SimulatedEnvironment,
};
