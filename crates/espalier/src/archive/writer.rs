//! The writer of archives: a sink of items.

use super::pax;
use super::{BLOCK_BYTES, NANOSECONDS, acl_text, numbers, sparse};
use crate::files::transfer::{Item, ItemKind, ItemSink, Report};
use crate::files::tree::{Attributes, Data, split};
use anyhow::{Context, Result};
use espalier_fs::NewNode;
use std::io::Write;
use std::ops::Range;

/// Archives are written in records of so many bytes, as tar does.
const RECORD_BYTES: u64 = 20 * BLOCK_BYTES as u64;
/// Zeros that are written at a time, in bytes.
const ZEROS_BYTES: usize = 64 << 10;
/// How well zstd compresses: its default.
const COMPRESSION_LEVEL: i32 = 3;

/// An archive that is being written.
pub(crate) struct ArchiveSink<'w> {
    output: Output<'w>,
    written: u64,
}

enum Output<'w> {
    Plain(Box<dyn Write + 'w>),
    Zstd(zstd::stream::write::Encoder<'w, Box<dyn Write + 'w>>),
}

/// The header of a member, and the records in front of it.
struct Header {
    bytes: [u8; BLOCK_BYTES],
    records: Vec<u8>,
}

impl<'w> ArchiveSink<'w> {
    /// An archive that is written to `output`, compressed or not.
    ///
    /// # Errors
    /// If the compressor cannot be made.
    pub(crate) fn new(output: Box<dyn Write + 'w>, is_compressed: bool) -> Result<Self> {
        let output = match is_compressed {
            true => {
                let mut encoder = zstd::stream::write::Encoder::new(output, COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                Output::Zstd(encoder)
            }
            false => Output::Plain(output),
        };
        Ok(Self { output, written: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.output {
            Output::Plain(output) => output.write_all(bytes),
            Output::Zstd(output) => output.write_all(bytes),
        };
        written.context("the archive cannot be written")?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn write_zeros(&mut self, mut count: u64) -> Result<()> {
        let zeros = [0; ZEROS_BYTES];
        while count > 0 {
            let length = count.min(zeros.len() as u64);
            self.write(&zeros[..length as usize])?;
            count -= length;
        }
        Ok(())
    }

    fn write_header(&mut self, header: &mut Header, path: &[u8]) -> Result<()> {
        if !header.records.is_empty() {
            let (_, name) = split(path);
            let mut extension = Header::new(&[b"PaxHeaders/", name].concat(), b'x');
            extension.records.clear();
            extension.put_number(124..136, b"size", header.records.len() as u64);
            extension.put_number(100..108, b"mode", 0o644);
            self.write(extension.finish())?;
            self.write(&header.records)?;
            self.pad()?;
        }
        self.write(header.finish())
    }

    /// Ends a block.
    fn pad(&mut self) -> Result<()> {
        let rest = self.written.next_multiple_of(BLOCK_BYTES as u64) - self.written;
        self.write_zeros(rest)
    }

    fn put_regular(
        &mut self,
        (path, attributes): (&[u8], &Attributes),
        (size, extents): (u64, &[Range<u64>]),
        data: &mut dyn Data,
        report: &mut Report,
    ) -> Result<()> {
        let bytes: u64 = extents.iter().map(|extent| extent.end - extent.start).sum();
        let (mut header, map) = if bytes == size {
            (Header::new(path, b'0'), Vec::new())
        } else {
            let (_, name) = split(path);
            let mut header = Header::new(&[b"GNUSparseFile.0/", name].concat(), b'0');
            for (name, value) in [("major", &b"1"[..]), ("minor", b"0"), ("name", path)] {
                pax::push(&mut header.records, format!("GNU.sparse.{name}").as_bytes(), value);
            }
            pax::push(&mut header.records, b"GNU.sparse.realsize", size.to_string().as_bytes());
            (header, sparse::text(size, extents))
        };
        header.put_number(124..136, b"size", map.len() as u64 + bytes);
        header.put_attributes(attributes);
        self.write_header(&mut header, path)?;
        self.write(&map)?;
        let mut left = bytes;
        let mut buffer = Vec::new();
        loop {
            match data.next(&mut buffer) {
                Ok(Some(_)) => {
                    let length = left.min(buffer.len() as u64);
                    self.write(&buffer[..length as usize])?;
                    left -= length;
                }
                Ok(None) => break,
                Err(error) => {
                    // Its length is written already.
                    report.complain(path, error);
                    break;
                }
            }
        }
        self.write_zeros(left)?;
        self.pad()
    }
}

impl ItemSink for ArchiveSink<'_> {
    fn put(&mut self, item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()> {
        let Item { path, kind, attributes } = item;
        let directory = || if path.is_empty() { b"./".to_vec() } else { [&path[..], b"/"].concat() };
        let mut header = match &kind {
            ItemKind::Regular(size, extents) => {
                report.count(*size);
                return self.put_regular((&path, &attributes), (*size, extents), data, report);
            }
            ItemKind::Node(NewNode::Socket) => {
                report.note(&path, "archives have no sockets; it is left out");
                return Ok(());
            }
            ItemKind::Directory => Header::new(&directory(), b'5'),
            ItemKind::HardLink(first) => Header::with_link(&path, b'1', first),
            ItemKind::Symlink(target) => Header::with_link(&path, b'2', target),
            ItemKind::Node(NewNode::CharDevice(rdev)) => Header::of_device(&path, b'3', *rdev),
            ItemKind::Node(NewNode::BlockDevice(rdev)) => Header::of_device(&path, b'4', *rdev),
            ItemKind::Node(NewNode::Fifo) => Header::new(&path, b'6'),
            ItemKind::Node(NewNode::Regular) => Header::new(&path, b'0'),
        };
        report.count(0);
        header.put_attributes(&attributes);
        self.write_header(&mut header, &path)
    }

    fn finish(&mut self, _: &mut Report) -> Result<()> {
        self.write_zeros(2 * BLOCK_BYTES as u64)?;
        self.write_zeros(self.written.next_multiple_of(RECORD_BYTES) - self.written)?;
        let finished = match &mut self.output {
            Output::Plain(output) => output.flush(),
            Output::Zstd(output) => output.do_finish().and_then(|()| output.get_mut().flush()),
        };
        finished.context("the archive cannot be written")
    }
}

impl Header {
    fn new(path: &[u8], kind: u8) -> Self {
        let mut header = Self { bytes: [0; BLOCK_BYTES], records: Vec::new() };
        header.bytes[156] = kind;
        header.bytes[257..265].copy_from_slice(b"ustar\x0000");
        for (field, width) in [(100, 8), (108, 8), (116, 8), (124, 12), (136, 12), (329, 8), (337, 8)] {
            // Zero always fits.
            let _ = numbers::put(&mut header.bytes[field..field + width], 0);
        }
        header.put_text(0..100, b"path", path);
        header
    }

    fn with_link(path: &[u8], kind: u8, target: &[u8]) -> Self {
        let mut header = Self::new(path, kind);
        header.put_text(157..257, b"linkpath", target);
        header
    }

    fn of_device(path: &[u8], kind: u8, rdev: u64) -> Self {
        let mut header = Self::new(path, kind);
        header.put_number(329..337, b"SCHILY.devmajor", u64::from(rustix::fs::major(rdev)));
        header.put_number(337..345, b"SCHILY.devminor", u64::from(rustix::fs::minor(rdev)));
        header
    }

    /// Puts a text into a field; what is too long for it goes to a record.
    fn put_text(&mut self, field: Range<usize>, name: &[u8], text: &[u8]) {
        let length = text.len().min(field.len());
        self.bytes[field.start..field.start + length].copy_from_slice(&text[..length]);
        if length < text.len() {
            pax::push(&mut self.records, name, text);
        }
    }

    /// Puts a number into a field, or a record.
    fn put_number(&mut self, field: Range<usize>, name: &[u8], number: u64) {
        if numbers::put(&mut self.bytes[field], number).is_none() {
            pax::push(&mut self.records, name, number.to_string().as_bytes());
        }
    }

    fn put_attributes(&mut self, attributes: &Attributes) {
        self.put_number(100..108, b"mode", u64::from(attributes.mode));
        let (uid, gid) = attributes.owner.unwrap_or_default();
        self.put_number(108..116, b"uid", u64::from(uid));
        self.put_number(116..124, b"gid", u64::from(gid));
        if let Some(mtime) = attributes.mtime {
            let seconds = mtime.div_euclid(NANOSECONDS);
            let fits = u64::try_from(seconds)
                .ok()
                .and_then(|seconds| numbers::put(&mut self.bytes[136..148], seconds))
                .is_some();
            if !fits || mtime % NANOSECONDS != 0 {
                pax::push(&mut self.records, b"mtime", numbers::time_text(mtime).as_bytes());
            }
        }
        if let Some(atime) = attributes.atime.filter(|_| attributes.atime != attributes.mtime) {
            pax::push(&mut self.records, b"atime", numbers::time_text(atime).as_bytes());
        }
        for (name, value) in &attributes.xattrs {
            let list = name.strip_prefix(b"system.posix_acl_");
            match list.and_then(|kind| Some((kind, acl_text::text(value)?))) {
                Some((kind, text)) => {
                    pax::push(&mut self.records, &[b"SCHILY.acl.", kind].concat(), text.as_bytes());
                }
                None => pax::push(&mut self.records, &[b"SCHILY.xattr.", &name[..]].concat(), value),
            }
        }
    }

    /// The header with its checksum.
    fn finish(&mut self) -> &[u8] {
        self.bytes[148..156].fill(b' ');
        let sum: u64 = self.bytes.iter().map(|byte| u64::from(*byte)).sum();
        // 512 bytes of 255 have fewer digits.
        let _ = numbers::put(&mut self.bytes[148..155], sum);
        &self.bytes
    }
}
