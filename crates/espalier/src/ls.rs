//! `espalier ls` and `espalier find`: what is in directories, also of images that are not mounted.

use crate::args::{FileType, Find, Ls};
use crate::files::located::{Located, with_tree};
use crate::files::tree::{Access, Files, join, show};
use crate::problem::{Exit, Shown};
use crate::ui::{self, Gathering, complain, say};
use crate::units::{self, Span};
use anyhow::{Result, bail};
use espalier_fs::{Attr, FileKind, Filter};
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOSECONDS: i64 = 1_000_000_000;

/// Runs `espalier ls`.
pub(crate) fn ls(args: &Ls) -> Result<Exit> {
    let _gathering = Gathering::begin();
    let mut exit = Exit::Success;
    let is_titled = args.paths.len() > 1 || args.recursive;
    for (at, path) in args.paths.iter().enumerate() {
        let place = Located::new(path);
        let listed = with_tree(&place, Access::Read, |files| {
            let mut listing = Listing { args, place: &place, files, failed: false, is_first: at == 0 };
            listing.run(is_titled)?;
            Ok(listing.failed)
        });
        match listed {
            Ok(false) => {}
            Ok(true) if exit == Exit::Success => exit = Exit::Failure,
            Ok(true) => {}
            Err(error) => {
                complain!("espalier ls: {}: {}", path.display(), Shown(&error));
                exit = Exit::NotListed;
            }
        }
    }
    Ok(exit)
}

struct Listing<'a> {
    args: &'a Ls,
    place: &'a Located,
    files: &'a dyn Files,
    /// Something could not be listed.
    failed: bool,
    /// Nothing was printed yet.
    is_first: bool,
}

impl Listing<'_> {
    fn run(&mut self, is_titled: bool) -> Result<()> {
        let top = self.files.stat(b"")?;
        if top.kind != FileKind::Directory || self.args.directory {
            self.print(b"", self.place.to_string().as_bytes(), &top);
            return Ok(());
        }
        self.list(b"", is_titled)
    }

    /// Lists a directory, and those below if that is wanted.
    fn list(&mut self, path: &[u8], is_titled: bool) -> Result<()> {
        let entries = self.files.list(path)?;
        if is_titled && !self.args.json {
            if !self.is_first {
                say!("");
            }
            let place = if path.is_empty() { self.place.to_string() } else { self.shown(path) };
            say!("{place}:");
        }
        self.is_first = false;
        let is_shown = |name: &[u8]| self.args.all || !name.starts_with(b".");
        let entries: Vec<_> = entries.into_iter().filter(|(name, _)| is_shown(name)).collect();
        for (name, attr) in &entries {
            self.print(&join(path, name), name, attr);
        }
        if !self.args.recursive {
            return Ok(());
        }
        for (name, attr) in &entries {
            if !ui::is_heard() {
                break;
            }
            if attr.kind == FileKind::Directory {
                let below = join(path, name);
                if let Err(error) = self.list(&below, is_titled) {
                    complain!("espalier ls: {}: {}", self.shown(&below), Shown(&error));
                    self.failed = true;
                }
            }
        }
        Ok(())
    }

    fn print(&self, path: &[u8], name: &[u8], attr: &Attr) {
        if self.args.json {
            return say!("{}", as_json(&self.shown(path), attr, self.target(path, attr)));
        }
        let name = printable(name);
        if !self.args.long {
            return say!("{name}");
        }
        let arrow = self.target(path, attr).map(|target| format!(" -> {}", printable(&target)));
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{}, {}", rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev))
            }
            _ => attr.size.to_string(),
        };
        say!(
            "{} {:>3} {:>6} {:>6} {size:>12} {} {name}{}",
            mode_text(attr),
            attr.nlink,
            attr.uid,
            attr.gid,
            time_text(attr.mtime),
            arrow.unwrap_or_default()
        );
    }

    fn target(&self, path: &[u8], attr: &Attr) -> Option<Vec<u8>> {
        if attr.kind != FileKind::Symlink { None } else { self.files.read_link(path).ok() }
    }

    fn shown(&self, path: &[u8]) -> String {
        shown_below(self.place, path)
    }
}

/// Runs `espalier find`.
pub(crate) fn find(args: &Find) -> Result<Exit> {
    let filter = filter(args)?;
    let _gathering = Gathering::begin();
    let mut exit = Exit::Success;
    for path in &args.paths {
        let place = Located::new(path);
        let found = with_tree(&place, Access::Read, |files| find_below(args, &filter, &place, files));
        match found {
            Ok(true) => {}
            Ok(false) => exit = Exit::Failure,
            Err(error) => {
                complain!("espalier find: {}: {}", path.display(), Shown(&error));
                exit = Exit::Failure;
            }
        }
    }
    Ok(exit)
}

