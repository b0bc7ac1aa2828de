//! Damaged images: nothing crashes, nothing wrong is served, and what is not damaged is kept.

mod common;

use common::{Place, Random, content, espalier, make_tree, poke};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The regular files below a directory with their contents; `None` for what cannot be read.
fn files(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.map_while(Result::ok) {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(path),
                Ok(kind) if kind.is_file() => {
                    let name = path.strip_prefix(root).unwrap().to_owned();
                    found.insert(name, fs::read(&path).ok());
                }
                _ => {}
            }
        }
    }
    found
}

/// Damages one to six blocks that are not empty, by bits, zeros or garbage.
fn damage(image: &Path, whole: &[u8], random: &mut Random) -> Vec<u64> {
    let used: Vec<u64> = (0..whole.len() as u64 / 4096)
        .filter(|b| whole[*b as usize * 4096..][..4096].iter().any(|&x| x != 0))
        .collect();
    let mut blocks = Vec::new();
    for _ in 0..1 + random.below(6) {
        // The first superblock stays: without both nothing can be done, and that has a test of its
        // own.
        let block = used[1 + random.below(used.len() as u64 - 1) as usize];
        let at = block * 4096;
        match random.below(4) {
            0 => poke(image, at, &[0; 4096]),
            1 => poke(image, at, &random.bytes(4096)),
            _ => {
                let place = at + random.below(4096);
                poke(image, place, &[whole[place as usize] ^ 1 << random.below(8)]);
            }
        }
        blocks.push(block);
    }
    blocks
}

fn run(words: &[&OsStr]) -> common::Ran {
    let ran = espalier(words);
    assert!(matches!(ran.code, Some(0..=8)), "{words:?}: {ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{words:?}: {ran:?}");
    ran
}

/// Everything in `found` is right, or told to be lost; and what could be read before is there.
fn compare(
    what: &str,
    original: &BTreeMap<PathBuf, Option<Vec<u8>>>,
    readable: Option<&BTreeMap<PathBuf, Option<Vec<u8>>>>,
    found: &BTreeMap<PathBuf, Option<Vec<u8>>>,
    lost: &str,
) {
    for (path, data) in original {
        let right = found.get(path).is_some_and(|f| f == data);
        if right {
            continue;
        }
        if let Some(readable) = readable {
            assert!(
                readable.get(path).is_none_or(|r| r != data),
                "{what}: {path:?} was readable, and is lost"
            );
        }
        match found.get(path) {
            Some(_) => {
                let name = path.file_name().unwrap().to_string_lossy().escape_default().to_string();
                let told = lost.lines().any(|line| line.starts_with("LOST") && line.contains(&name[..2]));
                assert!(told, "{what}: {path:?} is wrong and not reported:\n{lost}");
            }
            None => assert!(lost.contains("LOST"), "{what}: {path:?} is missing and not reported:\n{lost}"),
        }
    }
}

