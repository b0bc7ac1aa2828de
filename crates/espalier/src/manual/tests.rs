use super::*;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

mod commands;
mod said;

/// mandoc(1) knows what pages look like.
#[test]
fn mandoc_has_nothing_to_say_about_the_pages() {
    for page in pages().unwrap() {
        let mut lint = Command::new("mandoc")
            .args(["-T", "lint"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("mandoc is installed (scripts/install-deps test)");
        lint.stdin.take().unwrap().write_all(&page.text).unwrap();
        let said = lint.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said, "", "{}({})", page.name, page.section);
    }
}

#[test]
fn every_command_has_a_page_and_pages_lead_to_pages() {
    let pages = pages().unwrap();
    let name = |page: &Page| format!("{}({})", page.name, page.section);
    let names: Vec<String> = pages.iter().map(name).collect();
    for wanted in ["espalier(1)", "espalier-mount(1)", "espalier-snapshot-create(1)", "mount.espalier(8)"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted}: {names:?}");
    }
    for page in &pages {
        let text = String::from_utf8_lossy(&page.text).replace("\\fB", "").replace("\\fR", "");
        let text = text.replace(".BR ", "").replace(" (", "(").replace("))", ")").replace("\\-", "-");
        for word in text.split(|c: char| c.is_whitespace() || ",;".contains(c)) {
            let word = word.trim_end_matches('.');
            let page_of_ours = word.starts_with("espalier") && word.ends_with(')') && word.contains('(');
            assert!(!page_of_ours || names.iter().any(|name| name == word), "{} names {word}", page.name);
        }
    }
}

/// The program is a script, so nothing but this holds its page to it.
#[test]
fn the_page_of_git_espalier_has_what_its_usage_has() {
    let program = include_str!("../../../../integrations/git-espalier/git-espalier");
    let usage = program.split("USAGE").nth(1).unwrap().split("\n\n").next().unwrap();
    let pages = pages().unwrap();
    let page = pages.iter().find(|page| page.name == "git-espalier").unwrap();
    let text = String::from_utf8_lossy(&page.text).replace("\\-", "-");
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| c.is_whitespace() || "[]()|<>'\"".contains(c));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let (wanted, found) = (words(usage), words(&text));
    let missing: Vec<_> =
        wanted.difference(&found).filter(|word| *word != "usage:" && *word != "or:").collect();
    assert!(wanted.len() > 15 && missing.is_empty(), "{missing:?}");
}

/// What the page of the program calls errors of the engine, by kind.
const DIAGNOSTICS: [(&str, &str); 12] = [
    ("Io", "the device fails"),
    ("Damaged", "is damaged"),
    ("NotAStore", "holds no Espalier file system"),
    ("NewerFormat", "was written by a newer Espalier"),
    ("NoSpace", "is full"),
    ("ReadOnly", "is read\\-only"),
    ("Busy", "is in use"),
    ("InvalidArgument", "invalid argument"),
    ("NotFound", "there is no such"),
    ("AlreadyExists", "exists already"),
    ("Interrupted", "given up"),
    ("Gone", "was replaced"),
];

#[test]
fn every_kind_of_error_has_a_section() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../espalier-engine/src/model/error.rs");
    let source = fs::read_to_string(source).unwrap();
    let kinds = source.split("pub enum ErrorKind {").nth(1).unwrap().split("\n}").next().unwrap();
    let kinds: Vec<&str> = kinds
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
        .filter(|line| !line.contains('/'))
        .collect();
    let kinds: Vec<&str> = kinds.into_iter().filter(|kind| !kind.is_empty()).collect();
    assert_eq!(kinds, DIAGNOSTICS.map(|(kind, _)| kind));
    let pages = pages().unwrap();
    let text = String::from_utf8_lossy(&pages[0].text).into_owned();
    for (kind, name) in DIAGNOSTICS {
        assert!(text.contains(&format!("\n.BR \"{name}\"")), "{kind}: {name}");
    }
}

/// Errors that mean on a mount what they mean everywhere.
const AS_EVERYWHERE: [&str; 14] = [
    "ENOTDIR",
    "EISDIR",
    "ENOTEMPTY",
    "ENAMETOOLONG",
    "EACCES",
    "EMLINK",
    "EFBIG",
    "ENODATA",
    "ERANGE",
    "E2BIG",
    "ENXIO",
    "ELOOP",
    "EOPNOTSUPP",
    "EBUSY",
];

/// What programs in a mount are told by number.
#[test]
fn every_number_of_an_error_has_a_section_or_means_what_it_means_everywhere() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../espalier-fs/src/model/error.rs");
    let source = fs::read_to_string(source).unwrap();
    let kinds = source.split("pub enum FsErrorKind {").nth(1).unwrap().split("\n}").next().unwrap();
    let numbers: Vec<&str> =
        kinds.lines().filter_map(|line| line.rsplit_once('(')?.1.strip_suffix(").")).collect();
    assert!(numbers.len() > 20 && AS_EVERYWHERE.iter().all(|number| numbers.contains(number)), "{numbers:?}");
    let pages = pages().unwrap();
    let text = String::from_utf8_lossy(&pages[0].text).into_owned();
    for number in numbers {
        let has_section = text.lines().any(|line| line.starts_with(".BR \"") && line.contains(number));
        assert!(has_section || AS_EVERYWHERE.contains(&number), "{number}");
    }
}

