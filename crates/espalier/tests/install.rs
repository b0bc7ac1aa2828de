//! What `make install` puts where, that `make uninstall` leaves nothing, and that packages hold the
//! same.

mod common;

use common::{Ran, espalier, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Makefile in the root of the repository. What is installed is built already: cargo fails.
fn make(arguments: &[String]) -> Command {
    let mut command = Command::new("make");
    command.arg("-C").arg(repository()).args(["--silent", "PREFIX=/usr", "SBINDIR=/usr/sbin", "CARGO=false"]);
    command.args(arguments).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    command
}

/// A root with what `make install` has put there: the program of this build, and as library for C
/// a file that only has its name.
struct Installed {
    root: TempDir,
    arguments: Vec<String>,
    _library: TempDir,
}

impl Installed {
    fn with(more: &[&str]) -> Self {
        let (root, library) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(library.path().join("libespalier_c.so"), "a library").unwrap();
        let mut arguments = vec![
            concat!("BINARY=", env!("CARGO_BIN_EXE_espalier")).to_owned(),
            format!("LIBRARIES={}", library.path().display()),
            format!("DESTDIR={}", root.path().display()),
        ];
        arguments.extend(more.iter().map(|&one| one.to_owned()));
        let this = Self { root, arguments, _library: library };
        this.make("install");
        this
    }

    fn make(&self, target: &str) {
        run(make(&self.arguments).arg(target));
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Everything that is no directory, as paths without the root.
    fn files(&self) -> BTreeSet<PathBuf> {
        let root = self.root.path();
        files(root).iter().map(|path| path.strip_prefix(root).unwrap().to_owned()).collect()
    }
}

/// Everything below a directory that is no directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// What systemd has to say about the unit: nothing. Its programs have to be where it says.
fn verify(unit: &str, dir: &Path) {
    let path = dir.join("espalier@.service");
    fs::write(&path, unit).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    // It looks at the units of the machine, too, which may have faults of their own.
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("espalier"), "{said}");
    fs::remove_file(path).unwrap();
}

#[test]
fn pages_completions_units_and_helpers_are_installed_and_removed() {
    let installed = Installed::with(&[]);
    let at = |path: &str| installed.at(path);
    let pages = at("usr/share/man");
    for page in ["espalier-mount", "git-espalier", "mount.fuse.espalier", "mkfs.espalier", "espalier.toml"] {
        let found = run(Command::new("man").arg("-M").arg(&pages).args(["-w", page]));
        // The page of an alias is that of its program.
        assert!(found.contains(page) || page == "mount.fuse.espalier", "{found}");
        let shown = run(Command::new("man").arg("-M").arg(&pages).arg(page).env("MANPAGER", "cat"));
        assert!(shown.contains("DESCRIPTION"), "{page}: {shown}");
    }
    for file in [
        "usr/bin/git-espalier",
        "usr/include/espalier.h",
        "usr/include/espalier-tree.h",
        "usr/lib/libespalier.so",
        "usr/lib/modprobe.d/espalier.conf",
        "usr/lib/systemd/system/espalier@.service",
        "usr/share/bash-completion/completions/espalier",
        "usr/share/doc/espalier/docs/install.md",
        "usr/share/zsh/site-functions/_espalier",
        "usr/share/fish/vendor_completions.d/espalier.fish",
    ] {
        assert!(at(file).metadata().unwrap().len() > 0, "{file}");
    }
    for helper in ["mkfs.espalier", "fsck.espalier", "mount.fuse.espalier", "umount.fuseblk.espalier"] {
        let link = fs::read_link(at("usr/sbin").join(helper)).unwrap();
        assert_eq!(link, Path::new("/usr/bin/espalier"), "{helper}");
    }
    let unit = fs::read_to_string(at("usr/lib/systemd/system/espalier@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/espalier"), "{unit}");
    // As the program prints it where no package has brought it.
    let printed = espalier(&["unit"]).ok();
    assert_eq!(printed, unit.replace("/usr/bin/espalier", env!("CARGO_BIN_EXE_espalier")));
    verify(&printed, installed.root.path());
    installed.make("uninstall");
    assert_eq!(installed.files(), BTreeSet::new());
}

#[test]
fn what_was_not_built_is_named_and_nothing_is_installed() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("espalier");
    let root = place.path().join("root");
    let arguments = [format!("BINARY={}", program.display()), format!("DESTDIR={}", root.display())];
    let fails = |target: &str, missing: &Path| {
        let ran = Ran::from(make(&arguments).arg(target).output().unwrap());
        let sentence = format!("{} is not there: run make first", missing.display());
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        ran.refused(2, &[&sentence]);
        assert!(!root.exists(), "{target}");
    };
    let library = place.path().join("libespalier_c.so");
    fails("install", &program);
    fails("install-files", &program);
    fails("install-library", &library);
    fs::write(&program, "a program").unwrap();
    fails("install", &library);
}

