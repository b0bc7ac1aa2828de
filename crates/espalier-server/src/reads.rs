//! Calls that change nothing.

use crate::attributes::stat_of;
use crate::failure::{Failure, Outcome};
use espalier_client::wire::{Piece, ReadItem, Stat, Writer, longest_read};
use espalier_fs::{At, Links, PathCaller, ReadRequest};

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

/// As many parts of files as an answer of `room` bytes has room for, and at least one of them.
pub(crate) fn read(caller: &PathCaller, pieces: &[Piece<'_>], room: usize) -> Outcome<Vec<u8>> {
    let longest = longest_read(room as u32);
    let requests: Vec<ReadRequest<'_>> = pieces.iter().map(|piece| as_request(*piece, longest)).collect();
    let mut out = Writer::default();
    caller.read_many(&requests, &mut |index, data| {
        let failure = data.as_ref().err().map(|error| Failure::from(error.clone()));
        let (errno, data) = match (&failure, data) {
            (Some(failure), _) => (failure.errno.cast_unsigned(), failure.shown()),
            (None, data) => (0, data.unwrap_or_default()),
        };
        // What does not fit is asked for again, and is in the cache then.
        if out.0.len() + ReadItem::HEAD_BYTES + data.len() > room {
            return false;
        }
        ReadItem { index: index as u32, errno, data }.encode(&mut out);
        true
    });
    Ok(out.0)
}

/// A part, as far as one answer reaches.
fn as_request(piece: Piece<'_>, longest: u64) -> ReadRequest<'_> {
    let end = piece.offset.saturating_add(piece.length.min(longest));
    ReadRequest { at: At::from(piece.path), range: Some(piece.offset..end) }
}

/// The target of a symbolic link.
pub(crate) fn read_link(caller: &PathCaller, path: &[u8]) -> Outcome<Vec<u8>> {
    Ok(caller.read_link(path)?)
}
