//! A column of the table: a file system, a user, a number of live workspaces.

use crate::options::User;
use serde::{Serialize, Serializer};

/// Whose figures they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Column {
    pub(super) contender: String,
    #[serde(serialize_with = "user_name")]
    pub(super) user: User,
    /// How many workspaces are there while it is measured.
    pub(super) live: usize,
}

impl Column {
    /// The words above the column.
    pub(super) fn title(&self) -> String {
        let mut title = self.contender.clone();
        if self.user == User::User {
            title.push_str(" user");
        }
        if self.live > 1 {
            title.push_str(&format!(" {}", self.live));
        }
        title
    }

    /// True for Espalier, of which something is asked.
    pub(super) fn is_ours(&self) -> bool {
        self.contender.starts_with("espalier")
    }
}

fn user_name<S: Serializer>(user: &User, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *user == User::Root { "root" } else { "user" })
}
