//! The configuration files, as docs/configuration.md describes them.

mod common;

use common::{Place, Ran};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs the program for a user whose configuration file is in `place`.
fn espalier(place: &Place, words: &[&OsStr]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.env("XDG_CONFIG_HOME", place.base.path());
    command.args(words).output().unwrap().into()
}

fn mount(place: &Place, options: &str) -> Ran {
    let words = ["mount".as_ref(), "-o".as_ref(), options.as_ref()];
    espalier(place, &[&words[..], &[place.image.as_os_str(), place.dir.as_os_str()]].concat())
}

/// The options of the mount, as its server tells them.
fn options(place: &Place) -> String {
    let told = common::espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told["mount"]["options"].as_str().unwrap().to_owned()
}

#[test]
fn a_user_file_gives_defaults_and_the_command_line_wins() {
    let place = Place::new();
    let file = place.path("espalier.toml");
    fs::write(&file, "[mkfs]\ncompress = \"lz4\"\n\n[mount]\noptions = \"cache=128M,commit=9\"\n").unwrap();
    let mkfs = |more: &[&str]| {
        let words = ["mkfs", "--force", "--size", "64M"].iter().chain(more).map(OsStr::new);
        espalier(&place, &words.chain([place.image.as_os_str()]).collect::<Vec<_>>()).ok()
    };
    assert!(mkfs(&["--compress", "zstd"]).contains("compression zstd"));
    assert!(mkfs(&[]).contains("compression lz4"));
    mount(&place, "commit=3").ok();
    assert_eq!(options(&place), "cache=128M,commit=9,commit=3");
    // What ends a mount does not depend on what is in a file.
    fs::write(&file, "[mount\n").unwrap();
    let ran = espalier(&place, &["umount".as_ref(), place.dir.as_os_str()]);
    assert!(ran.stderr.contains("espalier.toml:1") && ran.stderr.contains("not used"), "{ran:?}");
    ran.ok();
    mount(&place, "ro").refused(2, &["espalier.toml:1"]);
    espalier(&place, &["fsck".as_ref(), place.image.as_os_str()]).refused(8, &["espalier.toml:1"]);
}

#[test]
fn a_command_line_takes_back_what_a_file_sets() {
    let place = Place::with_image("64M");
    let info = |more: &[&str]| {
        let words = ["info"].iter().chain(more).map(OsStr::new);
        espalier(&place, &words.chain([place.image.as_os_str()]).collect::<Vec<_>>()).ok()
    };
    assert!(!info(&["--json=false"]).starts_with('{'), "without a file");
    fs::write(place.path("espalier.toml"), "[info]\njson = true\n").unwrap();
    assert!(info(&[]).starts_with('{'));
    assert!(!info(&["--json=false"]).starts_with('{'));
}

#[test]
fn the_doctor_says_what_the_files_make_of_mounts() {
    let place = Place::new();
    let doctor = |text: &str| {
        fs::write(place.path("espalier.toml"), text).unwrap();
        espalier(&place, &["doctor".as_ref()])
    };
    let ran = doctor("[mount]\noptions = \"transport=classic\"\n");
    assert!(
        ran.stdout.contains("the transport classic") && ran.stdout.contains("espalier.toml:2"),
        "{ran:?}"
    );
    let ran = doctor("[mount\n");
    let is_told = ran.stdout.contains("espalier.toml:1") && ran.stdout.contains("broken");
    assert!(is_told && ran.code == Some(1), "{ran:?}");
}

#[test]
fn a_file_of_another_user_is_named_and_not_read() {
    let place = Place::with_image("64M");
    let file = place.path("espalier.toml");
    fs::write(&file, "[fsck]\ncache = \"nonsense\"\n").unwrap();
    let fsck = || espalier(&place, &["fsck".as_ref(), place.image.as_os_str()]);
    fsck().refused(8, &["espalier.toml:2", "nonsense"]);
    std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
    let ran = fsck();
    assert!(ran.code == Some(0) && ran.stderr.contains("another user"), "{ran:?}");
    std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = fsck();
    assert!(ran.code == Some(0) && ran.stderr.contains("every user"), "{ran:?}");
}

/// In a mount namespace whose `/etc` is a copy with the file of this test.
#[test]
fn the_file_of_the_machine_comes_first_and_can_enforce() {
    let place = Place::with_image("64M");
    fs::create_dir(place.path("etc")).unwrap();
    let rules = "[mount]\noptions = \"cache=128M,commit=9\"\nenforce = \"transport=classic,nosuid\"\n";
    fs::write(place.path("etc/espalier.toml"), rules).unwrap();
    let script = "mount --bind \"$BASE/etc\" /etc && \"$ESPALIER\" mount -o \"$0\" \"$BASE/a.img\" \"$BASE/mnt\" &&
        grep \" $BASE/mnt \" /proc/self/mountinfo && \"$ESPALIER\" info \"$BASE/mnt\" && umount \"$BASE/mnt\"";
    let mount_with = |options: &str| -> Ran {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, options]);
        command.env("BASE", place.base.path()).env("ESPALIER", env!("CARGO_BIN_EXE_espalier"));
        command.env("XDG_CONFIG_HOME", place.base.path()).output().unwrap().into()
    };
    let said = mount_with("suid,commit=3").ok();
    assert!(said.contains("classic") && said.contains("cache=128M,commit=9,suid,commit=3"), "{said}");
    assert!(said.contains("nosuid"), "{said}");
    // Neither the command line nor the file of the user may ask for the contrary.
    mount_with("transport=io_uring").refused(1, &["/etc/espalier.toml:3", "transport=io_uring"]);
    fs::write(place.path("espalier.toml"), "[mount]\noptions = \"transport=io_uring\"\n").unwrap();
    mount_with("ro").refused(1, &["/etc/espalier.toml:3", "transport=io_uring"]);
    fs::write(place.path("espalier.toml"), "[mount]\nenforce = \"suid\"\n").unwrap();
    mount_with("ro").refused(2, &["espalier.toml:2", "/etc/espalier.toml"]);
}
