//! The configuration files: defaults for the options of commands, and rules for mounts.
//!
//! `/etc/espalier.toml` is read first and the file of the user next; the command line comes after
//! both. A file that holds an error ends the command, with file and line. The manual page is
//! `espalier.toml(5)`.

mod file;

use anyhow::{Context, Result, anyhow, bail};
use clap::builder::Resettable::Reset;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use file::{Entry, Value};
use std::path::PathBuf;

/// The file of the machine.
const SYSTEM_PATH: &str = "/etc/espalier.toml";
/// The file of a user, in the directory for such files.
const USER_NAME: &str = "espalier.toml";
/// The table with rules for mounts.
const MOUNT: &str = "mount";
/// Options without a default: those that name or measure one thing; those that remove, overwrite or
/// end something, or decide which side of a conflict is lost; those that make the command another
/// one; and those that choose the form of an answer, which programs read.
const NOT_SETTABLE: [&str; 24] = [
    "check",
    "delete-orphans",
    "device",
    "dry-run",
    "force",
    "foreground",
    "from-mount",
    "html",
    "json",
    "label",
    "lazy",
    "lost",
    "missing",
    "name-only",
    "node",
    "null",
    "ours",
    "patch",
    "repair",
    "replace",
    "size",
    "stat",
    "take-over",
    "theirs",
];

/// A text of a file, and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    /// File and line.
    pub(crate) place: String,
    pub(crate) text: String,
}

/// What the files say about mounts.
#[derive(Debug, Clone, Default)]
pub(crate) struct MountRules {
    /// Options of every mount.
    pub(crate) system: Option<Placed>,
    /// Options of every mount of this user.
    pub(crate) user: Option<Placed>,
    /// Options that come last, and that no mount may contradict.
    pub(crate) enforce: Option<Placed>,
}

/// What both files say.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) mount: MountRules,
    /// Defaults of options, of the machine first.
    defaults: Vec<Entry>,
}

impl Config {
    /// Reads the files for the command that `matches` has found, if it can be configured, and
    /// parses its words again with the defaults in place.
    ///
    /// # Errors
    /// An error in a file. (An error in the words is of the inner type.)
    pub(crate) fn for_words(
        command: fn() -> Command,
        matches: ArgMatches,
        words: &[std::ffi::OsString],
    ) -> Result<(Self, clap::error::Result<ArgMatches>)> {
        if !is_configurable(&command(), &matches) {
            return Ok((Self::default(), Ok(matches)));
        }
        let config = Self::load(&command())?;
        let command = config.defaults.iter().try_fold(command(), with_default)?;
        Ok((config, command.try_get_matches_from(words)))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// An error in a file.
    pub(crate) fn load(command: &Command) -> Result<Self> {
        let mut config = Self::default();
        if let Some(entries) = file::read(SYSTEM_PATH.as_ref())? {
            config.add(entries, true, command)?;
        }
        if let Some(path) = user_path().filter(|path| file::is_trusted(path))
            && let Some(entries) = file::read(&path)?
        {
            config.add(entries, false, command)?;
        }
        Ok(config)
    }

    /// Takes what a file says.
    fn add(&mut self, entries: Vec<Entry>, of_system: bool, command: &Command) -> Result<()> {
        for entry in entries {
            if entry.commands != [MOUNT] {
                // Checked whatever command is run, so that an error does not wait for its day.
                with_default(command.clone(), &entry)?;
                self.defaults.push(entry);
                continue;
            }
            let Value::Text(text) = entry.value else {
                bail!("{}: '{}' is a text in quotes", entry.place, entry.name);
            };
            let placed = Some(Placed { place: entry.place.clone(), text });
            match entry.name.as_str() {
                "options" if of_system => self.mount.system = placed,
                "options" => self.mount.user = placed,
                "enforce" if of_system => self.mount.enforce = placed,
                "enforce" => bail!("{}: only {SYSTEM_PATH} can enforce options", entry.place),
                name => bail!(
                    "{}: [mount] knows options and enforce, and not '{name}'; write options = \"{name}=...\"",
                    entry.place
                ),
            }
        }
        Ok(())
    }
}

/// Where the file of the user is, if there is a user.
fn user_path() -> Option<PathBuf> {
    let of_variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = of_variable("XDG_CONFIG_HOME").or_else(|| of_variable("HOME").map(|home| home.join(".config")));
    dir.map(|dir| dir.join(USER_NAME))
}

/// True if the files may have something to say to the command that was given.
fn is_configurable(command: &Command, matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((MOUNT, _)) => true,
        Some((name, matches)) => {
            command.find_subcommand(name).is_some_and(|below| is_configurable(below, matches))
        }
        None => command.get_arguments().any(is_settable),
    }
}

/// True for options that are good for many calls.
fn is_settable(argument: &Arg) -> bool {
    argument.get_long().is_some_and(|name| !NOT_SETTABLE.contains(&name))
        && (argument.get_action().takes_values() || is_flag(argument))
}

fn is_flag(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

/// A flag that also takes `=true` and `=false`, so that a command line can take back what a file
/// says.
fn switch(flag: Arg) -> Arg {
    let value = flag.action(ArgAction::Set).value_parser(clap::value_parser!(bool));
    value.num_args(0..=1).require_equals(true).default_missing_value("true")
}

/// The command line with a default that a file gives.
fn with_default(command: Command, entry: &Entry) -> Result<Command> {
    add_default(command, &entry.commands, entry)
}

fn add_default(command: Command, path: &[String], entry: &Entry) -> Result<Command> {
    let place = &entry.place;
    let Some((name, below)) = path.split_first() else { return set_default(command, entry) };
    if command.find_subcommand(name).is_none_or(Command::is_hide_set) {
        bail!("{place}: there is no command '{}'", entry.commands.join(" "));
    }
    let mut outcome = Ok(());
    let command = command.mut_subcommand(name, |command| {
        add_default(command.clone(), below, entry).unwrap_or_else(|error| {
            outcome = Err(error);
            command
        })
    });
    outcome.map(|()| command)
}

fn set_default(command: Command, entry: &Entry) -> Result<Command> {
    let Entry { place, name, .. } = entry;
    let settable = || command.get_arguments().filter(|argument| is_settable(argument));
    let Some(argument) = settable().find(|argument| argument.get_long() == Some(name)) else {
        let all: Vec<_> = settable().filter_map(Arg::get_long).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        bail!("{place}: '{name}' of '{}' cannot be set here; what can: {all}", entry.commands.join(" "));
    };
    let value = match &entry.value {
        Value::Text(text) | Value::Other(text) => text.clone(),
    };
    let argument = if is_flag(argument) { switch(argument.clone()) } else { argument.clone() };
    // The option alone says whether the value is good; those that it goes with are not there.
    let alone = argument.clone().requires(Reset::<Id>).conflicts_with(Reset::<Id>);
    let alone = Command::new("espalier").arg(alone);
    let words = ["espalier".to_owned(), format!("--{name}={value}")];
    alone.try_get_matches_from(words).map_err(|error| {
        let said = error.to_string();
        anyhow!("{place}: {}", said.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })?;
    let id = argument.get_id().clone();
    Ok(command.mut_arg(id, |_| argument.default_value(value)))
}

/// Adds where a rule stands to what is wrong with it.
pub(crate) fn at<T>(rule: &Placed, outcome: Result<T>) -> Result<T> {
    outcome.with_context(|| rule.place.clone())
}

#[cfg(test)]
mod tests;
