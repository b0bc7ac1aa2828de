//! `espalier workspace`: the life of clones that people and programs work in. Everything is done by
//! `espalier-workspace`; here is what is asked for and shown.

mod apply;
mod asked;
mod create;
mod diff;
mod life;
mod list;

use crate::args::{Workspace as Arguments, WorkspaceCommand};
use crate::problem::Exit;
use anyhow::Result;
use asked::Asked;
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &Arguments) -> Result<Exit> {
    let asked = Asked { at: args.around.as_deref().unwrap_or(Path::new(".")), json: args.json };
    match &args.what {
        WorkspaceCommand::Create(args) => create::run(&asked, args),
        WorkspaceCommand::List => list::run(&asked),
        WorkspaceCommand::Diff(args) => diff::run(&asked, args),
        WorkspaceCommand::Checkpoint(args) => life::checkpoint(&asked, args),
        WorkspaceCommand::Log(args) => life::log(&asked, args),
        WorkspaceCommand::Undo(args) => life::undo(&asked, args),
        WorkspaceCommand::Apply(args) => apply::run(&asked, args),
        WorkspaceCommand::Promote(args) => life::promote(&asked, args),
        WorkspaceCommand::Exec(args) => life::exec(&asked, args),
        WorkspaceCommand::Discard(args) => life::discard(&asked, args),
        WorkspaceCommand::Gc(args) => life::gc(&asked, args),
    }
}
