//! The three-way rule for one path: a pure function.

use crate::entry::Kind;

/// What is at a path, on one side. Numbers are equal where content or attributes are; they mean
/// nothing beyond one [`Triple`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// What it is.
    pub kind: Kind,
    /// Bytes, target of a link, or device; 0 for directories.
    pub content: u32,
    /// Mode, owner and extended attributes.
    pub attributes: u32,
}

/// What is at a path in the base, in the workspace and in the target; `None` if nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triple {
    /// In the base.
    pub base: Option<Side>,
    /// In the workspace.
    pub workspace: Option<Side>,
    /// In the target.
    pub target: Option<Side>,
}

/// One of the two sides that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pick {
    /// The workspace.
    Workspace,
    /// The target.
    Target,
}

/// Why no side can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKind {
    /// Both have content that is new.
    Content,
    /// Both have attributes that are new.
    Mode,
    /// Gone on one side, changed on the other.
    Deletion,
    /// Moved on one side, and moved elsewhere or changed on the other.
    Rename,
    /// A file on one side, a directory on the other, and the like.
    Type,
}

impl ConflictKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Mode => "mode",
            Self::Deletion => "deletion",
            Self::Rename => "rename",
            Self::Type => "type",
        }
    }
}

/// What is to be done at a path of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: both sides are alike, or only the target changed.
    Keep,
    /// What the workspace has, also if that is nothing.
    Take,
    /// Content of one side, attributes of the other.
    Mix {
        /// Which side has the content.
        content: Pick,
        /// Which side has the attributes.
        attributes: Pick,
    },
    /// Neither can be preferred.
    Conflict(ConflictKind),
}

/// Which of two values to take when they come from a third: the one that changed. `None` if both
/// changed, and differ.
fn pick(base: u32, workspace: u32, target: u32) -> Option<Pick> {
    if target == base {
        Some(Pick::Workspace)
    } else if workspace == base || workspace == target {
        Some(Pick::Target)
    } else {
        None
    }
}

/// Whose attributes an entry gets whose content was merged; `None` if both changed them.
pub(crate) fn pick_attributes(triple: Triple) -> Option<Pick> {
    let (workspace, target) = (triple.workspace?, triple.target?);
    let base = triple.base.filter(|base| base.kind == target.kind)?;
    pick(base.attributes, workspace.attributes, target.attributes)
}

/// Decides what is to be done at a path.
pub fn decide(triple: Triple) -> Decision {
    let Triple { base, workspace, target } = triple;
    if workspace == target || workspace == base {
        return Decision::Keep;
    }
    if target == base {
        return Decision::Take;
    }
    let (Some(workspace), Some(target)) = (workspace, target) else {
        return Decision::Conflict(ConflictKind::Deletion);
    };
    if workspace.kind != target.kind {
        return Decision::Conflict(ConflictKind::Type);
    }
    // What both made anew has nothing in common but what is equal.
    let (content, attributes) = match base.filter(|base| base.kind == target.kind) {
        Some(base) => (
            pick(base.content, workspace.content, target.content),
            pick(base.attributes, workspace.attributes, target.attributes),
        ),
        None => (
            (workspace.content == target.content).then_some(Pick::Target),
            (workspace.attributes == target.attributes).then_some(Pick::Target),
        ),
    };
    match (content, attributes) {
        (None, _) => Decision::Conflict(ConflictKind::Content),
        (_, None) => Decision::Conflict(ConflictKind::Mode),
        (Some(Pick::Workspace), Some(Pick::Workspace)) => Decision::Take,
        (Some(Pick::Target), Some(Pick::Target)) => Decision::Keep,
        (Some(content), Some(attributes)) => Decision::Mix { content, attributes },
    }
}

#[cfg(test)]
mod tests;
