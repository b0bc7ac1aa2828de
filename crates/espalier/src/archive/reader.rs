//! The reader of archives: from blocks to items.

use super::pax::{self, Records};
use super::sparse::{self, SparseMap};
use super::{BLOCK_BYTES, MAX_EXTENSION_BYTES, MAX_WAITING_BYTES, NANOSECONDS, acl_text, numbers};
use crate::files::transfer::{Item, ItemKind, ItemSink, NoData, Report};
use crate::files::tree::{Attributes, Data};
use crate::files::tree_sink::SourceFailed;
use crate::files::tree_source::PIECE_BYTES;
use anyhow::{Context, Result, bail, ensure};
use espalier_fs::NewNode;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

/// What archives begin with that were compressed, by what, and whether that is read here.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")];
/// So much behind the end of an archive is read, so that a pipe's writer can end.
const MAX_TRAILER_BYTES: u64 = 1 << 20;

/// Gives the members of an archive to a sink.
///
/// # Errors
/// If the archive is damaged or cut off: what precedes has been given. Of the sink.
pub(crate) fn give(input: &mut dyn Read, sink: &mut dyn ItemSink, report: &mut Report) -> Result<()> {
    let mut input = BufReader::with_capacity(PIECE_BYTES as usize, input);
    let begin = input.fill_buf().context("the archive cannot be read")?;
    let compression = COMPRESSED.iter().find(|(magic, _)| begin.starts_with(magic)).map(|(_, name)| *name);
    match compression {
        None => Reader::new(&mut input).give(sink, report),
        Some("zstd") => {
            let mut plain = zstd::stream::read::Decoder::with_buffer(input)?;
            Reader::new(&mut plain).give(sink, report)
        }
        Some(name) => bail!(
            "the archive is compressed with {name}, which is not read here; decompress it on the way: \
             {name} -dc ARCHIVE | espalier import - DST"
        ),
    }
}

struct Reader<'i> {
    input: &'i mut dyn Read,
    /// What is left of the member's data, and of its last block, in bytes.
    left: u64,
    padding: u64,
    /// Records for all members that follow.
    global: KeptRecords,
}

/// Records, and the memory that they take.
#[derive(Default)]
struct KeptRecords {
    all: Records,
    bytes: usize,
}

/// What stands before a header for it.
#[derive(Default)]
struct Extensions {
    records: KeptRecords,
    /// Pieces of a file with holes, which records of one name tell.
    pairs: Vec<(i64, i64)>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// What becomes of a header.
enum Found {
    Item(Item, Vec<Range<u64>>),
    /// It is none that is written, for this reason.
    Refused(Vec<u8>, anyhow::Error),
    /// It says nothing of a file.
    Nothing,
    End,
}

impl<'i> Reader<'i> {
    fn new(input: &'i mut dyn Read) -> Self {
        Self { input, left: 0, padding: 0, global: KeptRecords::default() }
    }

    fn give(mut self, sink: &mut dyn ItemSink, report: &mut Report) -> Result<()> {
        let mut extensions = Extensions::default();
        loop {
            match self.next(&mut extensions)? {
                Found::End => break,
                Found::Nothing => {}
                Found::Refused(path, error) => {
                    report.count(0);
                    report.complain(&path, error);
                }
                Found::Item(item, pieces) if matches!(item.kind, ItemKind::Regular(..)) => {
                    let mut data = MemberData { reader: &mut self, pieces: pieces.into_iter(), at: 0..0 };
                    sink.put(item, &mut data, report)?;
                }
                Found::Item(item, _) => sink.put(item, &mut NoData, report)?,
            }
            self.skip()?;
        }
        // An error here concerns nothing that was asked for.
        let _ = std::io::copy(&mut self.input.take(MAX_TRAILER_BYTES), &mut std::io::sink());
        Ok(())
    }

    /// Reads the next header.
    fn next(&mut self, extensions: &mut Extensions) -> Result<Found> {
        let header = self.block()?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(Found::End);
        }
        check_sum(&header)?;
        let size = numbers::parse(&header[124..136]).and_then(positive).context("a header is damaged")?;
        self.expect(size)?;
        match header[156] {
            b'x' | b'X' => {
                let bytes = self.extension(size)?;
                extensions.add(&bytes)?;
                self.check_waiting(extensions)
            }
            b'g' => {
                let bytes = self.extension(size)?;
                for (name, value) in pax::parse(&bytes)? {
                    self.global.put(name, value);
                }
                self.check_waiting(extensions)
            }
            b'L' => {
                extensions.name = Some(until_nul(&self.extension(size)?).to_vec());
                self.check_waiting(extensions)
            }
            b'K' => {
                extensions.link = Some(until_nul(&self.extension(size)?).to_vec());
                self.check_waiting(extensions)
            }
            // The label of the archive.
            b'V' => Ok(Found::Nothing),
            _ => self.member(&header, std::mem::take(extensions)),
        }
    }

    /// Refuses an archive that tells ever more of members that do not come.
    fn check_waiting(&self, extensions: &Extensions) -> Result<Found> {
        let bytes = self.global.bytes + extensions.bytes();
        ensure!(
            bytes <= MAX_WAITING_BYTES,
            "headers in a row tell {bytes} bytes of members to come; {MAX_WAITING_BYTES} are kept"
        );
        Ok(Found::Nothing)
    }

