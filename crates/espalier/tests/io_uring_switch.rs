//! The switch of the kernel for FUSE over io_uring: which mounts turn it on, and which tell how.
//!
//! The tests have a file in place of the kernel's parameter, in a mount namespace of their own.

mod common;

use common::{Place, close_way, open_way_to, run};
use std::fs;
use std::process::Command;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs a script of sh in a mount namespace in which the switch is a file that says no; returns
/// what the script said, and what the file says then.
fn with_switch_off(place: &Place, script: &str) -> (String, String) {
    let switch = place.path("switch");
    fs::write(&switch, "N\n").unwrap();
    let script = format!("mount --bind \"$1\" {PARAMETER}; {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", &script, "sh"]).arg(&switch);
    command.args([env!("CARGO_BIN_EXE_espalier").as_ref(), place.image.as_os_str(), place.dir.as_os_str()]);
    let said = run(command.arg(place.path("log")).env("XDG_CONFIG_HOME", place.path("config")));
    (said, fs::read_to_string(switch).unwrap().trim_end().to_owned())
}

#[test]
fn a_mount_by_root_turns_it_on_and_says_so_unless_it_is_forbidden() {
    let place = Place::with_image("64M");
    let mount = |options: &str, config: &str| {
        let _ = fs::remove_file(place.path("log"));
        fs::create_dir_all(place.path("config")).unwrap();
        fs::write(place.path("config/espalier.toml"), config).unwrap();
        let script = format!(
            "\"$2\" mount -o logfile=\"$5\"{options} \"$3\" \"$4\"; \"$2\" info \"$4\"; \"$2\" umount \"$4\""
        );
        let (_, switch) = with_switch_off(&place, &script);
        (switch, fs::read_to_string(place.path("log")).unwrap_or_default())
    };
    let (switch, log) = mount("", "");
    assert_eq!(switch, "Y");
    assert!(log.contains("turned FUSE over io_uring on"), "{log}");
    for (options, config) in [(",transport=classic", ""), ("", "mount.options = \"transport=classic\"")] {
        let (switch, log) = mount(options, config);
        assert_eq!(switch, "N", "{options} {config}");
        assert!(!log.contains("io_uring on"), "{log}");
    }
}

#[test]
fn root_is_not_told_what_it_has_done() {
    let place = Place::with_image("64M");
    let script = "export HOME=\"${1%/*}\"; prlimit --nice=0 script -qec \"'$2' mount '$3' '$4'\" /dev/null </dev/null; \
                  \"$2\" umount \"$4\"";
    let (said, switch) = with_switch_off(&place, script);
    assert_eq!(switch, "Y");
    assert!(!said.contains("can make mounts"), "{said}");
}

#[test]
fn a_user_is_told_once_on_a_terminal_what_root_can_do() {
    let place = Place::with_image("64M");
    let opened = open_way_to(&place);
    fs::create_dir(place.path("home")).unwrap();
    for path in [&place.path("home"), &place.image, &place.dir] {
        run(Command::new("chown").arg("65534:65534").arg(path));
    }
    // fusermount3 wants a user with a name; script(1) gives it a terminal.
    let script = "user='prlimit --nice=0 setpriv --reuid=65534 --regid=65534 --clear-groups env HOME='${1%/*}/home; \
                  for turn in 1 2; do \
                  script -qec \"$user $2 mount $3 $4\" /dev/null </dev/null; $user \"$2\" umount \"$4\"; \
                  echo turn $turn; done; \
                  $user rm -r \"${1%/*}/home/.local\"; \
                  $user \"$2\" mount \"$3\" \"$4\" 2>&1; $user \"$2\" umount \"$4\"";
    let (said, switch) = with_switch_off(&place, script);
    close_way(opened);
    assert_eq!(switch, "N");
    let (first, rest) = said.split_once("turn 1").unwrap();
    let hint = format!("echo Y > {PARAMETER}");
    assert!(first.contains(&hint) && first.contains("espalier doctor"), "{said}");
    assert!(first.contains("'* - nice 0'"), "{said}");
    assert!(!rest.contains(&hint), "once, and on a terminal only: {said}");
}
