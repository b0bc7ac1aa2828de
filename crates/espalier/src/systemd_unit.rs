//! `espalier unit`: prints the template unit for systemd.
//!
//! It lies in the program so that each way of installing has it.

use crate::args::Unit;
use crate::ui::say;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// The unit, with a mark in place of the program.
const TEMPLATE: &str = include_str!("systemd_unit/espalier@.service.in");

/// Stands for the program.
const PROGRAM_MARK: &str = "@PROGRAM@";

/// Characters of paths, beside letters and digits, that mean themselves in a unit.
const PLAIN: &str = "/._-+:@~";

/// Runs the command.
pub(crate) fn run(args: &Unit) -> Result<()> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => this_program()?,
    };
    say!("{}", unit(&program.display().to_string())?.trim_end());
    Ok(())
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("the path of this program is not known; name it")
}

/// The unit that runs the program with this path.
///
/// # Errors
/// systemd would understand the path otherwise.
fn unit(program: &str) -> Result<String> {
    ensure!(program.starts_with('/'), "'{program}' does not begin with /, as a program of a unit has to");
    let is_plain = program.chars().all(|c| c.is_ascii_alphanumeric() || PLAIN.contains(c));
    ensure!(is_plain, "'{program}' has a character that systemd does not take as it is; name a link to it");
    Ok(TEMPLATE.replace(PROGRAM_MARK, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_stands_in_the_unit_and_must_be_plain() {
        let unit_of = |path: &str| unit(path).map_err(|error| error.to_string());
        let made = unit_of("/opt/a-1/espalier").unwrap();
        assert_eq!(made.matches("/opt/a-1/espalier").count(), 3, "{made}");
        assert!(!made.contains(PROGRAM_MARK));
        for bad in ["espalier", "/a b/espalier", "/a%i/espalier", "/a\\x20b", "/a\nb"] {
            assert!(unit_of(bad).is_err(), "{bad}");
        }
    }
}
