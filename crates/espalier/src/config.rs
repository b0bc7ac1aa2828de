//! The configuration files: defaults for the options of commands, and rules for mounts.
//!
//! `/etc/espalier.toml` is read first and the file of the user next; the command line comes after
//! both. A file that holds an error ends the command, with file and line. The manual page is
//! `espalier.toml(5)`.

mod file;

use crate::ui::complain;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::Resettable::Reset;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use file::{Entry, Value};
use std::ffi::OsString;
use std::path::PathBuf;

/// The file of the machine.
const SYSTEM_PATH: &str = "/etc/espalier.toml";
/// The file of a user, in the directory for such files.
const USER_NAME: &str = "espalier.toml";
/// The table with rules for mounts, and the names of the rules.
const MOUNT: &str = "mount";
const OPTIONS: &str = "options";
const ENFORCE: &str = "enforce";
/// An option of the command that is a mount option, too.
const CACHE: &str = "cache";
/// What ends a mount must not depend on what is in a file, nor what names the mistakes of files.
const FORGIVING: [&str; 2] = ["umount", "doctor"];

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
    /// Reads the files, and parses the words of a command line with their defaults in place. A
    /// default gives way to what contradicts it on the command line or, later, in a file.
    ///
    /// # Errors
    /// An error in a file. (An error in the words is of the inner type.)
    pub(crate) fn for_words(
        command: fn() -> Command,
        words: &[OsString],
    ) -> Result<(Self, clap::error::Result<ArgMatches>)> {
        let flags = flags_with_values(words);
        let command = || with_switches(command(), &flags);
        let plain = command().try_get_matches_from(words);
        if plain.as_ref().is_err_and(|error| !error.use_stderr()) {
            return Ok((Self::default(), plain));
        }
        let config = match (Self::load(&command()), &plain) {
            (Ok(config), _) => config,
            (Err(error), Ok(matches))
                if matches.subcommand_name().is_some_and(|name| FORGIVING.contains(&name)) =>
            {
                complain!("espalier: {error:#}; the files are not used");
                return Ok((Self::default(), plain));
            }
            (Err(_), Err(_)) => return Ok((Self::default(), plain)),
            (Err(error), Ok(_)) => return Err(error),
        };
        if config.defaults.is_empty() {
            return Ok((config, plain));
        }
        let parse = |defaults: &[Entry]| -> Result<_> {
            let command = defaults.iter().try_fold(command(), with_default)?;
            Ok(command.try_get_matches_from(words))
        };
        let mut matches = parse(&config.defaults)?;
        if let Ok(found) = &matches {
            let good = without_contradictions(&command(), found, &config.defaults);
            if good.len() < config.defaults.len() {
                matches = parse(&good)?;
            }
        }
        Ok((config, matches))
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
        for mut entry in entries {
            let Some(rule) = rule_of(&entry) else {
                // Checked whatever command is run, so that an error does not wait for its day.
                with_default(command.clone(), &entry)?;
                entry.commands = canonical(command, &entry.commands);
                self.defaults.push(entry);
                continue;
            };
            let text = match (rule, entry.value) {
                (CACHE, Value::Text(text) | Value::Other(text)) => format!("{CACHE}={text}"),
                (_, Value::Text(text)) => text,
                (_, Value::Other(_)) => bail!("{}: '{rule}' is a text in quotes", entry.place),
            };
            let place = entry.place;
            let rules = &mut self.mount;
            match rule {
                ENFORCE if !of_system => bail!("{place}: only {SYSTEM_PATH} can enforce options"),
                ENFORCE => rules.enforce = Some(Placed { place, text }),
                _ if of_system => add_options(&mut rules.system, place, &text),
                _ => add_options(&mut rules.user, place, &text),
            }
        }
        Ok(())
    }
}

/// Which rule for mounts an entry is, if it is one.
fn rule_of(entry: &Entry) -> Option<&'static str> {
    let rules = [OPTIONS, ENFORCE, CACHE];
    rules.into_iter().find(|rule| entry.commands == [MOUNT] && entry.name == *rule)
}