#[test]
fn randomly_damaged_images() {
    let place = Place::mounted("128M");
    let reference = place.path("reference");
    make_tree(&reference, 77, 250);
    make_tree(&place.dir.join("tree"), 77, 250);
    place.umount().ok();
    let whole = content(&place.image);
    let original = files(&reference);
    assert!(original.len() > 100);
    let rounds = std::env::var("ESPALIER_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(15);
    let seed = std::env::var("ESPALIER_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for round in seed..seed + rounds {
        let mut random = Random(0x9e37_79b9 + round * 0x1234_5677);
        fs::write(&place.image, &whole).unwrap();
        let blocks = damage(&place.image, &whole, &mut random);
        let what = format!("ESPALIER_SEED={round}, blocks {blocks:?}");
        println!("{what}");
        let found = run(&["fsck".as_ref(), place.image.as_ref()]);
        assert!(matches!(found.code, Some(0 | 4)), "{what}: {found:?}");

        // A mount serves what is right, or errors.
        let damaged = content(&place.image);
        let mounted = place.mount(&["-o", "ro"]).code == Some(0);
        let readable = mounted.then(|| files(&place.dir.join("tree")));
        if mounted {
            place.umount().ok();
        }
        for (path, data) in readable.iter().flatten().filter(|(_, data)| data.is_some()) {
            assert!(original.get(path) == Some(data), "{what}: {path:?} is served wrong");
        }
        assert!(content(&place.image) == damaged, "{what}: looking changed the image");

        let out = place.path("out");
        let ran = run(&["salvage".as_ref(), place.image.as_ref(), out.as_ref()]);
        assert_eq!(ran.code, Some(0), "{what}: {ran:?}");
        assert!(content(&place.image) == damaged, "{what}: salvage changed the image");
        let list = fs::read_to_string(place.path("out.lost")).unwrap_or_default();
        compare(&what, &original, readable.as_ref(), &files(&out.join("tree")), &list);

        let list = place.path("list");
        let words = ["fsck".as_ref(), "--repair".as_ref(), "--lost".as_ref(), list.as_os_str()];
        let ran = run(&[&words[..], &[place.image.as_ref()]].concat());
        assert!(matches!(ran.code, Some(0 | 1)), "{what}: {ran:?}");
        let told = fs::read_to_string(&list).unwrap_or_default();
        place.fsck().ok();
        place.mount(&[]).ok();
        compare(&what, &original, readable.as_ref(), &files(&place.dir.join("tree")), &told);
        fs::write(place.dir.join("new"), "work goes on").unwrap();
        place.umount().ok();
        place.fsck().ok();
        fs::remove_dir_all(&out).unwrap();
        let _ = (fs::remove_file(place.path("out.lost")), fs::remove_file(&list));
    }
}

/// A tree beside the image, and the same, with its times, on the mount: rsync looks at them, and
/// what is made twice may come to lie on two sides of a second.
fn with_reference(place: &Place, seed: u64, files: usize) -> PathBuf {
    let reference = place.path("reference");
    make_tree(&reference, seed, files);
    common::run(Command::new("cp").arg("-a").arg(&reference).arg(place.dir.join("tree")));
    reference
}

#[test]
fn a_sound_image_is_salvaged_whole_and_needs_no_repair() {
    let place = Place::mounted("128M");
    let reference = with_reference(&place, 5, 120);
    place.umount().ok();
    let whole = content(&place.image);
    let out = place.path("out");
    let said = espalier(&["salvage".as_ref(), place.image.as_os_str(), out.as_os_str()]).ok();
    assert!(said.contains("copied") && !place.path("out.lost").exists(), "{said}");
    common::assert_same_tree(&reference, &out.join("tree"));
    assert!(content(&place.image) == whole);
    espalier(&["salvage".as_ref(), place.image.as_os_str(), out.as_os_str()])
        .refused(1, &["no empty directory"]);
    let said = espalier(&["fsck".as_ref(), "--repair".as_ref(), place.image.as_os_str()]).ok();
    assert!(said.contains("nothing to repair"), "{said}");
    place.remount_after_nothing();
    common::assert_same_tree(&reference, &place.dir.join("tree"));
    // What is mounted is left alone.
    let here = place.dir.to_string_lossy().into_owned();
    espalier(&["fsck".as_ref(), "--repair".as_ref(), place.image.as_os_str()])
        .refused(8, &["mounted", &here]);
}

#[test]
fn scrub_reads_everything_and_names_what_is_damaged() {
    let place = Place::mounted("128M");
    let data = Random(9).bytes(3 << 20);
    fs::write(place.dir.join("precious"), &data).unwrap();
    place.remount();
    let scrub = || espalier(&["scrub".as_ref(), "--rate".as_ref(), "1G".as_ref(), place.dir.as_os_str()]);
    let said = scrub().ok();
    assert!(said.contains("is what was written"), "{said}");
    // Behind the server's back.
    let whole = content(&place.image);
    let at = whole.windows(64).position(|window| window == &data[1 << 20..][..64]).unwrap();
    poke(&place.image, at as u64, &[whole[at] ^ 1]);
    let ran = scrub();
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stdout.contains("/precious"), "{ran:?}");
    poke(&place.image, at as u64, &[whole[at]]);
    scrub().ok();
    espalier(&["scrub".as_ref(), place.base.path().as_os_str()]).refused(1, &["no Espalier file system"]);
}

