//! The tree that workspaces are made of: a source tree in git, with what its tools have fetched and
//! built, and hard links as they make them. The names and contents are the same in every run.

use crate::options::Options;
use crate::random::Random;
use crate::system;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the archive that workspaces are made of.
pub(super) const BASE: &str = "base";
/// The directory of the archive to which a package manager has linked files.
pub(super) const CACHE: &str = "cache";

/// Of a hundred entries so many are sources, packages of node and of Python; the rest was built.
const SOURCE_SHARE: usize = 42;
const NODE_SHARE: usize = 33;
const PYTHON_SHARE: usize = 15;

const FILES_OF_DIR: usize = 16;
const FILES_OF_PACKAGE: usize = 12;
/// Each so many results of the build have a second name.
const LINKED_RESULTS: usize = 20;
const WORDS: [&str; 24] = [
    "static ", "int ", "return ", "if (", ") {\n", "}\n", "self.", "const ", "let ", "= ", "+ 1;\n", "for ",
    "while (", "None", "import ", "value", "index", "length", "buffer", "error", "result ", "(void)",
    "0x7f ", "\n",
];

/// Makes the archive in the working directory, unless it is there.
pub(super) fn prepare(options: &Options) -> Result<PathBuf> {
    let archive = options.dir.join(format!("workspace-{}.tar", options.entries));
    if archive.exists() {
        return Ok(archive);
    }
    println!("making a tree of {} entries once", options.entries);
    let dir = std::path::absolute(options.dir.join("workspace-tree"))?;
    remove(&dir)?;
    std::fs::create_dir_all(&dir)?;
    Maker::new(&dir).all(options.entries).context("the tree cannot be made")?;
    commit(&dir.join(BASE))?;
    let partial = archive.with_extension("partial");
    let order = ["--sort=name", "--mtime=@1750000000", "--owner=0", "--group=0", "-cf"].map(OsStr::new);
    let what = [OsStr::new("-C"), dir.as_os_str(), OsStr::new(BASE), OsStr::new(CACHE)];
    system::run("tar", &[&order[..], &[partial.as_os_str()], &what[..]].concat())?;
    std::fs::rename(partial, &archive)?;
    remove(&dir)?;
    Ok(archive)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Puts what is not ignored into one commit and one pack.
fn commit(base: &Path) -> Result<()> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(base).args(arguments).env("HOME", base).env("GIT_CONFIG_NOSYSTEM", "1");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_DATE"), "1750000000 +0000");
        }
        system::output(&mut command).map(drop)
    };
    git(&["init", "-q", "-b", "main"])?;
    git(&["config", "user.name", "bench"])?;
    git(&["config", "user.email", "bench@example.org"])?;
    // So large files go into one pack at once, and not into a file each.
    git(&["-c", "core.bigFileThreshold=1", "add", "-A"])?;
    git(&["commit", "-q", "-m", "everything"])?;
    git(&["repack", "-a", "-d", "-q"])?;
    git(&["prune-packed", "-q"])
}

/// Makes files with random text.
struct Maker {
    top: PathBuf,
    random: Random,
    text: String,
}

impl Maker {
    fn new(top: &Path) -> Self {
        Self { top: top.to_owned(), random: Random(0x9e37_79b9), text: String::new() }
    }

    fn all(&mut self, entries: usize) -> Result<()> {
        let share = |percent: usize| (entries * percent / 100).max(1);
        let built = 100 - SOURCE_SHARE - NODE_SHARE - PYTHON_SHARE;
        self.sources(share(SOURCE_SHARE))?;
        self.node_modules(share(NODE_SHARE))?;
        self.site_packages(share(PYTHON_SHARE))?;
        self.target(share(built))
    }

    /// A file of a random length around `mean` bytes.
    fn file(&mut self, path: &Path, mean: u64) -> Result<()> {
        let length = (mean / 4 + self.random.next() % (mean * 3 / 2)) as usize;
        self.text.clear();
        while self.text.len() < length {
            let mut bits = self.random.next();
            for _ in 0..8 {
                self.text.push_str(WORDS[(bits & 0xff) as usize % WORDS.len()]);
                bits >>= 8;
            }
        }
        let mut file = File::create(path).with_context(|| format!("{}", path.display()))?;
        Ok(file.write_all(&self.text.as_bytes()[..length])?)
    }

    fn dir(&self, path: String) -> Result<PathBuf> {
        let dir = self.top.join(path);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    fn sources(&mut self, entries: usize) -> Result<()> {
        let base = self.dir(BASE.into())?;
        std::fs::write(base.join(".gitignore"), "/node_modules/\n/.venv/\n/target/\n")?;
        for number in 0..entries / (FILES_OF_DIR + 1) {
            let dir = self.dir(format!("{BASE}/src/part{}/mod{number}", number / 32))?;
            for file in 0..FILES_OF_DIR {
                self.file(&dir.join(format!("file{file}.c")), 4096)?;
            }
        }
        Ok(())
    }

    /// Packages whose files are links into a store in the same tree, as pnpm makes them.
    fn node_modules(&mut self, entries: usize) -> Result<()> {
        for number in 0..entries / (2 * FILES_OF_PACKAGE + 4) {
            let store = self.dir(format!("{BASE}/node_modules/.store/package{number}@1.0.{number}/lib"))?;
            let package = self.dir(format!("{BASE}/node_modules/package{number}/lib"))?;
            for file in 0..FILES_OF_PACKAGE {
                let name = format!("module{file}.js");
                self.file(&store.join(&name), 1500)?;
                std::fs::hard_link(store.join(&name), package.join(&name))?;
            }
        }
        Ok(())
    }

    /// Packages whose files are links into a cache outside of the tree, as uv makes them.
    fn site_packages(&mut self, entries: usize) -> Result<()> {
        for number in 0..entries / (FILES_OF_PACKAGE + 1) {
            let cache = self.dir(format!("{CACHE}/wheels/package{number}"))?;
            let package = self.dir(format!("{BASE}/.venv/lib/python3/site-packages/package{number}"))?;
            for file in 0..FILES_OF_PACKAGE {
                let name = format!("module{file}.py");
                self.file(&cache.join(&name), 3000)?;
                std::fs::hard_link(cache.join(&name), package.join(&name))?;
            }
        }
        Ok(())
    }

    /// What a build leaves behind, some results with a second name, as cargo makes them.
    fn target(&mut self, entries: usize) -> Result<()> {
        let debug = self.dir(format!("{BASE}/target/debug"))?;
        let deps = self.dir(format!("{BASE}/target/debug/deps"))?;
        for number in 0..entries / 4 {
            let print = self.dir(format!("{BASE}/target/debug/.fingerprint/crate{number}"))?;
            self.file(&print.join("lib.json"), 300)?;
            self.file(&deps.join(format!("crate{number}.d")), 200)?;
            let library = deps.join(format!("libcrate{number}.rlib"));
            self.file(&library, 32_768)?;
            if number % LINKED_RESULTS == 0 {
                std::fs::hard_link(&library, debug.join(format!("libcrate{number}.rlib")))?;
            }
        }
        Ok(())
    }
}
