//! What commands tell people on a terminal, and scripts as JSON.

mod common;

use common::{Loop, Place, Ran, content, espalier, poke, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;

/// What a command prints on a terminal.
fn on_terminal(words: &[&OsStr]) -> String {
    let words = [&[OsStr::new(env!("CARGO_BIN_EXE_espalier"))][..], words].concat();
    let line = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
    run(Command::new("script").args(["--quiet", "--return", "--command", &line, "/dev/null"]))
}

#[test]
fn mkfs_on_a_terminal_says_what_it_writes_to() {
    let place = Place::new();
    let image = place.image.as_os_str();
    let mkfs = ["mkfs", "--size", "64M"].map(OsStr::new);
    let said = on_terminal(&[&mkfs[..], &[image]].concat());
    assert!(said.contains("a.img: a new image file of 64 MiB"), "{said}");
    let again = ["mkfs", "--force"].map(OsStr::new);
    let said = on_terminal(&[&again[..], &[image]].concat());
    assert!(said.contains("an image file of 64 MiB, which holds an Espalier file system"), "{said}");
    // A device has a size and a name of its maker; that of a loop device is its file.
    let device = Loop::on(&place.image);
    let said = on_terminal(&[&again[..], &[device.0.as_os_str()]].concat());
    let told = format!("a block device of 64 MiB ({}), which holds an Espalier", place.image.display());
    assert!(said.contains(&told), "{said}");
    assert!(!espalier(&[&again[..], &[image]].concat()).ok().contains("holds"), "a pipe is no terminal");
}

#[test]
fn bench_says_what_it_does_not_do() {
    let place = Place::new();
    let missing = place.base.path().join("missing");
    espalier(&["bench".as_ref(), missing.as_os_str()]).refused(1, &["missing cannot be used"]);
    espalier(&["bench", "--device", "/dev/null"]).refused(2, &["--force"]);
    let scratch = place.base.path().join("scratch");
    let words = [
        "bench".as_ref(),
        "--contenders".as_ref(),
        "fat".as_ref(),
        "--scratch".as_ref(),
        scratch.as_os_str(),
    ];
    espalier(&words).refused(1, &["'fat' is no contender"]);
    let page = place.base.path().join("none/page.html");
    let words = ["bench".as_ref(), "--html".as_ref(), page.as_os_str(), place.dir.as_os_str()];
    espalier(&words).refused(1, &["page.html cannot be written"]);
    assert!(fs::read_dir(&place.dir).unwrap().next().is_none(), "work is left behind");
    let page = place.base.path().join("page.html");
    fs::write(&page, "of last year").unwrap();
    let words = ["bench".as_ref(), "--html".as_ref(), page.as_os_str(), missing.as_os_str()];
    espalier(&words).refused(1, &["missing cannot be used"]);
    assert_eq!(fs::read_to_string(&page).unwrap(), "of last year");
    // Where there was no page there is none, also where a link leads.
    let (page, link) = (place.base.path().join("new.html"), place.base.path().join("link.html"));
    std::os::unix::fs::symlink("linked.html", &link).unwrap();
    for page in [&page, &link] {
        let words = ["bench".as_ref(), "--html".as_ref(), page.as_os_str(), missing.as_os_str()];
        espalier(&words).refused(1, &["missing cannot be used"]);
        assert!(!page.exists(), "an empty page is left behind");
    }
    assert!(link.is_symlink());
}

fn fsck_json(place: &Place, more: &[&str]) -> (Ran, Value) {
    let words = ["fsck", "--json"].iter().chain(more).map(OsStr::new).chain([place.image.as_os_str()]);
    let ran = espalier(&words.collect::<Vec<_>>());
    let told = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    (ran, told)
}

#[test]
fn fsck_tells_json_of_clean_damaged_and_repaired_images() {
    let place = Place::mounted("64M");
    let data: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(place.dir.join("file"), &data).unwrap();
    fs::create_dir(place.dir.join("dir")).unwrap();
    espalier(&["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "s".as_ref()]).ok();
    place.umount().ok();
    let (ran, told) = fsck_json(&place, &["--snapshots"]);
    assert_eq!((ran.code, &told["clean"], &told["files"]), (Some(0), &true.into(), &1.into()), "{told}");
    assert_eq!((&told["snapshots_checked"], &told["problems"]), (&1.into(), &Value::Array(vec![])), "{told}");
    // The data lies in the log and, since the checkpoint of the unmount, behind it.
    let image = content(&place.image);
    let damaged: Vec<usize> = (0..image.len() - 64).filter(|&at| image[at..at + 64] == data[..64]).collect();
    assert!(!damaged.is_empty(), "the data is not in the image");
    damaged.iter().for_each(|&at| poke(&place.image, at as u64, b"rot"));
    let (ran, told) = fsck_json(&place, &[]);
    assert_eq!((ran.code, &told["clean"]), (Some(4), &false.into()), "{told}");
    assert!(
        told["problems"][0]["place"] == "data of /file" && told["problem_count"].as_u64() > Some(0),
        "{told}"
    );
    let (ran, told) = fsck_json(&place, &["--repair"]);
    assert_eq!((ran.code, &told["repaired"]), (Some(1), &true.into()), "{told}");
    assert!(fs::metadata(told["list"].as_str().unwrap()).unwrap().len() > 0, "{told}");
    assert_eq!(fsck_json(&place, &["--repair"]).1["repaired"], false);
    assert_eq!(fsck_json(&place, &[]).1["clean"], true);
}

#[test]
fn clone_says_where_it_went_or_refuses() {
    let place = Place::mounted("64M");
    let at = |name: &str| place.dir.join(name);
    for dir in ["project", "work"] {
        fs::create_dir(at(dir)).unwrap();
    }
    let clone = |words: &[&str], from: &OsStr, to: &OsStr| {
        let words = ["clone"].iter().chain(words).map(OsStr::new).chain([from, to]);
        espalier(&words.collect::<Vec<_>>())
    };
    let (project, work) = (at("project"), at("work"));
    clone(&["-T"], project.as_os_str(), work.as_os_str()).refused(1, &["work exists already"]);
    let said = clone(&[], project.as_os_str(), work.as_os_str()).ok();
    assert!(said.contains("work is a directory") && said.contains("work/project"), "{said}");
    assert_eq!(clone(&["-T"], project.as_os_str(), at("other").as_os_str()).ok(), "");
    place.umount().ok();
    let inside = |path: &str| std::ffi::OsString::from(format!("{}:{path}", place.image.display()));
    clone(&["-T"], &inside("project"), &inside("other")).refused(1, &["other exists already"]);
    let said = clone(&[], &inside("project"), &inside("other")).ok();
    assert!(said.contains("/other/project"), "{said}");
}

#[test]
fn a_full_store_is_told_how_to_grow() {
    let place = Place::mounted("64M");
    let mut big = fs::File::create(place.dir.join("big")).unwrap();
    let block = vec![7; 1 << 20];
    while std::io::Write::write_all(&mut big, &block).is_ok() {}
    drop(big);
    let said = espalier(&["info".as_ref(), place.dir.as_os_str()]).ok();
    assert!(said.contains("espalier resize"), "{said}");
    fs::remove_file(place.dir.join("big")).unwrap();
}
