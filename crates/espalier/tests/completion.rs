//! What shells offer when a command line is completed.

mod common;

use common::{Place, espalier, run};
use std::path::Path;
use std::process::Command;

/// The directories of programs, the one of this build first.
fn path() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_espalier")).parent().unwrap();
    format!("{}:{}", own.display(), std::env::var("PATH").unwrap())
}

/// The script by which a shell learns to complete.
fn script(shell: &str) -> String {
    run(Command::new(env!("CARGO_BIN_EXE_espalier")).env("COMPLETE", shell))
}

/// What bash offers for the last of these words.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let last = words.len() - 1;
    let ask = format!(
        "{}\nCOMP_WORDS=({line}); COMP_CWORD={last}; COMP_TYPE=9\n\
         _clap_complete_espalier espalier '{}' 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash"),
        words[last]
    );
    let said = run(Command::new("bash").args(["--norc", "-c", &ask]).env("PATH", path()));
    said.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// What fish offers for the end of a line.
fn fish_offers(line: &str) -> Vec<String> {
    let ask = format!("{}\ncomplete --do-complete '{line}'", script("fish"));
    let said = run(Command::new("fish").args(["--no-config", "-c", &ask]).env("PATH", path()));
    said.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

#[test]
fn commands_options_and_values_are_offered() {
    assert_eq!(bash_offers(&["espalier", "sal"]), ["salvage"]);
    assert_eq!(bash_offers(&["espalier", "mkfs", "--compress", "z"]), ["zstd"]);
    assert_eq!(bash_offers(&["espalier", "mount", "-o", "ro,noat"]), ["ro,noatime"]);
    let transports = bash_offers(&["espalier", "mount", "-o", "transport="]);
    assert_eq!(transports, ["transport=auto", "transport=io_uring", "transport=classic"]);
    assert!(fish_offers("espalier sn").contains(&"snapshot".to_owned()));
    assert!(!bash_offers(&["espalier", ""]).contains(&"man".to_owned()), "hidden commands are not offered");
}

#[test]
fn snapshots_mounts_and_paths_are_offered() {
    let place = Place::mounted("64M");
    let (image, dir) = (place.image.to_str().unwrap(), place.dir.to_str().unwrap());
    for name in ["before", "beyond", "after"] {
        espalier(&["snapshot", "create", dir, name]).ok();
    }
    assert_eq!(bash_offers(&["espalier", "snapshot", "delete", dir, "be"]), ["before", "beyond"]);
    assert_eq!(bash_offers(&["espalier", "snapshot", "restore", image, "a"]), ["after"]);
    assert_eq!(fish_offers(&format!("espalier snapshot delete {dir} bey")), ["beyond"]);
    let hidden = format!("{dir}/.snapshots/");
    assert_eq!(bash_offers(&["espalier", "diff", &format!("{dir}/.sna")]), [hidden.as_str()]);
    assert_eq!(bash_offers(&["espalier", "diff", &format!("{hidden}af")]), [format!("{hidden}after/")]);
    assert_eq!(bash_offers(&["espalier", "umount", &dir[..dir.len() - 1]]), [dir]);
    // Where the mount is beside its image, the image is not offered.
    let begun = &dir[..dir.rfind('/').unwrap() + 1];
    assert_eq!(bash_offers(&["espalier", "mount", "--replace", begun]), [dir]);
    assert!(bash_offers(&["espalier", "mount", "--replace", ""]).iter().any(|offer| offer == dir));
    assert!(bash_offers(&["espalier", "mount", begun]).iter().any(|offer| offer == image));
    place.umount().ok();
    assert_eq!(bash_offers(&["espalier", "snapshot", "delete", image, "bef"]), ["before"]);
    let option = bash_offers(&["espalier", "mount", image, dir, "-o", "ro,snapshot=a"]);
    assert_eq!(option, ["ro,snapshot=after"]);
    let begun = image.strip_suffix(".img").unwrap();
    for key in ["journal=", "noatime,disk_cache=", "metrics=unix:"] {
        assert_eq!(
            bash_offers(&["espalier", "mount", "-o", &format!("{key}{begun}")]),
            [format!("{key}{image}")]
        );
    }
}

#[test]
fn workspaces_are_offered() {
    let place = Place::mounted("64M");
    let base = place.dir.join("base");
    std::fs::create_dir(&base).unwrap();
    let (dir, base) = (place.dir.to_str().unwrap(), base.to_str().unwrap());
    for name in ["fix-1", "fix-2", "other"] {
        espalier(&["ws", "create", name, "--from", base]).ok();
    }
    assert_eq!(bash_offers(&["espalier", "ws", "--in", dir, "diff", "fi"]), ["fix-1", "fix-2"]);
    assert_eq!(bash_offers(&["espalier", "workspace", "--in", dir, "discard", "fix-1", "o"]), ["other"]);
    assert_eq!(
        bash_offers(&["espalier", "ws", "create", "more", "--from", &base[..base.len() - 1]]),
        [format!("{base}/")]
    );
    assert_eq!(fish_offers(&format!("espalier ws --in {dir} apply ot")), ["other"]);
}

/// What zsh offers for the end of a line in a new shell, `load` being how it gets the script; the
/// question is asked `times` times.
fn zsh_offers(load: &str, words: &str, times: usize) -> String {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("_espalier");
    std::fs::write(&file, script("zsh")).unwrap();
    run(Command::new("zsh").arg("-fn").arg(&file));
    // What shows offers to a user works only where one types, so it prints them here.
    let ask = format!(
        "fpath=({dir} $fpath); autoload -Uz compinit; compinit -u -D; {load}\n\
         _describe() {{ for name; do case $name in (dirs|other) print -rl -- ${{(P)name}};; esac; done }}\n\
         words=({words}) CURRENT=${{#words}}; repeat {times} $_comps[espalier]",
        dir = place.path().display()
    );
    run(Command::new("zsh").args(["-f", "-c", &ask]).current_dir(place.path()).env("PATH", path()))
}

#[test]
fn zsh_offers_from_the_first_question_on() {
    for load in ["", "source ./_espalier"] {
        let said = zsh_offers(load, "espalier sal", 2);
        let offered: Vec<_> = said.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(offered, ["salvage", "salvage"], "loaded by '{load}'");
    }
    assert!(zsh_offers("", "espalier mount -o ro,noat", 1).starts_with("ro,noatime"));
}
