//! What a list of workspaces shows.

use crate::error::Result;
use crate::process::Process;
use crate::processes::Processes;
use crate::trees::Trees;
use crate::workspace::Workspace;

/// What is shown of a workspace.
#[derive(Debug, Clone)]
pub struct Listed {
    /// It.
    pub workspace: Workspace,
    /// How many paths differ from its base.
    pub changed: usize,
    /// The bytes that nothing else shares; `None` if the user may not know.
    pub own_bytes: Option<u64>,
    /// How many bytes it may hold alone.
    pub quota: Option<u64>,
    /// Processes that work in it.
    pub processes: Vec<Process>,
}

impl Listed {
    /// Looks at a workspace.
    ///
    /// # Errors
    /// As for [`Workspace::differences`].
    pub fn of(trees: &dyn Trees, workspace: &Workspace, processes: &Processes) -> Result<Self> {
        Ok(Self {
            changed: workspace.differences(trees)?.len(),
            own_bytes: own_bytes(trees, workspace)?,
            quota: trees.limits(&workspace.place())?.exclusive,
            processes: processes.in_tree(&workspace.place()),
            workspace: workspace.clone(),
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
