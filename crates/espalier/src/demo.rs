//! `espalier demo`: a real source tree on a real mount, step by step, each with its time.
//!
//! Everything goes through the commands a user would type, this program's own among them. In the
//! end every byte is compared twice: with what stood in the mount before it was unmounted, and with
//! the archive that was unpacked.

mod manifest;
mod program;
mod tree;

use crate::args::Demo;
use crate::problem::Shown;
use crate::ui::{complain, say};
use crate::units;
use anyhow::{Context, Result, ensure};
use manifest::Manifest;
use program::run_quietly;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tree::Tree;

/// Runs the command.
pub(crate) fn run(args: &Demo) -> Result<()> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} cannot be made", args.dir.display()))?;
    let base = args.dir.canonicalize()?;
    let demo = Stage {
        program: std::env::current_exe().context("this program's own path")?,
        image: base.join("demo.img"),
        mount: base.join("mnt"),
        tree: Tree::choose(args.tree.as_deref())?,
    };
    let started = Instant::now();
    let outcome = demo.play(args);
    demo.tidy(args.keep);
    outcome?;
    say!("{:<60} {:>10}", "everything", units::duration(started.elapsed()));
    if args.keep {
        say!("the image stays: {}", demo.image.display());
    }
    Ok(())
}

/// The paths a demonstration plays on.
struct Stage {
    program: PathBuf,
    image: PathBuf,
    mount: PathBuf,
    tree: Tree,
}

impl Stage {
    fn play(&self, args: &Demo) -> Result<()> {
        std::fs::create_dir_all(&self.mount)?;
        let size = args.size.0.to_string();
        step("make an image", || {
            self.espalier(&[
                "mkfs".as_ref(),
                "--force".as_ref(),
                "--size".as_ref(),
                size.as_ref(),
                self.image.as_ref(),
            ])
        })?;
        step("mount it", || self.mount())?;
        let tree = self.mount.join("tree");
        std::fs::create_dir(&tree)?;
        step(&format!("unpack {}", self.tree), || self.tree.unpack(&tree))?;
        step("make it durable (sync)", || sync(&self.mount))?;
        step("search every file (grep -r)", || search(&tree))?;
        let built = step("edit a program and build it", || self.build())?;
        let before = step("read and hash everything", || Manifest::of(&self.mount))?;
        step("unmount", || self.espalier(&["umount".as_ref(), self.mount.as_ref()]))?;
        step("check every invariant (fsck)", || self.espalier(&["fsck".as_ref(), self.image.as_ref()]))?;
        step("mount again", || self.mount())?;
        let after = step("read and hash everything, cold", || Manifest::of(&self.mount))?;
        step(&format!("compare {} entries, {}", before.entries(), before.size()), || before.same_as(&after))?;
        step("compare with the original, byte by byte", || self.tree.compare(&tree))?;
        step("run what was built", || run_quietly(&mut Command::new(&built)))?;
        step("remove the tree (rm -rf)", || run_quietly(Command::new("rm").arg("-rf").arg(&tree)))?;
        step("unmount", || self.espalier(&["umount".as_ref(), self.mount.as_ref()]))?;
        step("check every invariant (fsck)", || self.espalier(&["fsck".as_ref(), self.image.as_ref()]))
    }

    fn mount(&self) -> Result<()> {
        self.espalier(&["mount".as_ref(), self.image.as_ref(), self.mount.as_ref()])
    }

    fn espalier(&self, arguments: &[&OsStr]) -> Result<()> {
        run_quietly(Command::new(&self.program).args(arguments))
    }

    /// Writes a small program beside the tree, builds it, edits it, and builds it again.
    fn build(&self) -> Result<PathBuf> {
        let dir = self.mount.join("program");
        std::fs::create_dir(&dir)?;
        std::fs::write(
            dir.join("Makefile"),
            "hello: main.o leaf.o\n\tcc -o $@ $^\n%.o: %.c leaf.h\n\tcc -c -o $@ $<\n",
        )?;
        std::fs::write(dir.join("leaf.h"), "int leaves(void);\n")?;
        std::fs::write(dir.join("leaf.c"), "#include \"leaf.h\"\nint leaves(void) { return 1; }\n")?;
        let main = "#include \"leaf.h\"\nint main(void) { return leaves() == 7 ? 0 : 1; }\n";
        std::fs::write(dir.join("main.c"), main)?;
        run_quietly(Command::new("make").arg("-sC").arg(&dir))?;
        let hello = dir.join("hello");
        ensure!(run_quietly(&mut Command::new(&hello)).is_err(), "the program does not do what it says");
        run_quietly(Command::new("sed").args(["-i", "s/return 1/return 7/"]).arg(dir.join("leaf.c")))?;
        // make compares times; this one's clock may stand still for a moment.
        run_quietly(Command::new("make").arg("-sBC").arg(&dir))?;
        run_quietly(&mut Command::new(&hello))?;
        Ok(hello)
    }

    /// Leaves nothing mounted and, unless asked to, nothing behind.
    fn tidy(&self, keep: bool) {
        if crate::mounts::at(&self.mount).is_ok_and(|m| m.is_some())
            && let Err(error) = self.espalier(&["umount".as_ref(), self.mount.as_ref()])
        {
            complain!("espalier demo: {}", Shown(&error));
            let _ = self.espalier(&["umount".as_ref(), "--lazy".as_ref(), self.mount.as_ref()]);
        }
        let _ = std::fs::remove_dir(&self.mount);
        if !keep {
            let _ = std::fs::remove_file(&self.image);
            if let Some(base) = self.image.parent() {
                let _ = std::fs::remove_dir(base);
            }
        }
    }
}

/// Runs and times one step, and prints it.
fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let outcome = work().with_context(|| what.to_owned())?;
    say!("{what:<60} {:>10}", units::duration(started.elapsed()));
    Ok(outcome)
}

fn sync(dir: &Path) -> Result<()> {
    let dir = std::fs::File::open(dir)?;
    rustix::fs::syncfs(&dir)?;
    // A FUSE server never hears of syncfs.
    Ok(dir.sync_all()?)
}

/// grep would stop at the first match if it wrote to /dev/null.
fn search(tree: &Path) -> Result<()> {
    let mut command = Command::new("grep");
    command.args(["-r", "-c", "-I", "-e", "return"]).arg(tree).stdin(Stdio::null());
    let out = command.output().context("grep cannot be run")?;
    ensure!(out.status.success(), "grep found nothing: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}
