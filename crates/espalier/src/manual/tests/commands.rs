//! Every error of the program stands in its page.

use super::pages;
use super::said::{Said, messages};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// For each source of the program words of its messages that are headings of the page: each message
/// has some of them.
const HEADINGS: &[(&str, &[&str])] = &[
    ("archive/acl_text.rs", &["an access control list is no text", "is no entry of an access control list"]),
    ("archive/numbers.rs", &["a header", "is too large", "is no octal number", "is no time"]),
    ("archive/pax.rs", &["a pax header"]),
    (
        "archive/reader.rs",
        &[
            "the archive is compressed with",
            "headers in a row",
            "a map of holes",
            "a header",
            "are not known, and left out",
            "a file with holes",
            "is too large",
            "a size",
            "is no id",
            "this is no tar archive",
            "the archive is cut off",
            "are read",
        ],
    ),
    ("archive/sparse.rs", &["a map of holes", "a file with more than", "a size", "is no number"]),
    ("args.rs", &["the directory to mount at is missing", "is no name of this program", "-o needs options"]),
    ("backing.rs", &["there is no store"]),
    (
        "backing/object_options.rs",
        &["are for object stores, not for images", "mount option", "there is no room for it"],
    ),
    ("bench.rs", &["all that is on the device would be lost", "this program is without suites"]),
    ("espalier-bench/compare.rs", &["no rounds, no figures", "needs root", "have to be free"]),
    ("espalier-bench/compare/plan.rs", &["is no block device", "cannot be had alone", "are needed"]),
    ("espalier-bench/compare/site.rs", &["have to be free", "if an earlier run left it"]),
    (
        "espalier-bench/contender.rs",
        &["is no contender", "is the program that", "there is no program", "does not do direct I/O"],
    ),
    (
        "espalier-bench/options.rs",
        &[
            "is no contender",
            "is no step of this suite",
            "no rounds, no figures",
            "is no size",
            "is too large",
        ],
    ),
    ("espalier-bench/system.rs", &["need root"]),
    ("espalier-bench/tree.rs", &["name another tar archive"]),
    ("espalier-object/bucket.rs", &["is not what Espalier has put there"]),
    (
        "espalier-object/bucket/remote.rs",
        &["no reply to", "which is more than this program takes into memory"],
    ),
    ("espalier-object/bucket/services.rs", &["this program was built without"]),
    (
        "espalier-object/bucket/url.rs",
        &[
            "a store is",
            "a directory is written file:///PATH",
            "is missing, or has characters that none has",
            "may stand behind the question mark",
            "endpoint is http://HOST:PORT",
            "https://HOST/PATH with the host of a service",
            "is a name of letters and digits",
        ],
    ),
    (
        "espalier-object/bucket/url/hosts.rs",
        &["is no known host of an object store", "write the path without %XX"],
    ),
    (
        "espalier-object/device/claim.rs",
        &["has it open for writing", "it syncs so often", "may not have reached the store"],
    ),
    ("espalier-object/device/error.rs", &["was replaced"]),
    ("espalier-object/device/line.rs", &["took the store over"]),
    ("espalier-object/device/newer.rs", &["the store was deleted"]),
    ("espalier-object/device/open.rs", &["a journal is for writing", "there is no store; make one"]),
    (
        "espalier-object/device/probe.rs",
        &[
            "does not honour the condition of a put",
            "has no conditional puts",
            "refuses a put whose condition holds",
            "tells no versions of objects",
        ],
    ),
    (
        "change.rs",
        &[
            "this is for whole trees",
            "names neither owner nor group",
            "is no id",
            "give the number",
            "is no mode",
            "is no change of modes",
        ],
    ),
    (
        "clone.rs",
        &[
            "must lie in the image too",
            "lie in different file systems",
            "exists already",
            "the name has more than 255 bytes",
            "lie in different images",
        ],
    ),
    (
        "config.rs",
        &[
            "is a text in quotes",
            "can enforce options",
            "the files are not used",
            "there is no command",
            "cannot be set here",
            "is a number of times",
        ],
    ),
    ("config/file.rs", &["stands in no table", "' cannot be", "belongs to another user", "is not read"]),
    (
        "control.rs",
        &[
            "255 are allowed",
            "does not end with a name",
            "does not lie in a mounted Espalier file system",
            "you may not make or remove entries in its directory",
            "exists already",
            "is full",
            "was removed in the meantime",
            "may run as another user",
        ],
    ),
    (
        "copy.rs",
        &["is mounted at", "it was left as it is", "they must be equal", "is not complete and no store yet"],
    ),
    (
        "cp.rs",
        &[
            "several files go into a directory only",
            "it is a directory, and left out without -r",
            "it cannot be copied into itself",
            "there is nothing of that name",
        ],
    ),
    ("diff.rs", &["lie in the same image", "lie in different images", "answer is cut off"]),
    ("dying.rs", &["was killed and waits in the kernel"]),
    (
        "export.rs",
        &[
            "standard output takes an archive, and nothing else",
            "for that there is espalier cp -r",
            "an archive is not written to a terminal",
            "has no name",
        ],
    ),
    ("files/image.rs", &["a directory is needed"]),
    (
        "files/system.rs",
        &[
            "a directory is needed",
            "not a directory",
            "is a directory",
            "only a file has content",
            "the path leads through a symbolic link",
        ],
    ),
    (
        "files/tree_sink.rs",
        &[
            "the path leads through a symbolic link",
            "what is no directory",
            "and is not used",
            "the name is used for files that are not complete",
            "only a directory can be the top",
        ],
    ),
    ("fsmonitor.rs", &["git asks in version"]),
    (
        "image.rs",
        &[
            "this is done on an image only",
            "is mounted at",
            "interrupted while another process had",
            "there is no such",
            "you may not open it",
            "it cannot be written",
            "holds no Espalier file system",
            "was written by a newer Espalier",
            "is full",
            "to let go of",
            "is in use",
        ],
    ),
    ("import.rs", &["for that there is espalier cp -r"]),
    (
        "info.rs",
        &[
            "the server of this mount has died",
            "no Espalier file system is mounted there",
            "is not mounted any more",
            "is mounted with noxattr",
            "only root and the user that mounted it may",
            "is for processes of the user and of the group that mounted it",
            "does not answer",
            "of another version",
        ],
    ),
    ("label.rs", &["the label is", "may set the label"]),
    ("logging.rs", &["is no level of the log"]),
    ("ls.rs", &["no file has at least", "no time is within the last"]),
    (
        "mkfs.rs",
        &[
            "it was left as it is",
            "say how large it shall be",
            "is a directory; name an image file or a block device",
            "the label is",
            "there is no directory",
        ],
    ),
    (
        "mount.rs",
        &[
            "is mounted already",
            "follow is for mounts with ro",
            "--replace takes the directory of a mount",
            "is no directory",
            "whose server has died",
            "the server died while it was starting",
            "there is no such directory",
            "cannot be used",
            "does not answer",
            "there is no such",
            "the server cannot log to",
            "its mount was taken away",
        ],
    ),
    (
        "mount/channel.rs",
        &["came in place of", "descriptor", "it has ended", "a message", "it does not answer"],
    ),
    (
        "mount/existing.rs",
        &[
            "which cannot change now",
            "no Espalier file system is mounted there",
            "only root can remount",
            "for reading only",
            "the server cannot change the times of last access",
        ],
    ),
    ("mount/io_uring.rs", &["can make mounts of users faster"]),
    (
        "mount/options.rs",
        &[
            "is too small",
            "is not allowed here",
            "is no mount option of Espalier",
            "mount option",
            "remount is for one command",
        ],
    ),
    (
        "mount/server.rs",
        &[
            "the command was interrupted",
            "was unmounted after an internal error",
            "the lease of",
            "are not stored",
            "the next mount recovers",
        ],
    ),
    (
        "mount/take.rs",
        &[
            "hands over state",
            "the other server goes on",
            "is served by user",
            "the other server does not answer",
            "what was handed over is damaged",
            "descriptor",
        ],
    ),
    ("objects.rs", &["name an object store"]),
    (
        "place.rs",
        &[
            "is the root, which lies in no directory",
            "name a snapshot",
            "lies in a snapshot, which is not changed",
            "there is nothing of that name",
            "exists already",
            "is full",
            "a directory is needed",
            "are not stored",
        ],
    ),
    (
        "quota.rs",
        &[
            "its limits are set by root",
            "names (hard links)",
            "so it cannot count for this directory alone",
            "only directories have limits",
        ],
    ),
    (
        "repair.rs",
        &[
            "if that is of no use any more",
            "there are a thousand lists of losses already",
            "is no empty directory",
            "the repair could not be made durable",
            "nothing was repaired",
            "nothing of it can be told from anything else",
        ],
    ),
    ("scrub.rs", &["no Espalier file system is mounted there", "--rate 0 would never end"]),
    (
        "snapshot.rs",
        &[
            "is in use",
            "there is a snapshot",
            "there is no snapshot",
            "snapshots of the whole are for root",
            "cannot be the name of a snapshot here",
        ],
    ),
    (
        "space.rs",
        &[
            "no Espalier file system is mounted there",
            "a store of 0 bytes makes no sense",
            "enlarge the device first",
            "a store in an object store keeps its size",
            "cannot shrink to",
        ],
    ),
    (
        "systemd_unit.rs",
        &[
            "as a program of a unit has to",
            "systemd does not take as it is",
            "the path of this program is not known",
        ],
    ),
    (
        "umount.rs",
        &[
            "nothing is mounted there",
            "is a mount of type",
            "is busy",
            "there is no such directory",
            "cannot be unmounted",
            "its server goes on",
            "still waits in the kernel",
        ],
    ),
    ("units.rs", &["is no size", "is no time; write a number", "is too large", "is too long"]),
    ("watch/address.rs", &["can be reached from other machines", "is no address"]),
    ("watch/endpoint.rs", &["no metrics can be had at"]),
    ("watch/stat.rs", &["--interval is a number of seconds"]),
    ("watch/top.rs", &["standard output is no terminal", "--interval is a number of seconds"]),
    ("watch/trace.rs", &["no trace can be begun"]),
    ("workspace/apply.rs", &["nothing was changed, because of"]),
    ("workspace/asked.rs", &["there is no such path in the workspace"]),
    ("workspace/create.rs", &["--count 0 makes nothing"]),
];

