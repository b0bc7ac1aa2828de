//! The trees that are worked on: every file with its content, the directories, and how the work is
//! shared out.

use crate::steps::Random;
use anyhow::{Context, Result};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Files of one directory of the tree of equal files.
const PER_DIRECTORY: usize = 500;
/// Directories at its top, so that many clients can share them.
const TOPS: usize = 32;
/// Bytes of each of its files.
const FILE_BYTES: usize = 4096;
/// Bytes from which their content is cut: more than a compressor looks back.
const NOISE_BYTES: usize = 16 << 20;

/// A file or symbolic link.
pub(super) struct WorkFile {
    /// Its path below the top.
    pub(super) path: String,
    pub(super) mode: u32,
    is_symlink: bool,
    /// Its content; of an equal file where it begins in the noise.
    content: Content,
}

enum Content {
    Own(Vec<u8>),
    Noise(usize),
}

/// A tree.
pub(super) struct Work {
    /// `files` or `tree`.
    pub(super) name: &'static str,
    /// In the order of their paths.
    pub(super) files: Vec<WorkFile>,
    /// Parents first.
    pub(super) directories: Vec<String>,
    /// Directories that clients share when they list or remove; not one below another.
    shares: Vec<String>,
    /// Entries below them.
    entries_shared: usize,
    /// Bytes of all regular files.
    pub(super) bytes: u64,
    noise: Vec<u8>,
}

impl Work {
    /// So many files of 4 KiB, whose content cannot be compressed.
    pub(super) fn files(count: usize) -> Self {
        let mut noise = vec![0; NOISE_BYTES];
        Random(7).fill(&mut noise);
        let per_top = count.div_ceil(TOPS).max(1);
        let of = |number: usize| {
            let (top, rest) = (number / per_top, number % per_top);
            let path = format!("d{top:02}/e{:04}/f{:04}", rest / PER_DIRECTORY, rest % PER_DIRECTORY);
            let at = number * 69_061 % (NOISE_BYTES - FILE_BYTES);
            WorkFile { path, mode: 0o644, is_symlink: false, content: Content::Noise(at) }
        };
        Self::of("files", (0..count).map(of).collect(), Vec::new(), noise)
    }

    /// What lies in a directory.
    pub(super) fn tree(top: &Path) -> Result<Self> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        let mut left = vec![top.to_path_buf()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
                let entry = entry?;
                let (path, info) = (entry.path(), entry.metadata()?);
                let below = path.strip_prefix(top)?.to_str().context("a name that is no text")?.to_owned();
                if info.is_dir() {
                    directories.push(below);
                    left.push(path);
                    continue;
                }
                let content = match info.is_symlink() {
                    true => fs::read_link(&path)?.as_os_str().as_bytes().to_vec(),
                    false => fs::read(&path)?,
                };
                let (mode, is_symlink) = (info.permissions().mode() & 0o7777, info.is_symlink());
                files.push(WorkFile { path: below, mode, is_symlink, content: Content::Own(content) });
            }
        }
        Ok(Self::of("tree", files, directories, Vec::new()))
    }

    fn of(name: &'static str, mut files: Vec<WorkFile>, empty_or_all: Vec<String>, noise: Vec<u8>) -> Self {
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let mut directories: BTreeSet<String> = empty_or_all.into_iter().collect();
        for file in &files {
            for (end, _) in file.path.match_indices('/') {
                if !directories.contains(&file.path[..end]) {
                    directories.insert(file.path[..end].to_owned());
                }
            }
        }
        let directories: Vec<String> = directories.into_iter().collect();
        let depth = |dir: &str| dir.matches('/').count();
        // The highest level that has enough of them.
        let deepest = directories.iter().map(|dir| depth(dir)).max().unwrap_or(0);
        let at = |level: usize| directories.iter().filter(move |dir| depth(dir) == level);
        let level = (0..deepest).find(|level| at(*level).count() >= TOPS / 2).unwrap_or(deepest);
        let shares: Vec<String> = at(level).cloned().collect();
        let paths = files.iter().map(|file| file.path.as_str());
        let entries_shared = below(paths.chain(directories.iter().map(String::as_str)), &shares);
        let mut work = Self { name, files, directories, shares, entries_shared, bytes: 0, noise };
        work.bytes = work.regular().map(|file| work.content(file).len() as u64).sum();
        work
    }

    /// The content of a file, or the target of a link.
    pub(super) fn content<'w>(&'w self, file: &'w WorkFile) -> &'w [u8] {
        match &file.content {
            Content::Own(content) => content,
            Content::Noise(at) => &self.noise[*at..*at + FILE_BYTES],
        }
    }

    /// The regular files.
    pub(super) fn regular(&self) -> impl Iterator<Item = &WorkFile> {
        self.files.iter().filter(|file| !file.is_symlink)
    }

    /// What clients list or remove: the top for one, else directories below it.
    pub(super) fn shares(&self, clients: usize) -> Vec<Cow<'_, str>> {
        match clients {
            0 | 1 => vec![".".into()],
            _ => self.shares.iter().map(|share| share.as_str().into()).collect(),
        }
    }

    /// How many entries lie below what so many clients list.
    pub(super) fn entries(&self, clients: usize) -> usize {
        if clients > 1 { self.entries_shared } else { self.files.len() + self.directories.len() }
    }
}

/// How many of `paths` lie below one of the sorted `shares`.
fn below<'p>(paths: impl Iterator<Item = &'p str>, shares: &[String]) -> usize {
    let is_below = |path: &&str| {
        let depth = shares.first().map_or(0, |share| share.matches('/').count() + 1);
        let end = path.match_indices('/').nth(depth.saturating_sub(1)).map(|(at, _)| at);
        end.is_some_and(|end| shares.binary_search_by(|share| share.as_str().cmp(&path[..end])).is_ok())
    };
    paths.filter(is_below).count()
}

impl WorkFile {
    pub(super) fn is_symlink(&self) -> bool {
        self.is_symlink
    }
}

/// The numbers below `count` in an order of chance, always the same.
pub(super) fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random(11);
    for at in (1..count).rev() {
        order.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    order
}
