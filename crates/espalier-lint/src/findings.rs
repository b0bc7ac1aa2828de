//! What the checks look for, and what one found.

use std::fmt;

/// The checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// A module uses one of a higher layer.
    Upward,
    /// Files or modules use each other in a circle.
    Circle,
    /// A module is in no layer, or a layer names a module that does not exist.
    Unlisted,
    /// A comment or document is too wide.
    Width,
    /// A word of the list stands for a piece of code.
    Word,
    /// A function is too long.
    Length,
    /// A function takes too many parameters.
    Parameters,
    /// Control flow is nested too deeply.
    Nesting,
    /// Two crate-visible types of a crate share a name.
    TypeName,
    /// A link or anchor of a document leads nowhere.
    Link,
    /// A heading of a document stands twice in the same place.
    Heading,
    /// A test or function that a document names does not exist.
    Name,
}

impl Check {
    pub(crate) const ALL: [Self; 12] = [
        Self::Upward,
        Self::Circle,
        Self::Unlisted,
        Self::Width,
        Self::Word,
        Self::Length,
        Self::Parameters,
        Self::Nesting,
        Self::TypeName,
        Self::Link,
        Self::Heading,
        Self::Name,
    ];
}

/// Something that a check found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) check: Check,
    /// Relative to the root of the checkout.
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(check: Check, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { check, path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{:?}]", self.path, self.line, self.message, self.check)
    }
}
