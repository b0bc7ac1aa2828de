//! What a shell offers when a command line is completed.
//!
//! The shell calls the program with the words so far (`COMPLETE=bash espalier -- ...`), so that it
//! can offer what is there: mounts, snapshots, mount options, paths. A question that cannot be
//! answered at once is answered with nothing: a completion does not wait for a lock.

mod bash;

use crate::args::Cli;
use crate::args::mount_options::MOUNT_OPTIONS;
use crate::files::located::{Located, with_tree};
use crate::files::tree::Access;
use crate::mounts;
use crate::place::{self, Inside};
use crate::snapshot;
use bash::Bash;
use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use espalier_fs::FileKind;
use espalier_storage::{FileDevice, FileOptions, OpenMode};
use espalier_workspace::Registry;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The directory with snapshots, which no listing shows.
const SNAPSHOTS_DIR: &str = ".snapshots";

/// Mount options with a path behind them.
const WITH_PATHS: [&str; 4] = ["disk_cache=", "journal=", "logfile=", "metrics=unix:"];

/// Answers the shell and ends, if the environment says that a shell asks.
pub(crate) fn answer() {
    let shells = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &AutoloadedZsh]);
    CompleteEnv::with_factory(command).shells(shells).completer("espalier").complete();
}

/// Zsh, whose script also works where it is installed: there it is the body of the function
/// `_espalier`, which has to answer the first question itself.
struct AutoloadedZsh;

impl EnvCompleter for AutoloadedZsh {
    fn name(&self) -> &'static str {
        Zsh.name()
    }

    fn is(&self, name: &str) -> bool {
        Zsh.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        Zsh.write_registration(var, name, bin, completer, buf)?;
        writeln!(buf, "[[ \"${{funcstack[1]-}}\" != _espalier ]] || \"${{_comps[espalier]}}\" \"$@\"")
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        Zsh.write_complete(command, words, directory, buf)
    }
}

/// The command line with what its arguments may be.
fn command() -> Command {
    let mut command = Cli::command();
    for (name, argument, completer) in [
        ("mount", "options", ArgValueCompleter::new(mount_options)),
        ("mount", "source", ArgValueCompleter::new(mount_sources)),
        ("umount", "dir", ArgValueCompleter::new(mount_points)),
        ("scrub", "dir", ArgValueCompleter::new(mount_points)),
        ("stat", "dir", ArgValueCompleter::new(mount_points)),
        ("top", "dir", ArgValueCompleter::new(mount_points)),
        ("trace", "dir", ArgValueCompleter::new(mount_points)),
        ("doctor", "dir", ArgValueCompleter::new(mount_points)),
        ("info", "source", ArgValueCompleter::new(mount_points_and_paths)),
        ("trim", "source", ArgValueCompleter::new(mount_points_and_paths)),
        ("resize", "source", ArgValueCompleter::new(mount_points_and_paths)),
        ("label", "source", ArgValueCompleter::new(mount_points_and_paths)),
        ("clone", "source", ArgValueCompleter::new(paths)),
        ("chmod", "paths", ArgValueCompleter::new(paths)),
        ("chown", "paths", ArgValueCompleter::new(paths)),
        ("rm", "paths", ArgValueCompleter::new(paths)),
        ("clone", "destination", ArgValueCompleter::new(paths)),
        ("diff", "old", ArgValueCompleter::new(paths)),
        ("diff", "new", ArgValueCompleter::new(paths)),
        ("du", "paths", ArgValueCompleter::new(paths)),
        ("import", "sources", ArgValueCompleter::new(paths)),
        ("import", "destination", ArgValueCompleter::new(paths)),
        ("export", "source", ArgValueCompleter::new(paths)),
        ("export", "destination", ArgValueCompleter::new(paths)),
        ("ls", "paths", ArgValueCompleter::new(paths)),
        ("find", "paths", ArgValueCompleter::new(paths)),
        ("cat", "files", ArgValueCompleter::new(paths)),
        ("cp", "sources", ArgValueCompleter::new(paths)),
        ("cp", "destination", ArgValueCompleter::new(paths)),
    ] {
        command = command.mut_subcommand(name, |command| with_completer(command, argument, &completer));
    }
    command = command.mut_subcommand("workspace", |mut command| {
        let completer = ArgValueCompleter::new(workspaces);
        for name in ["diff", "checkpoint", "log", "undo", "apply", "promote", "exec"] {
            command = command.mut_subcommand(name, |command| with_completer(command, "name", &completer));
        }
        let directories = ArgValueCompleter::new(paths);
        command = command.mut_subcommand("create", |command| with_completer(command, "from", &directories));
        command.mut_subcommand("discard", |command| with_completer(command, "names", &completer))
    });
    command.mut_subcommand("snapshot", |mut command| {
        let completer = ArgValueCompleter::new(snapshots);
        for name in ["delete", "restore"] {
            command = command.mut_subcommand(name, |command| with_completer(command, "name", &completer));
        }
        command
    })
}

