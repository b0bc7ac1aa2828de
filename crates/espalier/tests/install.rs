//! What `make install` puts where, and that `make uninstall` leaves nothing.

mod common;

use common::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Makefile in the root of the repository, with the program of this build.
fn make(target: &str, root: &Path) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = concat!("BINARY=", env!("CARGO_BIN_EXE_espalier"));
    let destination = format!("DESTDIR={}", root.display());
    run(Command::new("make")
        .arg("-C")
        .arg(repository)
        .args(["--silent", target, "PREFIX=/usr", "SBINDIR=/usr/sbin", binary, &destination])
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL"));
}

/// Everything below a directory that is no directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// What systemd has to say about the unit: nothing. Its programs have to be where it says.
fn verify(unit: &str, dir: &Path) {
    let path = dir.join("espalier@.service");
    std::fs::write(&path, unit).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    // It looks at the units of the machine, too, which may have faults of their own.
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("espalier"), "{said}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn pages_completions_units_and_helpers_are_installed_and_removed() {
    let root = tempfile::tempdir().unwrap();
    make("install-files", root.path());
    let at = |path: &str| root.path().join(path);
    let pages = at("usr/share/man");
    for page in ["espalier", "espalier-mount", "mount.fuse.espalier", "mkfs.espalier", "espalier.toml"] {
        let found = run(Command::new("man").arg("-M").arg(&pages).args(["-w", page]));
        // The page of an alias is that of its program.
        assert!(found.contains(page) || page == "mount.fuse.espalier", "{found}");
        let shown = run(Command::new("man").arg("-M").arg(&pages).arg(page).env("MANPAGER", "cat"));
        assert!(shown.contains("DESCRIPTION"), "{page}: {shown}");
    }
    for file in [
        "usr/bin/git-espalier",
        "usr/lib/modprobe.d/espalier.conf",
        "usr/lib/systemd/system/espalier@.service",
        "usr/share/bash-completion/completions/espalier",
        "usr/share/zsh/site-functions/_espalier",
        "usr/share/fish/vendor_completions.d/espalier.fish",
    ] {
        assert!(at(file).metadata().unwrap().len() > 0, "{file}");
    }
    for helper in ["mkfs.espalier", "fsck.espalier", "mount.fuse.espalier", "umount.fuseblk.espalier"] {
        let link = std::fs::read_link(at("usr/sbin").join(helper)).unwrap();
        assert_eq!(link, Path::new("/usr/bin/espalier"), "{helper}");
    }
    let unit = std::fs::read_to_string(at("usr/lib/systemd/system/espalier@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/espalier"), "{unit}");
    verify(&unit.replace("/usr/bin/espalier", env!("CARGO_BIN_EXE_espalier")), root.path());
    make("uninstall", root.path());
    assert_eq!(files(root.path()), Vec::<PathBuf>::new());
}
