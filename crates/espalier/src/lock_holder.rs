//! The process that holds the lock of an image, found in the kernel's table of file locks.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    process: i32,
    /// The name of its program, if the kernel tells it.
    program: Option<String>,
}

impl LockHolder {
    /// Its number.
    pub(crate) fn process(&self) -> i32 {
        self.process
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(program) => write!(f, "process {} ({program})", self.process),
            None => write!(f, "process {}", self.process),
        }
    }
}

/// The holder of a lock of flock(2) on the file at `path`. `None`: the table does not tell, as in a
/// container whose process table lacks the holder.
pub(crate) fn of(path: &Path) -> Option<LockHolder> {
    let file = path.metadata().ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let process = find(&table, (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()), file.ino()))?;
    // A server that goes on in place of another one has the lock that this one took.
    if !Path::new(&format!("/proc/{process}")).exists() {
        return None;
    }
    let program = std::fs::read_to_string(format!("/proc/{process}/comm")).ok();
    Some(LockHolder { process, program: program.map(|name| name.trim_end().to_owned()) })
}

/// Looks a file up, by major and minor number and inode, in a table of proc(5) `/proc/locks`. Its
/// lines are `1: FLOCK ADVISORY WRITE 809 fe:00:7341 0 EOF`; requests that wait have `->` behind
/// the number.
fn find(table: &str, (major, minor, inode): (u32, u32, u64)) -> Option<i32> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        (fields.next()? == "FLOCK").then_some(())?;
        let process = fields.nth(2)?.parse().ok().filter(|&process| process > 0)?;
        (fields.next()? == wanted).then_some(process)
    })
}

#[cfg(test)]
mod tests;
