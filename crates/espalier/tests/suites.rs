//! Other people's test suites on a mount: pjdfstest and fsx.
//!
//! docs/conformance.md lists, with a reason each, what is expected to fail. A failure that is not
//! listed fails this test; so does a listed one that passes, and a test that is skipped here but
//! not on ext4.

mod common;

use common::{Place, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that scripts/install-deps has installed.
fn tool(name: &str) -> PathBuf {
    let cache = std::env::var_os("ESPALIER_TOOLS").map(PathBuf::from).unwrap_or_else(|| {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        base.expect("HOME is set").join("espalier/tools")
    });
    let path = cache.join("bin").join(name);
    assert!(path.exists(), "{} is missing: run scripts/install-deps test", path.display());
    path
}

/// The tests that docs/conformance.md lists: rows `| suite | `test` | reason |`; `suite` is
/// `pjdfstest` for those expected to fail, `pjdfstest skips` for those that cannot run here though
/// ext4 runs them.
fn listed(suite: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut expected = BTreeSet::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [of, test, reason] = cells[..] else { continue };
        if of != suite {
            continue;
        }
        assert!(reason.len() > 10, "'{test}' is listed without a reason");
        expected.insert(test.trim_matches('`').to_owned());
    }
    expected
}

/// How each test of pjdfstest ended (`ok`, `FAILED`, `skipped`), and all it printed.
fn pjdfstest(dir: &Path) -> (BTreeMap<String, String>, String) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let configuration = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites/pjdfstest.toml");
    let mut command = Command::new(tool("pjdfstest"));
    command.arg("-c").arg(configuration).arg("-p").arg(dir).env("NO_COLOR", "1").stdin(Stdio::null());
    // The exit status says less than the lines.
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut results = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('\t')) {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(result @ ("ok" | "FAILED" | "skipped")), None) =
            (words.next(), words.next(), words.next())
        {
            results.insert(name.to_owned(), result.to_owned());
        }
    }
    assert!(
        results.len() > 300,
        "pjdfstest ran {} tests: {}",
        results.len(),
        String::from_utf8_lossy(&out.stderr)
    );
    (results, text)
}

/// The same on ext4, to know which tests this machine cannot run at all.
fn pjdfstest_on_ext4() -> BTreeMap<String, String> {
    let place = Place::new();
    fs::File::create(&place.image).unwrap().set_len(256 << 20).unwrap();
    run(Command::new("mkfs.ext4").arg("-q").arg(&place.image));
    run(Command::new("mount").args(["-o", "loop"]).args([&place.image, &place.dir]));
    let results = std::panic::catch_unwind(|| pjdfstest(&place.dir).0);
    run(Command::new("umount").arg(&place.dir));
    results.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn pjdfstest_fails_only_where_it_is_expected_to() {
    let reference = pjdfstest_on_ext4();
    let place = Place::mounted("1G");
    let (results, text) = pjdfstest(&place.dir);
    place.umount().ok();
    place.fsck().ok();

    let (expected, skips) = (listed("pjdfstest"), listed("pjdfstest skips"));
    let mut wrong = Vec::new();
    for (name, result) in &results {
        let on_ext4 = reference.get(name).map_or("absent", |r| r.as_str());
        match (result.as_str(), expected.contains(name)) {
            ("ok", true) => wrong.push(format!("{name} passes: take it out of docs/conformance.md")),
            ("FAILED", false) => wrong.push(format!("{name} fails; on ext4: {on_ext4}")),
            ("skipped", _) if on_ext4 != "skipped" && !skips.contains(name) => {
                wrong.push(format!("{name} is skipped; on ext4: {on_ext4}"))
            }
            _ => {}
        }
    }
    let unneeded = skips.iter().filter(|name| results.get(*name).is_some_and(|r| r != "skipped"));
    wrong.extend(unneeded.map(|name| format!("{name} is not skipped: take it out of docs/conformance.md")));
    let unknown = expected.union(&skips).filter(|name| !results.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("{name} is in docs/conformance.md and in no suite")));
    let count = |what: &str| results.values().filter(|r| *r == what).count();
    println!("pjdfstest: {} ok, {} failed, {} skipped", count("ok"), count("FAILED"), count("skipped"));
    if !wrong.is_empty() {
        let details: Vec<&str> =
            text.lines().filter(|l| l.contains("FAILED") || l.starts_with('\t')).collect();
        panic!("{}\n\n{}", wrong.join("\n"), details.join("\n"));
    }
}

#[test]
fn fsx_finds_no_wrong_byte() {
    let configuration = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites/fsx.toml");
    for (seed, options) in [("1", ""), ("20", "transport=classic"), ("300", "writeback")] {
        let place = Place::with_image("512M");
        place.mount(&["-o", options]).ok();
        let mut command = Command::new(tool("fsx"));
        command.arg("-f").arg(&configuration).args(["-N", "8000", "-S", seed, "-P"]);
        command.arg(place.base.path()).arg(place.dir.join("file")).stdin(Stdio::null());
        let out = command.output().unwrap();
        assert!(
            out.status.success(),
            "fsx -S {seed} on a mount with '{options}': {}\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        place.umount().ok();
        place.fsck().ok();
    }
}