/// Adds mount options to those that a file has so far.
fn add_options(rule: &mut Option<Placed>, place: String, text: &str) {
    match rule {
        Some(rule) => rule.text = format!("{},{text}", rule.text),
        None => *rule = Some(Placed { place, text: text.to_owned() }),
    }
}

/// Where the file of the user is, if there is a user.
fn user_path() -> Option<PathBuf> {
    let of_variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = of_variable("XDG_CONFIG_HOME").or_else(|| of_variable("HOME").map(|home| home.join(".config")));
    dir.map(|dir| dir.join(USER_NAME))
}

/// The names of a command and of those above it as they are without aliases.
fn canonical(command: &Command, path: &[String]) -> Vec<String> {
    let mut above = command;
    let below = path.iter().map_while(|name| {
        above = above.find_subcommand(name)?;
        Some(above.get_name().to_owned())
    });
    below.collect()
}

/// True for what users may give by name.
fn is_settable(argument: &Arg) -> bool {
    let takes = argument.get_action().takes_values() || is_flag(argument) || is_counted(argument);
    argument.get_long().is_some() && !argument.is_hide_set() && takes
}

/// True for flags that say more the more often they are given.
fn is_counted(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Count)
}

/// The options that a command line gives a truth value: `--json=false`.
fn flags_with_values(words: &[OsString]) -> Vec<&str> {
    let parts = words.iter().filter_map(|word| word.to_str()?.strip_prefix("--")?.split_once('='));
    parts.filter(|(_, value)| matches!(*value, "true" | "false")).map(|(name, _)| name).collect()
}

/// The command line, with switches for the flags of these names.
fn with_switches(command: Command, names: &[&str]) -> Command {
    if names.is_empty() {
        return command;
    }
    let is_named = |flag: &Arg| is_flag(flag) && flag.get_long().is_some_and(|name| names.contains(&name));
    let command = command.mut_args(|flag| if is_named(&flag) { switch(flag) } else { flag });
    command.mut_subcommands(|below| with_switches(below, names))
}

/// The defaults that nothing contradicts, on the command line or in a default behind them.
fn without_contradictions(command: &Command, matches: &ArgMatches, defaults: &[Entry]) -> Vec<Entry> {
    let (mut command, mut matches, mut path) = (command, matches, Vec::new());
    while let Some((name, below)) = matches.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        path.push(name.to_owned());
        (command, matches) = (found, below);
    }
    let is_given = |argument: &Arg| {
        let id = argument.get_id().as_str();
        matches.value_source(id) == Some(ValueSource::CommandLine)
            && matches.get_raw(id).is_none_or(|mut values| values.next().is_none_or(|value| value != "false"))
    };
    let mut counting: Vec<&Arg> = command.get_arguments().filter(|argument| is_given(argument)).collect();
    let mut good = Vec::new();
    for entry in defaults.iter().rev() {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(&entry.name));
        if let Some(argument) = argument.filter(|_| entry.commands == path) {
            if counting.iter().any(|other| contradict(command, argument, other)) {
                continue;
            }
            if entry.value.text() != "false" {
                counting.push(argument);
            }
        }
        good.push(entry.clone());
    }
    good.reverse();
    good
}

/// True if two arguments of a command cannot both be given.
fn contradict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let has = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|named| named.get_id() == other.get_id())
    };
    has(one, other) || has(other, one)
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
    let name = canonical(&command, std::slice::from_ref(name)).concat();
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
        let more = if entry.commands == [MOUNT] { "; mount options stand in options = \"...\"" } else { "" };
        let of = entry.commands.join(" ");
        bail!("{place}: '{name}' of '{of}' cannot be set here; what can: {all}{more}");
    };
    let value = entry.value.text().to_owned();
    if is_counted(argument) {
        ensure!(value.parse::<u8>().is_ok(), "{place}: '{name}' is a number of times, at most 255");
        let id = argument.get_id().clone();
        return Ok(command.mut_arg(id, |argument| argument.default_value(value)));
    }
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
