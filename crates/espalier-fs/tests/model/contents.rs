//! Calls on the contents of files.

use crate::run::Run;
use espalier_fs::{Fallocate, FileFlags, FileKind, Seek, SetAttr};

impl Run {
    /// An offset where something may happen: near the boundaries of blocks.
    pub(crate) fn offset(&mut self) -> usize {
        let block = self.random.below(6) * 4096;
        match self.random.below(3) {
            0 => block,
            1 => (block + self.random.below(30)).saturating_sub(15),
            _ => block + self.random.below(4096),
        }
    }

    pub(crate) fn len(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.below(20),
            1 => 4096,
            2 => self.random.below(4096),
            _ => self.random.below(4) * 4096 + self.random.below(3),
        }
    }

    pub(crate) fn write(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len, kill) = (self.offset(), self.len(), self.random.chance(2));
        let offset = if self.random.chance(3) { self.tree.objects[id].data.len() } else { offset };
        if offset > 60_000 {
            return self.resize();
        }
        let byte = self.random.next() as u8;
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
        self.last = format!("write {len} bytes at {offset} of {id}");
        let expected = self.tree.write(id, offset, &data, kill);
        let got = self.ask(|fs| fs.write(node, offset as u64, &data, kill));
        let object = &self.tree.objects[id];
        if got.is_ok() && object.flags.has(FileFlags::SYNC) && object.names > 0 {
            self.synced = Some(Some(id));
        }
        self.same("write", got, expected);
    }

    pub(crate) fn read(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len) = (self.offset(), self.len());
        self.last = format!("read {len} bytes at {offset} of {id}");
        let expected = self.tree.read(id, offset, len);
        let mut out = vec![0xee; len];
        let got = self.fs.read(node, offset as u64, &mut out).map(|len| out[..len].to_vec());
        self.same("read", got, expected);
    }

    pub(crate) fn resize(&mut self) {
        let (id, node) = self.a_file();
        let size = if self.random.chance(4) { 0 } else { self.offset() as u64 };
        self.set(id, node, &SetAttr { size: Some(size), ..Default::default() });
    }

    pub(crate) fn fallocate(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len) = (self.offset(), self.len());
        let what = *self.random.pick(&[
            Fallocate::Allocate { keep_size: true },
            Fallocate::Allocate { keep_size: false },
            Fallocate::PunchHole,
            Fallocate::PunchHole,
            Fallocate::ZeroRange { keep_size: true },
            Fallocate::ZeroRange { keep_size: false },
        ]);
        self.last = format!("{what:?} {len} bytes at {offset} of {id}");
        let expected = self.tree.fallocate(id, offset, len, what);
        let got = self.ask(|fs| fs.fallocate(node, offset as u64, len as u64, what, false));
        self.same("fallocate", got, expected);
    }

    pub(crate) fn copy(&mut self) {
        let ((from, from_node), (to, to_node)) = (self.a_file(), self.a_file());
        let (from_offset, to_offset, len) = (self.offset(), self.offset(), self.len());
        let overlap = from == to && from_offset < to_offset + len && to_offset < from_offset + len;
        self.last = format!("copy {len} bytes from {from_offset} of {from} to {to_offset} of {to}");
        let expected = if overlap {
            Err(espalier_fs::FsErrorKind::Invalid)
        } else if len == 0 {
            Ok(0)
        } else {
            let data = self.tree.read(from, from_offset, len);
            data.and_then(
                |data| if data.is_empty() { Ok(0) } else { self.tree.write(to, to_offset, &data, false) },
            )
        };
        let args = (from_offset as u64, to_offset as u64, len as u64);
        let got = self.ask(|fs| fs.copy_file_range(from_node, args.0, to_node, args.1, args.2, false));
        self.same("copy_file_range", got, expected.map(|n| n as u64));
    }

    pub(crate) fn seek(&mut self) {
        let (id, node) = self.a_file();
        let offset = self.offset();
        self.last = format!("seek from {offset} in {id}");
        let data = &self.tree.objects[id].data;
        if self.tree.objects[id].kind != FileKind::Regular {
            return;
        }
        let tail = data.get(offset..).unwrap_or_default();
        match self.fs.lseek(node, offset as u64, Seek::Data) {
            Ok(found) => {
                let found = found as usize;
                assert!(found >= offset && found < data.len(), "seed {}: data at {found}", self.seed);
                assert!(data[offset..found].iter().all(|b| *b == 0), "seed {}: data skipped", self.seed);
            }
            Err(_) => {
                assert!(tail.iter().all(|b| *b == 0), "seed {}, step {}: data denied", self.seed, self.step)
            }
        }
        match self.fs.lseek(node, offset as u64, Seek::Hole) {
            Ok(found) => {
                let found = found as usize;
                assert!(found >= offset && found <= data.len(), "seed {}: hole at {found}", self.seed);
                let end = ((found / 4096 + 1) * 4096).min(data.len());
                assert!(
                    data[found..end].iter().all(|b| *b == 0),
                    "seed {}, step {}: no hole",
                    self.seed,
                    self.step
                );
            }
            Err(_) => assert!(tail.is_empty(), "seed {}: every file ends in a hole", self.seed),
        }
    }
}