/// Messages without a heading: a source, or the beginning of some, words, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("demo", "", "the demonstration tells a story, and shows what a failed step said"),
    ("manual", "", "pages are made when the program is built, and a test makes all of them"),
    ("mount/give.rs", "", "the other command shows it behind 'the other server goes on'"),
    ("archive/acl_text.rs", "it has", "stands behind 'is no entry of an access control list'"),
    ("archive/acl_text.rs", "is not known", "stands behind 'is no entry of an access control list'"),
    ("archive/acl_text.rs", "is no permission", "stands behind 'is no entry of an access control list'"),
    ("archive/acl_text.rs", "there is no", "stands behind 'is no entry of an access control list'"),
    ("archive/reader.rs", "the archive cannot be read", "the reason follows, as behind 'cannot be'"),
    ("espalier-bench/", "", "a step of the benchmark went wrong, and says what a program or the system said"),
    ("espalier-object/bucket/", "thread", "internal, or the system has no thread, and says so"),
    ("espalier-object/bucket/", "cannot make", "the reason of the system follows"),
    ("espalier-object/bucket/directory.rs", "", "what the system says follows, or the root is read again"),
    ("espalier-object/bucket/failures.rs", "", "what servers say, to be told apart"),
    ("espalier-object/bucket/services.rs", "(feature ", "stands behind 'this program was built without'"),
    ("espalier-object/bucket/services.rs", "is of another service", "internal: the caller has looked"),
    ("espalier-object/device/check.rs", "", "damage, named with its object"),
    ("espalier-object/device/journaled.rs", "", "damage, named with its journal"),
    ("espalier-object/device/line.rs", "", "stands in front of 'took the store over'"),
    ("espalier-object/device/probe.rs", "If-", "stands in 'does not honour the condition of a put'"),
    ("espalier-object/device/probe.rs", "another reply", "internal: a client of the server that is wrong"),
    ("espalier-object/device/read.rs", "", "damage, named with its object"),
    ("espalier-object/device/tables.rs", "", "damage, named with its object"),
    ("espalier-object/disk_cache.rs", "it is", "stands behind 'cannot be'"),
    ("espalier-object/fetches.rs", "", "damage, named with its object, or internal"),
    ("espalier-object/format/", "", "damage, named with its object"),
    ("espalier-object/journal/record.rs", "", "damage, named with its journal"),
    ("espalier-object/segment.rs", "", "the failure of the put is told before"),
    ("espalier-object/simulated.rs", "", "for tests"),
    ("files/", "is told wrong", "internal: a list of extents that no file system gives"),
    ("files/system.rs", "(os error", "no message, but where one of the system ends"),
    ("image.rs", "restore it from a backup", "advice behind the heading 'is damaged'"),
    ("image.rs", "see the kernel log", "advice behind the heading 'the device fails'"),
    ("ls.rs", "permission denied", "what the system says, and means everywhere"),
    ("mount.rs", "has died", "the reason why its mount cannot be taken away follows"),
    ("mount/server.rs", "the server gives up and unmounts", "the reason follows"),
    ("mount/server.rs", "espalier snapshot list shows all", "'there is no such' follows"),
    ("mount/take.rs", "the other server", "what that one says follows"),
    ("mount/take.rs", "runs with other options", "the option and 'is no mount option' follow"),
    ("watch/endpoint.rs", "this is no complete request", "told to a program that reads metrics"),
];