/// Adds a completer to the argument of that name. clap puts an argument that changes behind all
/// others, and the position of arguments counts, so all of them pass in their order.
fn with_completer(mut command: Command, of: &str, completer: &ArgValueCompleter) -> Command {
    let names: Vec<_> = command.get_arguments().map(|argument| argument.get_id().clone()).collect();
    for name in names {
        command = command.mut_arg(&name, |argument| match name == of {
            true => argument.add(completer.clone()),
            false => argument,
        });
    }
    command
}

/// The words of the command line that is being completed, without the program's own.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1).collect()
}

/// The options of a list whose last one is not complete.
fn mount_options(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let (before, last) = current.rsplit_once(',').map_or(("", current), |(before, last)| (before, last));
    let lead = if before.is_empty() { String::new() } else { format!("{before},") };
    if let Some(begun) = last.strip_prefix("snapshot=") {
        // The image is the word that is one.
        let images = words().into_iter().map(|word| snapshots_of(Path::new(&word)));
        let names = images.flatten().filter(|name| name.starts_with(begun));
        return names.map(|name| CompletionCandidate::new(format!("{lead}snapshot={name}"))).collect();
    }
    if let Some(key) = WITH_PATHS.iter().find(|key| last.starts_with(**key)) {
        let found = PathCompleter::any().complete(OsStr::new(&last[key.len()..]));
        let whole = |path: &CompletionCandidate| {
            let mut option = OsString::from(format!("{lead}{key}"));
            option.push(path.get_value());
            CompletionCandidate::new(option)
        };
        return found.iter().map(whole).collect();
    }
    let each =
        MOUNT_OPTIONS.iter().flat_map(|option| option.names.split(", ").map(move |name| (name, option)));
    let values =
        [("transport=", "auto io_uring classic"), ("readdirplus=", "auto always"), ("offline=", "eio wait")];
    let mut offers: Vec<(String, &str)> = Vec::new();
    for (name, option) in each.filter(|(name, _)| !name.contains('*')) {
        let key = name.find('=').map_or(name, |end| &name[..=end]);
        match values.iter().find(|(of, _)| *of == key) {
            Some((_, values)) => {
                offers.extend(values.split(' ').map(|value| (format!("{key}{value}"), option.meaning)));
            }
            None => offers.push((key.to_owned(), option.meaning)),
        }
    }
    let fitting = offers.into_iter().filter(|(offer, _)| offer.starts_with(last));
    fitting
        .map(|(offer, meaning)| {
            CompletionCandidate::new(format!("{lead}{offer}")).help(Some(meaning.to_owned().into()))
        })
        .collect()
}

/// Where something of ours is mounted, dead or alive.
fn mount_points(current: &OsStr) -> Vec<CompletionCandidate> {
    let table = mounts::all().unwrap_or_default();
    let ours = table.into_iter().filter(mounts::MountEntry::is_espalier).map(|mount| mount.dir);
    let begin = |dir: &Path| dir.as_os_str().as_encoded_bytes().starts_with(current.as_encoded_bytes());
    let found: Vec<_> = ours.filter(|dir| begin(dir)).map(CompletionCandidate::new).collect();
    // A relative path, or a directory below a mount.
    if found.is_empty() { PathCompleter::dir().complete(current) } else { found }
}

/// What can be mounted; with `--replace`, where something is.
fn mount_sources(current: &OsStr) -> Vec<CompletionCandidate> {
    if words().iter().any(|word| word == "--replace") {
        mount_points(current)
    } else {
        PathCompleter::any().complete(current)
    }
}

fn mount_points_and_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = PathCompleter::any().complete(current);
    for mount in mount_points(current) {
        if !all.iter().any(|path| path.get_value() == mount.get_value()) {
            all.push(mount);
        }
    }
    all
}

