//! The integrations, each by its own test, on a mount of root and by an ordinary user.

mod common;

use common::{Place, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An ordinary user.
const USER: &str = "4321";

/// Carries out the test of an integration in a fresh directory.
#[track_caller]
fn carry_out(name: &str, user: Option<&str>, is_on_mount: bool) {
    let place = Place::mounted("2G");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let top = if is_on_mount { place.dir.join("top") } else { place.path("top") };
    fs::create_dir(&top).unwrap();
    // The home of an ordinary user lies there, too; the compiler of root's tests does not.
    let mut command = match user {
        None => Command::new("env"),
        Some(user) => {
            let id = user.parse().unwrap();
            std::os::unix::fs::chown(&top, Some(id), Some(id)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", "env"]);
            command.arg(format!("HOME={}", top.display()));
            command
        }
    };
    // The source may lie where the user may not look.
    let here = copy_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations").join(name), &place);
    let program = Path::new(env!("CARGO_BIN_EXE_espalier")).parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap();
    command.arg(format!("PATH={}:{path}", program.display()));
    command.args(["GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"]);
    command.arg(here.join("test")).arg(&here).current_dir(&top).stdin(Stdio::null());
    run(&mut command);
    if is_on_mount {
        place.remount();
    }
}

fn copy_of(source: &Path, place: &Place) -> PathBuf {
    let copy = place.path("integration");
    run(Command::new("cp").arg("-rT").arg(source).arg(&copy));
    run(Command::new("chmod").args(["-R", "go+rX"]).arg(&copy));
    copy
}

#[test]
fn git_espalier() {
    carry_out("git-espalier", None, true);
    carry_out("git-espalier", Some(USER), true);
}

#[test]
fn worktree_hooks() {
    carry_out("worktree-hooks", None, true);
    carry_out("worktree-hooks", Some(USER), true);
}

#[test]
fn jj() {
    carry_out("jj", None, true);
    carry_out("jj", Some(USER), true);
}

#[test]
fn ci() {
    carry_out("ci", None, false);
}

#[test]
fn packages() {
    carry_out("packages", None, true);
}
