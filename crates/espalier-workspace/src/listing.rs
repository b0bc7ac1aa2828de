//! What a list of workspaces shows.

use crate::error::Result;
use crate::parallel;
use crate::process::Process;
use crate::processes::Processes;
use crate::trees::Trees;
use crate::workspace::Workspace;

/// What is shown of a workspace.
#[derive(Debug, Clone)]
pub struct Listed {
    /// It.
    pub workspace: Workspace,
    /// How many paths differ from its base; `None` if that cannot be known.
    pub changed: Option<usize>,
    /// The bytes that nothing else shares; `None` if the user may not know.
    pub own_bytes: Option<u64>,
    /// How many bytes it may hold alone.
    pub quota: Option<u64>,
    /// Processes that work in it.
    pub processes: Vec<Process>,
    /// Why it cannot be looked at, if so.
    pub problem: Option<String>,
}

impl Listed {
    /// Looks at all of these workspaces, at several at a time. They come back in the same order;
    /// one that cannot be looked at, as one with a file of another user, says why.
    ///
    /// # Errors
    /// None that concerns one workspace.
    pub fn all(
        trees: &(dyn Trees + Sync),
        workspaces: &[Workspace],
        processes: &Processes,
    ) -> Result<Vec<Self>> {
        parallel::map(workspaces, |workspace| {
            let looked = Self::of(trees, workspace, processes);
            Ok(looked.unwrap_or_else(|error| Self {
                workspace: workspace.clone(),
                changed: None,
                own_bytes: None,
                quota: None,
                processes: processes.in_tree(&workspace.place()),
                problem: Some(error.to_string()),
            }))
        })
    }

    /// Looks at a workspace.
    ///
    /// # Errors
    /// As for [`Workspace::tidy`] and [`Trees::survey`].
    pub fn of(trees: &dyn Trees, workspace: &Workspace, processes: &Processes) -> Result<Self> {
        let mut workspace = workspace.clone();
        workspace.tidy(trees)?;
        let (changed, own_bytes, limits) = workspace.survey(trees)?;
        Ok(Self {
            changed: Some(changed.len()),
            own_bytes,
            quota: limits.exclusive,
            processes: processes.in_tree(&workspace.place()),
            workspace,
            problem: None,
        })
    }
}

/// The bytes that nothing else shares with a workspace; `None` if the user may not know.
///
/// # Errors
/// Of the system.
pub fn own_bytes(trees: &dyn Trees, workspace: &Workspace) -> Result<Option<u64>> {
    trees.exclusive_bytes(&workspace.place())
}