/// Where errors stand, and for each what the page calls it: words of its text, or what makes the
/// text and words of it.
type Sections = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const SECTIONS: [Sections; 3] = [
    (
        "espalier-fuse/src/mount/error.rs",
        "MountError",
        &[
            ("must be a directory that exists", ""),
            ("is not empty", ""),
            ("cannot open /dev/fuse", ""),
            ("fusermount3 cannot mount on", ""),
            ("cannot mount on", ""),
            ("cannot run fusermount3", ""),
            ("cannot be served", ""),
        ],
    ),
    (
        "espalier-workspace/src/error.rs",
        "Error",
        &[
            ("does not lie in a mounted Espalier file system", ""),
            ("belongs to another user", ""),
            ("a workspace is never merged into what is there", ""),
            ("there is no workspace", ""),
            ("is gone", ""),
            ("several workspaces are called", ""),
            ("in_use(", "is in use by"),
            ("changed paths that were not applied", ""),
            ("that an undo set aside", ""),
            ("lonely(", "commits that are nowhere else"),
            ("may have commits that are nowhere else", ""),
            ("has the repository of linked worktrees that lie elsewhere", ""),
            ("a crash interrupted its promotion", ""),
            ("/proc is not mounted", ""),
            ("something is mounted on", ""),
            ("was changed there meanwhile", ""),
            ("what was there before is kept in", ""),
        ],
    ),
    (
        "espalier-client/src/error.rs",
        "Error",
        &[
            ("no server takes this client", ""),
            ("the server went away", ""),
            ("does not keep to the protocol", ""),
            ("too long for one call", ""),
        ],
    ),
];

/// Texts that hand on what another one says.
const HANDED_ON: [&str; 5] =
    ["\"{0}\"", "\"{message}\"", "\"{}: {source}\"", "\"{}: {what}\"", "\"{program}: {what}\""];

#[test]
fn every_error_of_mounts_workspaces_and_clients_has_a_section() {
    let pages = pages().unwrap();
    let text = String::from_utf8_lossy(&pages[0].text).into_owned();
    for (file, name, sections) in SECTIONS {
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        let source = fs::read_to_string(path).unwrap();
        let kinds = source.split(&format!("pub enum {name} {{")).nth(1).unwrap().split("\n}").next().unwrap();
        let mut met = 0;
        for said in kinds.split("#[error(").skip(1) {
            let said = said.split(")]").next().unwrap().replace(" \\\n         ", " ");
            if HANDED_ON.iter().any(|text| said.trim().starts_with(text)) {
                continue;
            }
            let section = sections.iter().find(|(words, _)| said.contains(words));
            let (words, shown) = section.unwrap_or_else(|| panic!("{file}: no section for {said}"));
            let shown = if shown.is_empty() { words } else { shown };
            assert!(source.contains(shown) || said.contains(shown), "{file}: {shown}");
            assert!(text.contains(&format!("\n.BR \"{shown}\"")), "{file}: {shown}");
            met += 1;
        }
        assert_eq!(met, sections.len(), "{file}: a section for what is not said any more");
    }
}

/// Where an object store says what the page explains.
#[test]
fn sections_for_object_stores_have_the_words_of_their_messages() {
    let pages = pages().unwrap();
    let text = String::from_utf8_lossy(&pages[0].text).into_owned();
    for (file, said) in [
        ("claim", "has it open for writing"),
        ("line", "took the store over"),
        ("../requests", "counts to its last epoch or generation"),
        ("error", "check the credentials"),
        ("../bucket/url", "a store is"),
        ("../bucket/url", "a directory is written file:///PATH"),
        ("../bucket/url", "is missing, or has characters that none has"),
        ("../bucket/url", "may stand behind the question mark"),
        ("../bucket/url/hosts", "is no known host of an object store"),
        ("../bucket/services", "this program was built without"),
        ("probe", "does not honour the condition of a put"),
        ("probe", "has no conditional puts"),
        ("probe", "refuses a put whose condition holds"),
        ("open", "there is no store; make one"),
        ("open", "a store is there already"),
        ("open", "another program made a store there"),
        ("open", "a journal is for writing"),
        ("claim", "it syncs so often"),
        ("claim", "did not end in order and had a journal"),
        ("inner", "nothing is written since an earlier failure"),
        ("../journal", "it is no journal of a store"),
        ("../journal", "is too small; it needs"),
        ("../disk_cache", "is too small; at least"),
        ("../disk_cache", "has this disk cache in use"),
        ("../bucket/remote", "no reply to"),
        ("../bucket/services", "name the storage account"),
        ("../bucket/url", "endpoint is http://HOST:PORT"),
        ("open", "a device has 4 KiB to 16 TiB"),
        ("probe", "tells no versions of objects"),
        ("inner", "it has named as many objects as one mount may"),
        ("claim", "may not have reached the store"),
        ("../journal", "was synced and cannot be read"),
    ] {
        let path = format!("{}/../espalier-object/src/device/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        assert!(fs::read_to_string(path).unwrap().contains(said), "{file}: {said}");
        assert!(text.contains(&format!("\"{said}\"")), "{said}");
    }
}
