use super::*;
use crate::args::Cli;
use clap::CommandFactory;
use std::path::Path;

fn parsed(text: &str, of_system: bool) -> Result<Config> {
    let mut config = Config::default();
    config.add(file::parse(Path::new("x.toml"), text)?, of_system, &Cli::command())?;
    Ok(config)
}

#[test]
fn the_nearer_file_wins_and_the_command_line_over_both() {
    let command = Cli::command();
    let mut config = parsed("[mkfs]\ncompress = \"lz4\"\n[scrub]\nrate = \"1M\"\n", true).unwrap();
    let user = file::parse(Path::new("user.toml"), "mkfs.compress = \"zstd\"").unwrap();
    config.add(user, false, &command).unwrap();
    let command = config.defaults.iter().try_fold(command, with_default).unwrap();
    let compress = |words: &[&str]| {
        let matches = command.clone().try_get_matches_from(words).unwrap();
        format!(
            "{:?}",
            matches.subcommand_matches("mkfs").unwrap().get_raw("compress").unwrap().next().unwrap()
        )
    };
    assert_eq!(compress(&["espalier", "mkfs", "x"]), "\"zstd\"");
    assert_eq!(compress(&["espalier", "mkfs", "--compress", "none", "x"]), "\"none\"");
}

#[test]
fn a_flag_can_be_set_and_taken_back() {
    let config = parsed("[ls]\nall = true\nlong = true\n", true).unwrap();
    let command = config.defaults.iter().try_fold(Cli::command(), with_default).unwrap();
    let flags = |command: &Command, words: &[&str]| {
        let words = ["espalier", "ls"].iter().chain(words).chain(&["x"]);
        let matches = command.clone().try_get_matches_from(words).unwrap();
        let matches = matches.subcommand_matches("ls").unwrap();
        ["all", "long", "directory"].map(|name| matches.get_flag(name))
    };
    assert_eq!(flags(&command, &[]), [true, true, false]);
    assert_eq!(flags(&command, &["--all=false"]), [false, true, false]);
    assert_eq!(flags(&command, &["-adl"]), [true, true, true]);
    assert_eq!(flags(&Cli::command(), &[]), [false; 3]);
}

#[test]
fn errors_name_file_and_line() {
    for (text, place, word) in [
        ("[mkfs]\ncompress = \"rar\"", "x.toml:2", "rar"),
        ("[mkfs]\n\nforced = true", "x.toml:3", "compress"),
        ("[ls]\nall = \"often\"", "x.toml:2", "often"),
        ("[mkfs]\nsize = \"1X\"", "x.toml:2", "1X"),
        // Only mount(8) says it.
        ("[mount]\nfrom-mount = true", "x.toml:2", "take-over"),
        ("[mfks]\ncompress = \"lz4\"", "x.toml:2", "mfks"),
        ("[man]\ndir = \"/\"", "x.toml:2", "no command"),
        ("[snapshot.create]\nname = \"x\"", "x.toml:2", "snapshot create"),
        ("rate = 1", "x.toml:1", "no table"),
        ("verbose = 300", "x.toml:1", "255"),
        ("[scrub]\nrate = [1]", "x.toml:2", "array"),
        ("[scrub]\nrate = 1\nrate = 2", "x.toml:3", "duplicate"),
        ("[scrub\n", "x.toml:1", ""),
        ("[mount]\nnoatime = true", "x.toml:2", "options"),
        ("[mount]\noptions = true", "x.toml:2", "quotes"),
    ] {
        let said = format!("{:#}", parsed(text, true).expect_err(text));
        assert!(said.starts_with(place) && said.contains(word), "{text}: {said}");
    }
    let said = format!("{:#}", parsed("[mount]\nenforce = \"ro\"", false).unwrap_err());
    assert!(said.contains("x.toml:2") && said.contains(SYSTEM_PATH), "{said}");
}

/// Some go with others, which are not there when a value is checked.
#[test]
fn every_option_that_can_be_set_can_be_checked() {
    fn check(command: &Command) -> usize {
        let settable = command.get_arguments().filter(|argument| is_settable(argument));
        let names: Vec<_> = settable.filter_map(Arg::get_long).map(str::to_owned).collect();
        for name in &names {
            let entry = Entry {
                commands: vec![command.get_name().to_owned()],
                name: name.clone(),
                value: Value::Text("1".to_owned()),
                place: "x.toml:1".to_owned(),
            };
            // Whether it is good depends on the option.
            if let Err(error) = set_default(command.clone(), &entry) {
                assert!(error.to_string().starts_with("x.toml:1"), "{error}");
            }
        }
        names.len() + command.get_subcommands().map(check).sum::<usize>()
    }
    let count = check(&Cli::command());
    assert!(count > 15, "{count}");
}

/// What the words come to with the defaults of a text, or the error.
fn with_defaults(text: &str, words: &[&str]) -> Result<ArgMatches, String> {
    let config = parsed(text, true).unwrap();
    let words: Vec<OsString> = ["espalier"].iter().chain(words).map(OsString::from).collect();
    let parse = |defaults: &[Entry]| {
        let command = with_switches(Cli::command(), &flags_with_values(&words));
        let command = defaults.iter().try_fold(command, with_default).unwrap();
        command.try_get_matches_from(&words).map_err(|error| error.to_string())
    };
    let found = parse(&config.defaults)?;
    parse(&without_contradictions(&Cli::command(), &found, &config.defaults))
}

#[test]
fn a_default_gives_way_to_what_contradicts_it() {
    let sides = |text: &str, words: &[&str]| {
        let matches = with_defaults(text, &[&["ws", "apply", "x"], words].concat()).unwrap();
        let matches = matches.subcommand_matches("workspace").unwrap();
        let matches = matches.subcommand_matches("apply").unwrap();
        (matches.get_flag("ours"), matches.get_flag("theirs"))
    };
    let ours = "[workspace.apply]\nours = true\n";
    assert_eq!(sides(ours, &[]), (true, false));
    assert_eq!(sides(ours, &["--theirs"]), (false, true));
    assert_eq!(sides(ours, &["--theirs=false"]), (true, false));
    assert_eq!(sides(ours, &["--ours=false"]), (false, false));
    // By the other name of the command, and the later of two.
    assert_eq!(sides("[ws.apply]\nours = true\n", &["--theirs"]), (false, true));
    assert_eq!(sides("[ws.apply]\nours = true\ntheirs = true\n", &[]), (false, true));
    assert_eq!(sides("[ws.apply]\nours = true\ntheirs = false\n", &[]), (true, false));
    // Two on a command line are an error as ever.
    let both = ["ws", "apply", "x", "--ours", "--theirs"];
    assert!(with_defaults(ours, &both).unwrap_err().contains("cannot be used with"));
}

#[test]
fn what_stands_before_the_tables_is_for_every_command() {
    let verbose = |words: &[&str]| with_defaults("verbose = 1", words).unwrap().get_count("verbose");
    assert_eq!(verbose(&["scrub", "x"]), 1);
    assert_eq!(verbose(&["-vvv", "scrub", "x"]), 3);
    assert_eq!(verbose(&["scrub", "-vv", "x"]), 2);
}

#[test]
fn the_memory_of_mounts_is_one_of_their_options() {
    let config = parsed("[mount]\noptions = \"noatime\"\ncache = \"4G\"\n", true).unwrap();
    let text = config.mount.system.unwrap().text;
    assert!(text.split(',').any(|option| option == "cache=4G") && text.contains("noatime"), "{text}");
}