    /// The file that a header and what stands before it describe.
    fn member(&mut self, header: &[u8; BLOCK_BYTES], mut extensions: Extensions) -> Result<Found> {
        for (name, value) in &self.global.all {
            extensions.records.all.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let record = |name: &[u8]| extensions.records.all.get(name).map(Vec::as_slice);
        if let Some(size) = record(b"size") {
            self.expect(sparse::decimal(size).and_then(positive)?)?;
        }
        let header_name = header_path(header);
        let name = record(b"GNU.sparse.name").or(record(b"path")).or(extensions.name.as_deref());
        let name = name.unwrap_or(&header_name);
        let link = record(b"linkpath").or(extensions.link.as_deref());
        let link = link.unwrap_or(until_nul(&header[157..257]));
        let is_directory_name = name.ends_with(b"/");
        let path = clean(name);
        let kind = match header[156] {
            b'0' | b'\0' | b'7' if is_directory_name => ItemKind::Directory,
            b'0' | b'\0' | b'7' | b'S' => match self.map(header, &extensions)? {
                Some(map) => ItemKind::Regular(map.size, map.pieces),
                None if self.left == 0 => ItemKind::Regular(0, Vec::new()),
                None => ItemKind::Regular(self.left, std::iter::once(0..self.left).collect()),
            },
            b'1' => ItemKind::HardLink(clean(link)),
            b'2' => ItemKind::Symlink(link.to_vec()),
            b'3' | b'4' => {
                let number = |field: &[u8]| numbers::parse(field).and_then(|n| Ok(u32::try_from(n)?));
                let rdev = rustix::fs::makedev(number(&header[329..337])?, number(&header[337..345])?);
                ItemKind::Node(match header[156] {
                    b'3' => NewNode::CharDevice(rdev),
                    _ => NewNode::BlockDevice(rdev),
                })
            }
            b'5' | b'D' => ItemKind::Directory,
            b'6' => ItemKind::Node(NewNode::Fifo),
            kind => {
                let kind = char::from(kind).escape_default();
                let error = anyhow::anyhow!("members of kind '{kind}' are not known, and left out");
                return Ok(Found::Refused(path, error));
            }
        };
        let is_link = matches!(kind, ItemKind::Symlink(_));
        let attributes = match attributes(header, &extensions.records.all, is_link) {
            Ok(attributes) => attributes,
            Err(error) => return Ok(Found::Refused(path, error)),
        };
        let pieces = match &kind {
            ItemKind::Regular(_, pieces) => pieces.clone(),
            _ => Vec::new(),
        };
        Ok(Found::Item(Item { path, kind, attributes }, pieces))
    }

    /// The map of a file with holes.
    fn map(&mut self, header: &[u8; BLOCK_BYTES], extensions: &Extensions) -> Result<Option<SparseMap>> {
        let records = &extensions.records.all;
        let map = if header[156] == b'S' {
            Some(sparse::of_header(header, &mut || self.block())?)
        } else if records.get(&b"GNU.sparse.major"[..]).is_some_and(|major| major == b"1") {
            let size = records.get(&b"GNU.sparse.realsize"[..]).context("a file with holes has no size")?;
            let mut data = self.input.take(self.left);
            let (map, taken) = sparse::of_data(size, &mut data).context("a map of holes cannot be read")?;
            self.left -= taken;
            Some(map)
        } else {
            sparse::of_records(records, &extensions.pairs)?
        };
        if let Some(map) = &map {
            ensure!(map.bytes() == self.left, "a map of holes does not fit to its file");
        }
        Ok(map)
    }

    /// The data of the member has so many bytes.
    fn expect(&mut self, size: u64) -> Result<()> {
        let blocks = size.checked_next_multiple_of(BLOCK_BYTES as u64).context("a size is too large")?;
        (self.left, self.padding) = (size, blocks - size);
        Ok(())
    }

    fn block(&mut self) -> Result<[u8; BLOCK_BYTES]> {
        let mut block = [0; BLOCK_BYTES];
        self.fill(&mut block)?;
        Ok(block)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                SourceFailed("the archive is cut off: it ends without its end mark".into())
            }
            _ => SourceFailed(format!("the archive cannot be read: {error}")),
        })?;
        Ok(())
    }

    /// The data of a header that describes the next one.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>> {
        ensure!(size <= MAX_EXTENSION_BYTES, "a header of {size} bytes; {MAX_EXTENSION_BYTES} are read");
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.left = 0;
        Ok(bytes)
    }

    /// Passes over what is left of a member.
    fn skip(&mut self) -> Result<()> {
        let mut buffer = [0; 16 * BLOCK_BYTES];
        let mut left = self.left + self.padding;
        while left > 0 {
            let length = left.min(buffer.len() as u64);
            self.fill(&mut buffer[..length as usize])?;
            left -= length;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

impl Extensions {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let mut offset = None;
        for (name, value) in pax::parse(bytes)? {
            match name {
                b"GNU.sparse.offset" => offset = Some(sparse::decimal(value)?),
                b"GNU.sparse.numbytes" => {
                    let offset = offset.take().context("a map of holes is damaged")?;
                    self.pairs.push((offset, sparse::decimal(value)?));
                }
                _ => self.records.put(name, value),
            }
        }
        Ok(())
    }

    /// The memory that it takes.
    fn bytes(&self) -> usize {
        let paths = [&self.name, &self.link].map(|path| path.as_ref().map_or(0, Vec::len));
        self.records.bytes + self.pairs.len() * size_of::<(i64, i64)>() + paths.iter().sum::<usize>()
    }
}

impl KeptRecords {
    /// Later records replace earlier ones; one without a value takes them away.
    fn put(&mut self, name: &[u8], value: &[u8]) {
        let taken = |value: &[u8]| name.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>();
        // Of an extended attribute no value is a value.
        let replaced = if value.is_empty() && !name.starts_with(b"SCHILY.xattr.") {
            self.all.remove(name)
        } else {
            self.bytes += taken(value);
            self.all.insert(name.to_vec(), value.to_vec())
        };
        self.bytes -= replaced.map_or(0, |value| taken(&value));
    }
}

/// The data of a member.
struct MemberData<'r, 'i> {
    reader: &'r mut Reader<'i>,
    pieces: std::vec::IntoIter<Range<u64>>,
    at: Range<u64>,
}

impl Data for MemberData<'_, '_> {
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<u64>> {
        while self.at.is_empty() {
            match self.pieces.next() {
                Some(piece) => self.at = piece,
                None => return Ok(None),
            }
        }
        let offset = self.at.start;
        let length = (self.at.end - offset).min(PIECE_BYTES);
        buffer.resize(length as usize, 0);
        self.reader.fill(buffer)?;
        self.reader.left = self.reader.left.saturating_sub(length);
        self.at.start += length;
        Ok(Some(offset))
    }
}

fn check_sum(header: &[u8; BLOCK_BYTES]) -> Result<()> {
    let told = numbers::parse(&header[148..156]).ok();
    let sum = |at: usize, byte: u8| if (148..156).contains(&at) { i64::from(b' ') } else { i64::from(byte) };
    let found: i64 = header.iter().enumerate().map(|(at, byte)| sum(at, *byte)).sum();
    if told == Some(found) {
        return Ok(());
    }
    Err(SourceFailed("this is no tar archive, or it is damaged: the checksum of a header is wrong".into())
        .into())
}

fn attributes(header: &[u8; BLOCK_BYTES], records: &Records, is_link: bool) -> Result<Attributes> {
    let record = |name: &[u8]| records.get(name).map(Vec::as_slice);
    let id = |name: &[u8], field: &[u8]| -> Result<u32> {
        let number = record(name).map_or_else(|| numbers::parse(field), sparse::decimal)?;
        u32::try_from(number).ok().filter(|id| *id != u32::MAX).with_context(|| format!("{number} is no id"))
    };
    let owner = (id(b"uid", &header[108..116])?, id(b"gid", &header[116..124])?);
    let mtime = match record(b"mtime") {
        Some(text) => numbers::parse_time(text)?,
        None => numbers::parse(&header[136..148])?.saturating_mul(NANOSECONDS),
    };
    let atime = record(b"atime").map(numbers::parse_time).transpose()?.unwrap_or(mtime);
    let mut xattrs = Vec::new();
    for (name, value) in records {
        if let Some(name) = name.strip_prefix(b"SCHILY.xattr.") {
            xattrs.push((name.to_vec(), value.clone()));
        }
    }
    for (kind, name) in
        [("access", &b"system.posix_acl_access"[..]), ("default", b"system.posix_acl_default")]
    {
        if let Some(text) = record(format!("SCHILY.acl.{kind}").as_bytes()).filter(|_| !is_link) {
            xattrs.retain(|(other, _)| other != name);
            xattrs.push((name.to_vec(), acl_text::parse(text, &find_id)?));
        }
    }
    let mode = (numbers::parse(&header[100..108])? & 0o7777) as u32;
    Ok(Attributes { mode, owner: Some(owner), atime: Some(atime), mtime: Some(mtime), xattrs })
}

/// The number of a user or group of this machine.
fn find_id(name: &str, is_group: bool) -> Option<u32> {
    crate::change::find_id(name, Path::new(if is_group { "/etc/group" } else { "/etc/passwd" })).ok()
}

fn positive(number: i64) -> Result<u64> {
    u64::try_from(number).context("a size is negative")
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The path that stands in a header.
fn header_path(header: &[u8; BLOCK_BYTES]) -> Vec<u8> {
    let name = until_nul(&header[..100]);
    let prefix = until_nul(&header[345..500]);
    // GNU's headers have other things there.
    if &header[257..263] != b"ustar\0" || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// A path without what means nothing: `.`, and slashes at the end or in a row. One that is absolute
/// or has `..` stays as it is, and is refused by the sink.
fn clean(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") || path.is_empty() {
        return if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
    }
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    names.join(&b'/')
}

#[cfg(test)]
mod tests;
