//! The integrations, each by its own test, on a mount of root and by an ordinary user.

mod common;

use common::{Place, run};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An ordinary user.
const USER: &str = "4321";

/// What the test of an integration needs beside what every machine has.
#[derive(Default)]
struct Needs {
    /// Directories with programs.
    programs: Vec<PathBuf>,
    /// What runs the test, if it has to be prepared.
    wrapper: Vec<OsString>,
}

/// Carries out the test of an integration in a fresh directory.
#[track_caller]
fn carry_out(name: &str, user: Option<&str>, is_on_mount: bool, needs: impl Fn(&Place) -> Needs) {
    let place = Place::mounted("2G");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let top = if is_on_mount { place.dir.join("top") } else { place.path("top") };
    fs::create_dir(&top).unwrap();
    let Needs { mut programs, wrapper: mut words } = needs(&place);
    words.push("env".into());
    // The home of an ordinary user lies there, too.
    if let Some(user) = user {
        let id = user.parse().unwrap();
        std::os::unix::fs::chown(&top, Some(id), Some(id)).unwrap();
        words.pop();
        words.extend(["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env"].map(Into::into));
        words.push(format!("HOME={}", top.display()).into());
    }
    // The source may lie where the user may not look.
    let here = copy_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations").join(name), &place);
    programs.push(Path::new(env!("CARGO_BIN_EXE_espalier")).parent().unwrap().to_owned());
    programs.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(programs).unwrap().into_string().unwrap();
    words.extend(
        [format!("PATH={path}"), "GIT_CONFIG_NOSYSTEM=1".into(), "GIT_CONFIG_GLOBAL=/dev/null".into()]
            .map(Into::into),
    );
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(here.join("test")).arg(&here).current_dir(&top).stdin(Stdio::null());
    run(&mut command);
    if is_on_mount {
        place.remount();
    }
}

/// Nothing beside what every machine has.
fn nothing(_place: &Place) -> Needs {
    Needs::default()
}

fn copy_of(source: &Path, place: &Place) -> PathBuf {
    let copy = place.path("integration");
    run(Command::new("cp").arg("-rT").arg(source).arg(&copy));
    run(Command::new("chmod").args(["-R", "go+rX"]).arg(&copy));
    copy
}

#[test]
fn git_espalier() {
    carry_out("git-espalier", None, true, nothing);
    carry_out("git-espalier", Some(USER), true, nothing);
}

#[test]
fn worktree_hooks() {
    carry_out("worktree-hooks", None, true, nothing);
    carry_out("worktree-hooks", Some(USER), true, nothing);
}

#[test]
fn jj() {
    if Command::new("jj").arg("--version").output().is_err() {
        // Not by a macro: what those print is shown for tests that fail only.
        let said = b"test jj: skipped the commands of jj, which is not installed; git's are carried out\n";
        std::io::stderr().write_all(said).unwrap();
    }
    carry_out("jj", None, true, nothing);
    carry_out("jj", Some(USER), true, nothing);
}

#[test]
fn ci() {
    carry_out("ci", None, false, nothing);
    // One with a name, which fusermount3 asks for: daemon.
    carry_out("ci", Some("1"), false, nothing);
}

/// Package managers that `scripts/install-deps` has installed, and a compiler, where every user may
/// run them: the originals may lie in the home directory of root.
fn package_managers(place: &Place) -> Needs {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or(home.join(".cache"), PathBuf::from);
    let tools = std::env::var_os("ESPALIER_TOOLS").map_or(cache.join("espalier/tools"), PathBuf::from);
    let (pnpm, uv, rust) = (place.path("pnpm"), place.path("uv"), place.path("rust"));
    [&uv, &rust].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    run(Command::new("cp").arg("-rT").arg(tools.join("pnpm")).arg(&pnpm));
    run(Command::new("cp").arg(tools.join("uv/bin/uv")).arg(&uv));
    run(Command::new("chmod").args(["-R", "go+rX"]).args([&pnpm, &uv]));
    // Seen by the test alone, and not to be written: what is left here is removed afterwards.
    let see = r#"mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec "$@""#;
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let words = ["unshare", "--mount", "sh", "-euc", see, "sh", sysroot.trim()];
    let mut wrapper: Vec<OsString> = words.map(Into::into).into();
    wrapper.push(rust.clone().into());
    Needs { programs: vec![pnpm.join("bin"), uv, rust.join("bin")], wrapper }
}

#[test]
fn packages() {
    carry_out("packages", None, true, package_managers);
    carry_out("packages", Some(USER), true, package_managers);
}