/// Files and directories, also of an image that is not mounted; the directory with the snapshots,
/// once it is begun.
fn paths(current: &OsStr) -> Vec<CompletionCandidate> {
    if let Some(inside) = place::inside(Path::new(current)) {
        return paths_inside(current.as_bytes(), &inside.image);
    }
    let mut all = PathCompleter::any().complete(current);
    if let Some(text) = current.to_str() {
        let (dir, name) = text.rsplit_once('/').map_or(("", text), |(dir, name)| (dir, name));
        let dir = if text.contains('/') { format!("{dir}/") } else { dir.to_owned() };
        let hidden = format!("{dir}{SNAPSHOTS_DIR}");
        if name.len() > 1 && SNAPSHOTS_DIR.starts_with(name) && Path::new(&hidden).is_dir() {
            all.push(CompletionCandidate::new(format!("{hidden}/")));
        }
    }
    all
}

/// What lies in an image, behind `IMAGE:`. Names that begin with a dot are offered once the dot is
/// there.
fn paths_inside(current: &[u8], image: &Path) -> Vec<CompletionCandidate> {
    let path = image.as_os_str().len() + 1;
    let begin = current[path..].iter().rposition(|byte| *byte == b'/').map_or(path, |slash| path + slash + 1);
    let (lead, begun) = current.split_at(begin);
    let Some(Inside { names, .. }) = place::inside(Path::new(OsStr::from_bytes(lead))) else {
        return Vec::new();
    };
    let listed = if names.last().is_some_and(|name| name == SNAPSHOTS_DIR.as_bytes()) {
        let above = Inside { image: image.into(), names: names[..names.len() - 1].to_vec() };
        snapshots_of(Path::new(&above.to_string()))
            .into_iter()
            .map(|name| (name.into_bytes(), true))
            .collect()
    } else if is_free(image) {
        let place = Located::Image(Inside { image: image.into(), names });
        let list = with_tree(&place, Access::Read, |files| Ok(files.list(b"")?));
        let kind = |(name, attr): (Vec<u8>, espalier_fs::Attr)| (name, attr.kind == FileKind::Directory);
        list.unwrap_or_default().into_iter().map(kind).collect()
    } else {
        Vec::new()
    };
    let is_offered =
        |name: &[u8]| name.starts_with(begun) && (begun.starts_with(b".") || !name.starts_with(b"."));
    let offer = |(name, is_directory): (Vec<u8>, bool)| {
        let end: &[u8] = if is_directory { b"/" } else { b"" };
        CompletionCandidate::new(OsString::from_vec([lead, &name, end].concat()))
    };
    listed.into_iter().filter(|(name, _)| is_offered(name)).map(offer).collect()
}

/// True if an image can be opened now: another command may have it open, and for long.
fn is_free(image: &Path) -> bool {
    FileDevice::open_with(image, &FileOptions::new(OpenMode::ReadOnly)).is_ok()
}

/// Workspaces around the working directory, or the one that `--in` names; otherwise directories.
fn workspaces(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = words();
    let named = words.iter().skip_while(|word| *word != "--in").nth(1);
    let at = named.map_or(Path::new("."), Path::new);
    let begins = |name: &str| name.as_bytes().starts_with(current.as_encoded_bytes());
    let mut all = PathCompleter::dir().complete(current);
    if let Ok(registry) = Registry::around(at) {
        for name in registry.workspaces().iter().map(|workspace| &workspace.record().name) {
            if begins(name) && !all.iter().any(|one| one.get_value() == OsStr::new(name)) {
                all.push(CompletionCandidate::new(name));
            }
        }
    }
    all
}

/// Snapshots of what the word before the name says.
fn snapshots(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = words();
    let source = words.iter().skip_while(|word| *word != "delete" && *word != "restore").skip(1);
    let Some(source) = source.into_iter().find(|word| !word.as_encoded_bytes().starts_with(b"-")) else {
        return Vec::new();
    };
    let Some(current) = current.to_str() else { return Vec::new() };
    let names = snapshots_of(Path::new(source)).into_iter().filter(|name| name.starts_with(current));
    names.map(CompletionCandidate::new).collect()
}

/// The names of snapshots of an image, a mount, or a directory in one.
fn snapshots_of(source: &Path) -> Vec<String> {
    let image = place::inside(source).map_or_else(|| source.to_owned(), |inside| inside.image);
    if image.is_file() && mounts::of(&image).ok().flatten().is_none() && !is_free(&image) {
        return Vec::new();
    }
    snapshot::names(source).unwrap_or_default()
}