#[test]
fn links_of_installed_documents_lead_to_files() {
    let installed = Installed::with(&[]);
    let documents = files(&installed.at("usr/share/doc/espalier"));
    let mut seen = 0;
    for page in documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(page).unwrap();
        for goal in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next()) {
            if goal.is_empty() || goal.contains("://") || goal.starts_with("mailto:") {
                continue;
            }
            assert!(page.parent().unwrap().join(goal).exists(), "{}: {goal}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

/// A line of the list of a package.
#[derive(Debug)]
struct Asset {
    /// A pattern, below what was installed.
    source: String,
    /// A directory.
    goal: String,
    mode: u32,
}

impl Asset {
    fn new(source: &Value, goal: &Value, mode: &Value) -> Self {
        let [source, goal, mode] = [source, goal, mode].map(|value| value.as_str().unwrap());
        let staged = source.trim_start_matches("../").strip_prefix("target/stage/");
        Self {
            source: staged.unwrap_or_else(|| panic!("make install does not install {source}")).to_owned(),
            goal: goal.trim_start_matches('/').to_owned(),
            mode: u32::from_str_radix(mode, 8).unwrap(),
        }
    }

    fn holds(&self, path: &Path) -> bool {
        let (dir, pattern) = self.source.rsplit_once('/').unwrap();
        path.parent() == Some(Path::new(dir)) && matches(pattern, path.file_name().unwrap().to_str().unwrap())
    }
}

/// Whether a name is one of a pattern with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(begin) else { return false };
    (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
}

/// The description of a package in the manifest.
fn package(name: &str) -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let words = ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path", manifest];
    let metadata: Value = serde_json::from_str(&run(Command::new(env!("CARGO")).args(words))).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    packages.find(|one| one["name"] == env!("CARGO_PKG_NAME")).unwrap()["metadata"][name].clone()
}

fn assets(package: &Value) -> Vec<Asset> {
    let list = package["assets"].as_array().unwrap().iter();
    list.map(|asset| match asset.as_array() {
        Some(fields) => Asset::new(&fields[0], &fields[1], &fields[2]),
        None => Asset::new(&asset["source"], &asset["dest"], &asset["mode"]),
    })
    .collect()
}

/// What was installed and is not in the package; all else is there as it was installed.
fn not_in(assets: &[Asset], installed: &Installed) -> BTreeSet<PathBuf> {
    let all = installed.files();
    let mut held = BTreeSet::new();
    for asset in assets {
        let found: Vec<_> = all.iter().filter(|path| asset.holds(path)).collect();
        assert!(!found.is_empty(), "make install does not install {}", asset.source);
        for path in found {
            assert_eq!(path.parent(), Some(Path::new(asset.goal.trim_end_matches('/'))), "{path:?}");
            let kind = installed.root.path().join(path).symlink_metadata().unwrap();
            // The tool for the RPM finds out what a library needs if it can be executed.
            let is_library = path.to_string_lossy().contains(".so");
            if !kind.is_symlink() && !is_library {
                assert_eq!(kind.permissions().mode() & 0o777, asset.mode, "{path:?}");
            }
            held.insert(path.clone());
        }
    }
    &all - &held
}

#[test]
fn the_debian_package_holds_what_make_installs() {
    let installed = Installed::with(&["ZSH_FUNCTIONS=vendor-completions"]);
    assert_eq!(not_in(&assets(&package("deb")), &installed), BTreeSet::new());
}

#[test]
fn the_rpm_holds_what_make_installs() {
    let installed = Installed::with(&["LIBDIR=/usr/lib64"]);
    let package = package("generate-rpm");
    let [made, removed] = ["post_install_script", "post_uninstall_script"].map(|script| {
        let script = package[script].as_str().unwrap();
        script.split([' ', ';', '\n']).map(str::to_owned).collect::<BTreeSet<_>>()
    });
    let missing = not_in(&assets(&package), &installed);
    assert!(missing.len() > 7, "{missing:?}");
    for path in missing {
        // The tool packs no symbolic links: scripts make them, and ldconfig(8) one that has the
        // name of the library for the dynamic linker.
        let file = installed.root.path().join(&path);
        assert!(file.is_symlink(), "{path:?} is not in the RPM");
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("libespalier.so.") {
            assert!(made.contains("ldconfig") && removed.contains("ldconfig"));
            continue;
        }
        let whole = format!("/{}", path.display());
        for script in [&made, &removed] {
            assert!(script.contains(name) || script.contains(&whole), "{path:?}: {script:?}");
        }
    }
}