/// The heading of all contexts that say it and have no heading of their own: their reason follows.
const CONTEXT: &str = "cannot be";

/// Where the sections begin that are held here to have no heading for what is not said.
const FIRST_SECTION: &str = "\n.SS Images and stores\n";

/// The headings of entries in a part of the page.
fn headings(page: &str) -> BTreeSet<String> {
    let entries = page.split(".TP\n.BR ").skip(1).filter_map(|entry| entry.lines().next());
    // What is quoted is bold and plain in turn.
    let bold = entries.flat_map(|line| line.split('"').skip(1).step_by(4));
    bold.map(|words| words.replace("\\-", "-").replace("\\(aq", "'")).collect()
}

/// The sources of the program, of benchmarks and object stores, but for tests, with their names.
fn sources() -> Vec<(String, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let benchmarks = below(&top.join("../espalier-bench/src")).into_iter();
    let benchmarks = benchmarks.map(|(name, source)| (format!("espalier-bench/{name}"), source));
    let objects = below(&top.join("../espalier-object/src")).into_iter();
    let objects = objects.map(|(name, source)| (format!("espalier-object/{name}"), source));
    below(&top.join("src")).into_iter().chain(benchmarks).chain(objects).collect()
}

fn below(top: &Path) -> Vec<(String, String)> {
    let (mut waiting, mut sources) = (vec![top.to_owned()], Vec::new());
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
                sources.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources.retain(|(name, _)| !name.ends_with("tests.rs") && !name.contains("tests/"));
    sources.sort();
    sources
}

