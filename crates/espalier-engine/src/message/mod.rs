//! Messages: how the messages for one key, or for a range of keys, give its value.

pub(crate) mod compose;
pub(crate) mod pending_clone;
pub(crate) mod range_messages;
pub(crate) mod resolve;

use crate::model::ids::Msn;
use crate::model::op::Op;

/// Messages of one key, newest first.
pub(crate) type Messages = Vec<(Msn, Op)>;