/// A name is a line of its own in no list, and no order to a terminal.
#[test]
fn names_forge_no_list_of_losses() {
    let place = Place::mounted("128M");
    let data = Random(4).bytes(1 << 20);
    let name = "a\nLOST\tpasswd\tgone\x1b[2J";
    fs::write(place.dir.join(name), &data).unwrap();
    // Not all of them can be made where the way is longer.
    let long = format!("{name}{}", "x".repeat(220));
    fs::create_dir_all((0..15).fold(place.dir.clone(), |above, _| above.join(&long))).unwrap();
    place.umount().ok();
    let whole = content(&place.image);
    let at = whole.windows(64).position(|window| window == &data[1 << 19..][..64]).unwrap();
    poke(&place.image, at as u64, &[whole[at] ^ 1]);
    let above = place.path(&"o".repeat(250)).join("o".repeat(250));
    fs::create_dir_all(&above).unwrap();
    let out = above.join("out");
    let said = espalier(&["salvage".as_ref(), place.image.as_os_str(), out.as_os_str()]).ok();
    let salvaged = fs::read_to_string(above.join("out.lost")).unwrap();
    assert!(salvaged.contains("xxx"), "{salvaged}");
    let list = place.path("list");
    let words = ["fsck".as_ref(), "--repair".as_ref(), "--lost".as_ref(), list.as_os_str()];
    let ran = run(&[&words[..], &[place.image.as_ref()]].concat());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for text in [said, salvaged, ran.stdout, fs::read_to_string(&list).unwrap()] {
        assert!(text.contains("LOST\t") && text.contains(r"passwd\tgone"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("LOST\tpasswd")), "{text}");
    }
}

/// What another program wrote over the beginning of a device is not mounted any more, and not
/// repaired in place if it is a file system; what is behind it is found again.
#[test]
fn the_spare_superblock_brings_everything_back() {
    let place = Place::mounted("64M");
    let reference = with_reference(&place, 3, 60);
    place.umount().ok();
    poke(&place.image, 0, &[0; 32 * 4096]);
    let damaged = content(&place.image);
    place.mount(&[]).refused(1, &["Espalier"]);
    let out = place.path("out");
    let said = espalier(&["salvage".as_ref(), place.image.as_os_str(), out.as_os_str()]).ok();
    assert!(said.contains("0 losses"), "{said}");
    common::assert_same_tree(&reference, &out.join("tree"));
    assert!(content(&place.image) == damaged, "salvage changed the image");

    poke(&place.image, 0x438, &[0x53, 0xef]);
    espalier(&["fsck".as_ref(), "--repair".as_ref(), place.image.as_os_str()])
        .refused(8, &["ext2, ext3 or ext4", "salvage"]);
    poke(&place.image, 0x438, &[0; 2]);
    let ran = espalier(&["fsck".as_ref(), "--repair".as_ref(), place.image.as_os_str()]);
    assert!(ran.code == Some(1) && ran.stdout.contains("0 losses"), "{ran:?}");
    place.fsck().ok();
    place.mount(&[]).ok();
    common::assert_same_tree(&reference, &place.dir.join("tree"));
}

#[test]
fn without_superblocks_nothing_is_guessed() {
    let place = Place::with_image("64M");
    poke(&place.image, 100, b"damage");
    poke(&place.image, 16 * 4096 + 100, b"damage");
    poke(&place.image, (64 << 20) - 4096 + 100, b"damage");
    let before = content(&place.image);
    espalier(&["fsck".as_ref(), "--repair".as_ref(), place.image.as_os_str()]).refused(8, &["superblock"]);
    let out = place.path("out");
    espalier(&["salvage".as_ref(), place.image.as_os_str(), out.as_os_str()]).refused(1, &["superblock"]);
    assert!(content(&place.image) == before);
}