#[test]
fn every_message_of_the_program_has_a_heading_or_a_reason() {
    let pages = pages().unwrap();
    let known = headings(&String::from_utf8_lossy(&pages[0].text));
    let listed = HEADINGS.iter().flat_map(|(file, words)| words.iter().map(|words| (*file, *words)));
    let missing: Vec<_> = listed.clone().filter(|(_, words)| !known.contains(*words)).collect();
    assert!(missing.is_empty() && known.contains(CONTEXT), "no heading of espalier(1): {missing:?}");

    let excused = EXCEPTIONS.iter().map(|(files, words, _)| (*files, *words));
    let mut unused: BTreeSet<_> = listed.clone().chain(excused.clone()).collect();
    let mut without = Vec::new();
    for (file, source) in sources() {
        for Said { text, is_context } in messages(&source) {
            let by_heading = listed.clone().filter(|(name, _)| *name == file);
            let by_reason = excused.clone().filter(|(files, _)| file.starts_with(files));
            let found: Vec<_> =
                by_heading.chain(by_reason).filter(|(_, words)| text.contains(words)).collect();
            unused.retain(|listed| !found.contains(listed));
            if found.is_empty() && !(is_context && text.contains(CONTEXT)) {
                without.push(format!("{file}: {text}"));
            }
        }
    }
    assert!(without.is_empty(), "no section of espalier(1), and no reason:\n{}", without.join("\n"));
    assert!(unused.is_empty(), "is not said any more: {unused:?}");
}

#[test]
fn no_heading_is_for_what_no_command_says() {
    let pages = pages().unwrap();
    let page = String::from_utf8_lossy(&pages[0].text).into_owned();
    let sections = page.split(FIRST_SECTION).nth(1).unwrap().split("\n.SH ").next().unwrap();
    let said: BTreeSet<&str> = HEADINGS.iter().flat_map(|(_, words)| *words).copied().collect();
    let found = headings(sections);
    let unsaid: Vec<_> =
        found.iter().filter(|words| !said.contains(words.as_str()) && *words != CONTEXT).collect();
    assert!(found.len() > 100 && unsaid.is_empty(), "{unsaid:?}");
}
