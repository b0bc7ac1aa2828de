//! What the messages for one key, or for a range of keys, come to.

pub(crate) mod compose;
pub(crate) mod range_messages;
pub(crate) mod resolve;