/// Prints what is found in one tree; returns whether everything could be looked at.
fn find_below(args: &Find, filter: &Filter, place: &Located, files: &dyn Files) -> Result<bool> {
    let mut is_whole = true;
    let print = |path: &[u8], attr: &Attr| {
        let shown = shown_below(place, path);
        if args.json {
            say!("{}", as_json(&shown, attr, None));
        } else if args.null {
            ui::print_part(&[&shown_bytes(place, path)[..], &[0]].concat());
        } else {
            say!("{}", String::from_utf8_lossy(&shown_bytes(place, path)));
        }
    };
    let top = files.stat(b"")?;
    let name = place.split().map(|(_, name)| name).unwrap_or_default();
    if filter.matches(&name, &top) {
        print(b"", &top);
    }
    if top.kind != FileKind::Directory {
        return Ok(true);
    }
    files.walk(filter, &mut |entry| {
        if entry.is_closed {
            complain!("espalier find: {}: permission denied", shown_below(place, entry.path));
            is_whole = false;
        }
        // A closed directory is given whatever the filter says.
        if !entry.is_closed || filter.matches(entry.path, &entry.attr) {
            print(entry.path, &entry.attr);
        }
        ui::is_heard()
    })?;
    Ok(is_whole)
}

fn filter(args: &Find) -> Result<Filter> {
    let kind = |kind: &FileType| match kind {
        FileType::F => FileKind::Regular,
        FileType::D => FileKind::Directory,
        FileType::L => FileKind::Symlink,
        FileType::P => FileKind::Fifo,
        FileType::S => FileKind::Socket,
        FileType::C => FileKind::CharDevice,
        FileType::B => FileKind::BlockDevice,
    };
    let (least, most) =
        (args.min_size.map_or(0, |size| size.0), args.max_size.map_or(u64::MAX, |size| size.0));
    if least > most {
        bail!("no file has at least {least} and at most {most} bytes");
    }
    if let (Some(newer), Some(older)) = (args.newer_than, args.older_than)
        && newer.0 < older.0
    {
        bail!("no time is within the last {newer} and {older} ago or more");
    }
    let (from, to) = (args.newer_than.map(time_ago), args.older_than.map(time_ago));
    let modified = from.unwrap_or(i64::MIN)..=to.unwrap_or(i64::MAX);
    Ok(Filter {
        pattern: args.name.as_ref().map(|name| name.as_bytes().to_vec()),
        kinds: (!args.types.is_empty()).then(|| args.types.iter().map(kind).collect()),
        size: (args.min_size.is_some() || args.max_size.is_some()).then_some(least..=most),
        modified: (from.is_some() || to.is_some()).then_some(modified),
    })
}

/// The time so long before now, nanoseconds since the Unix epoch.
fn time_ago(span: Span) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    nanoseconds(now).saturating_sub(nanoseconds(span.0))
}

/// A path below a place, as it is written on a command line.
fn shown_bytes(place: &Located, path: &[u8]) -> Vec<u8> {
    let mut bytes = match place {
        Located::System(path) => std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec(),
        Located::Image(inside) => {
            let image = std::os::unix::ffi::OsStrExt::as_bytes(inside.image.as_os_str());
            [image, b":/", &inside.names.join(&b'/')[..]].concat()
        }
    };
    if !path.is_empty() {
        if !bytes.ends_with(b"/") {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(path);
    }
    bytes
}

fn shown_below(place: &Located, path: &[u8]) -> String {
    String::from_utf8_lossy(&shown_bytes(place, path)).into_owned()
}

/// A name that cannot confuse a terminal; as it is if there is none.
fn printable(name: &[u8]) -> String {
    if std::io::stdout().is_terminal() { show(name) } else { String::from_utf8_lossy(name).into_owned() }
}

fn as_json(path: &str, attr: &Attr, target: Option<Vec<u8>>) -> serde_json::Value {
    let mut object = json!({
        "path": path,
        "type": kind_name(attr.kind),
        "mode": format!("{:04o}", attr.mode),
        "links": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "inode": attr.ino,
        "atime_ns": attr.atime,
        "mtime_ns": attr.mtime,
        "ctime_ns": attr.ctime,
    });
    if let Some(target) = target {
        object["target"] = String::from_utf8_lossy(&target).into();
    }
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        object["device"] = json!([rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev)]);
    }
    object
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
    }
}

/// Type and mode as `ls -l` shows them.
fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, attr.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time as `2026-11-22 00:07:30 UTC`; before 1970 in seconds.
fn time_text(time: i64) -> String {
    let seconds = time.div_euclid(NANOSECONDS);
    u64::try_from(seconds).map_or_else(|_| format!("{seconds} s"), units::date)
}
