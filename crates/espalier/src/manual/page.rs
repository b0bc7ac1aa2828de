//! One manual page, as man(7) text.

use super::examples::{self, Paragraph};
use crate::args::mount_options::MOUNT_OPTIONS;
use anyhow::{Context, Result};
use roff::{Inline, Roff, bold, roman};
use std::io::Write;

/// When the pages were last looked through, in the format of mandoc(1). Fixed, so that two builds
/// are equal.
const DATE: &str = "November 26, 2026";

/// Stands in a written page for the options of a command, whose name follows.
const OPTIONS_MARK: &str = ".\\\" OPTIONS OF ";
/// Stands in a written page for the mount options.
const MOUNT_OPTIONS_MARK: &str = ".\\\" MOUNT OPTIONS";

/// A page.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) section: &'static str,
    pub(super) text: Vec<u8>,
}

impl Page {
    /// The page of a command; `also` names the pages of the commands below it.
    pub(super) fn of_command(command: &clap::Command, name: &str, also: &[&str]) -> Result<Self> {
        let man = clap_mangen::Man::new(command.clone());
        let mut text = title(name, "1");
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if !also.is_empty() {
            commands(command, name).to_writer(&mut text)?;
        }
        if name == "espalier-mount" {
            text.extend_from_slice(b".SH MOUNT OPTIONS\n");
            mount_options().to_writer(&mut text)?;
        }
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        sections(&examples::paragraphs(&help)).to_writer(&mut text)?;
        if name == "espalier" {
            text.extend_from_slice(include_bytes!("espalier.1"));
        } else {
            see_also(name, also).to_writer(&mut text)?;
        }
        Ok(Self { name: name.to_owned(), section: "1", text: tidied(text) })
    }

    /// The same page under another name: a copy, since links do not outlive all ways of packing.
    pub(super) fn called(&self, name: &str) -> Self {
        Self { name: name.to_owned(), section: self.section, text: self.text.clone() }
    }

    /// A page that is written, up to its lists of options.
    pub(super) fn written(
        name: &str,
        section: &'static str,
        source: &str,
        root: &clap::Command,
    ) -> Result<Self> {
        let mut text = title(name, section);
        for line in source.lines() {
            if let Some(command) = line.strip_prefix(OPTIONS_MARK) {
                let command = root
                    .find_subcommand(command)
                    .with_context(|| format!("there is no command {command}"))?;
                clap_mangen::Man::new(command.clone()).render_options_section(&mut text)?;
            } else if line == MOUNT_OPTIONS_MARK {
                mount_options().to_writer(&mut text)?;
            } else {
                writeln!(text, "{line}")?;
            }
        }
        Ok(Self { name: name.to_owned(), section, text: tidied(text) })
    }
}

/// Text of a page is broken into lines that are no longer.
const LINE_BYTES: usize = 80;

/// Without what the generators write and mandoc(1) objects to: the definition of the apostrophe
/// before each section and not only at the top, breaks that are no paragraphs, defaults that are
/// empty, and long lines.
fn tidied(text: Vec<u8>) -> Vec<u8> {
    const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
    let text = String::from_utf8_lossy(&text);
    let (top, rest) = text.split_once(APOSTROPHE).unwrap_or(("", &text));
    let rest = rest.replace(APOSTROPHE, "").replace(".br\n\n.br\n", ".sp\n").replace(" [default: ]", "");
    folded(&format!("{top}{APOSTROPHE}{rest}")).into_bytes()
}

/// The same page in short lines. A line after `.TP` is the name of what follows, and lines between
/// `.nf` and `.fi` are shown as they are: they stay whole.
fn folded(text: &str) -> String {
    let mut out = String::new();
    let (mut before, mut as_it_is) = ("", false);
    for line in text.lines() {
        as_it_is = match line {
            ".nf" => true,
            ".fi" => false,
            _ => as_it_is,
        };
        if as_it_is || line.starts_with(['.', '\'']) || before == ".TP" {
            out.push_str(line);
        } else {
            fold(line, &mut out);
        }
        out.push('\n');
        before = line;
    }
    out
}

fn fold(line: &str, out: &mut String) {
    let mut length = 0;
    for word in line.trim_end().split_inclusive(' ') {
        let text = word.trim_end();
        let space = out.ends_with(' ') && !out.ends_with("\\ ");
        if space && length + text.len() > LINE_BYTES && !text.is_empty() {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            length = 0;
            // What begins with these would be a macro at the start of a line.
            if text.starts_with(['.', '\'']) {
                out.push_str("\\&");
            }
        }
        out.push_str(word);
        length += word.len();
    }
}

/// The line with which a page begins.
fn title(name: &str, section: &str) -> Vec<u8> {
    let mut roff = Roff::new();
    let version = concat!("Espalier ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [&*name.to_uppercase(), section, DATE, version, "Espalier"]);
    roff.render().into_bytes()
}

/// The commands below a command, with what they do.
fn commands(command: &clap::Command, name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        roff.control("TP", []);
        let about = below.get_about().map(ToString::to_string).unwrap_or_default();
        roff.text([bold(format!("{name}-{}", below.get_name())), roman("(1)")]);
        roff.text([roman(about)]);
    }
    roff
}

fn mount_options() -> Roff {
    let mut roff = Roff::new();
    for option in MOUNT_OPTIONS {
        roff.control("TP", []);
        let mut names: Vec<Inline> = Vec::new();
        for name in option.names.split(", ") {
            if !names.is_empty() {
                names.push(roman(", "));
            }
            names.push(bold(name));
        }
        roff.text(names);
        roff.text([roman(option.meaning)]);
    }
    roff
}

/// What help says at its end, in sections.
fn sections(paragraphs: &[Paragraph]) -> Roff {
    let mut roff = Roff::new();
    let mut heading = "";
    for paragraph in paragraphs {
        if paragraph.heading() != heading {
            heading = paragraph.heading();
            roff.control("SH", [heading]);
        } else if !matches!(paragraph, Paragraph::Example(_, Some(_))) {
            roff.control("PP", []);
        }
        match paragraph {
            Paragraph::Text(_, text) => {
                roff.text([roman(text)]);
            }
            Paragraph::Example(command, None) => {
                roff.text([bold(command)]);
            }
            Paragraph::Example(command, Some(meaning)) => {
                roff.control("TP", []);
                roff.text([bold(command)]);
                roff.text([roman(meaning)]);
            }
        }
    }
    roff
}

fn see_also(name: &str, also: &[&str]) -> Roff {
    let mut pages: Vec<(&str, &str)> = also.iter().map(|page| (*page, "1")).collect();
    // `espalier-snapshot-create` lies below `espalier-snapshot`, and that below `espalier`.
    if let Some((above, _)) = name.rsplit_once('-') {
        pages.insert(0, (above, "1"));
    }
    match name {
        "espalier-mkfs" | "espalier-fsck" | "espalier-salvage" => pages.push(("espalier", "5")),
        "espalier-unit" => pages.push(("mount.espalier", "8")),
        "espalier-mount" | "espalier-umount" => {
            pages.extend([("mount.espalier", "8"), ("espalier.toml", "5")]);
        }
        _ => {}
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (page, section) in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(page), roman(format!("({section})"))]);
    }
    roff.text(line);
    roff
}
