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

/// The words of a line as bash has them: they end at `=` and `:`, too.
fn bash_words(words: &[&str]) -> Vec<String> {
    let is_break = |c: char| c == '=' || c == ':';
    let mut parts: Vec<String> = Vec::new();
    for word in words {
        parts.push(String::new());
        for c in word.chars() {
            let part = parts.last_mut().unwrap();
            match part.chars().last() {
                Some(last) if is_break(last) != is_break(c) => parts.push(c.into()),
                _ => part.push(c),
            }
        }
    }
    parts
}

/// What bash offers for the last of these words, which stand so on the line: each replaces what
/// stands behind the last `=` or `:` of that word.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let parts = bash_words(words);
    let last = parts.len() - 1;
    let split = parts.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let ask = format!(
        "{}\nCOMP_WORDS=({split}); COMP_CWORD={last}; COMP_TYPE=9\n\
         COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}\n\
         _clap_complete_espalier espalier 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash"),
        line = words.join(" "),
    );
    let said = run(Command::new("bash").args(["--norc", "-c", &ask]).env("PATH", path()));
    said.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
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
    assert_eq!(transports, ["auto", "io_uring", "classic"]);
    assert_eq!(bash_offers(&["espalier", "mount", "-o", "ro,transport=io"]), ["io_uring"]);
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
    assert!(zsh_offers("", &format!("espalier snapshot delete {dir} bey"), 1).starts_with("beyond"));
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
    assert_eq!(option, ["after"]);
    let begun = image.strip_suffix(".img").unwrap();
    for key in ["journal=", "noatime,disk_cache=", "metrics=unix:"] {
        assert_eq!(bash_offers(&["espalier", "mount", "-o", &format!("{key}{begun}")]), [image]);
        assert_eq!(fish_offers(&format!("espalier mount -o {key}{begun}")), [format!("{key}{image}")]);
    }
}

#[test]
fn paths_in_an_image_are_offered() {
    let place = Place::mounted("64M");
    std::fs::create_dir_all(place.dir.join("data/deep")).unwrap();
    for name in ["data/one", "data/other", "data/with space", "data/.hidden", "date"] {
        std::fs::write(place.dir.join(name), "").unwrap();
    }
    let (image, dir) = (place.image.to_str().unwrap(), place.dir.to_str().unwrap());
    espalier(&["snapshot", "create", dir, "before"]).ok();
    let inside = |path: &str| format!("{image}:{path}");
    assert_eq!(bash_offers(&["espalier", "ls", &inside("/d")]), [""; 0], "while another program has it");
    place.umount().ok();
    assert_eq!(bash_offers(&["espalier", "ls", &inside("")]), ["data/", "date"]);
    assert_eq!(bash_offers(&["espalier", "ls", &inside("/d")]), ["/data/", "/date"]);
    assert_eq!(bash_offers(&["espalier", "cat", &inside("data/o")]), ["data/one", "data/other"]);
    assert_eq!(bash_offers(&["espalier", "rm", &inside("data/.")]), ["data/.hidden"]);
    assert_eq!(bash_offers(&["espalier", "cp", image, &inside("data/w")]), ["data/with\\ space"]);
    assert_eq!(bash_offers(&["espalier", "cp", &inside("data/with\\ s")]), ["data/with\\ space"]);
    assert_eq!(bash_offers(&["espalier", "diff", &inside("/.snapshots/b")]), ["/.snapshots/before/"]);
    assert_eq!(bash_offers(&["espalier", "ls", &inside("/missing/")]), [""; 0]);
    assert_eq!(fish_offers(&format!("espalier ls {}", inside("/da"))), [inside("/data/"), inside("/date")]);
    assert_eq!(zsh_offers("", &format!("espalier export {}", inside("/dat")), 1).lines().count(), 2);
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
    assert!(zsh_offers("", &format!("espalier ws --in {dir} apply ot"), 1).starts_with("other"));
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
