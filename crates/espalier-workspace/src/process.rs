//! One process.

/// A process that works in a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// The name of its program.
    pub command: String,
}
