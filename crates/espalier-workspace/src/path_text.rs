//! Paths as text in JSON: UTF-8 as it is, other bytes and backslashes as `\xHH`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The text of a path.
pub(crate) fn encode(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\x5c"));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The path that a text stands for; `None` if it stands for none.
pub(crate) fn decode(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.strip_prefix('x')?;
        bytes.push(u8::from_str_radix(digits.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&digits.as_bytes()[2..]);
    }
    Some(OsString::from_vec(bytes).into())
}

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(path))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| D::Error::custom(format!("'{text}' is no path")))
}

/// The same for a path that may be missing.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Error, PathBuf, Serializer, decode, encode};

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(crate) fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => to.serialize_some(&encode(path)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        decode(&text).map(Some).ok_or_else(|| D::Error::custom(format!("'{text}' is no path")))
    }
}

#[cfg(test)]
mod tests;
