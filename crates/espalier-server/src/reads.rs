//! Calls that change nothing.

use crate::failure::{Failure, Outcome};
use espalier_bridge::stat_of;
use espalier_client::wire::{Stat, Writer};
use espalier_fs::{At, Links, PathCaller};

/// The attributes of many files; `room` is how many bytes the answer may have.
pub(crate) fn stat(caller: &PathCaller, follow: bool, paths: &[&[u8]], room: usize) -> Outcome<Vec<u8>> {
    if paths.len() * (Stat::BYTES + 4) > room {
        return Err(Failure::new(libc::E2BIG, "more files than an answer has room for"));
    }
    let links = if follow { Links::Follow } else { Links::Stay };
    let paths: Vec<At<'_>> = paths.iter().map(|path| At::from(*path)).collect();
    let mut out = Writer::default();
    for result in caller.stat_many(&paths, links) {
        match result {
            Ok(attr) => {
                out.u32(0);
                stat_of(&attr).encode(&mut out);
            }
            Err(error) => out.u32(Failure::from(error).errno.cast_unsigned()),
        }
    }
    Ok(out.0)
}

/// The target of a symbolic link.
pub(crate) fn read_link(caller: &PathCaller, path: &[u8]) -> Outcome<Vec<u8>> {
    Ok(caller.read_link(path)?)
}
