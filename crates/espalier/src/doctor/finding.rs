//! What a check of `espalier doctor` finds.

use serde_json::{Value, json};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grade {
    /// As it should be.
    Good,
    /// Something is slower or less comfortable than it could be.
    Advice,
    /// No mount of this user works.
    Broken,
}

impl Grade {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Advice => "advice",
            Self::Broken => "broken",
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    /// What is there.
    pub(super) found: String,
    /// What to do, unless all is good.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, grade: Grade::Good, found: found.into(), advice: None }
    }

    pub(super) fn advice(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what, grade: Grade::Advice, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn broken(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what, grade: Grade::Broken, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "what": self.what,
            "grade": self.grade.word(),
            "found": self.found,
            "advice": self.advice,
        })
    }
}
