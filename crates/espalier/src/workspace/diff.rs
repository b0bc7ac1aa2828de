//! `espalier workspace diff`.

use super::asked::{Asked, TREES, paths_below, shown};
use crate::args::WorkspaceDiff;
use crate::problem::Exit;
use crate::ui::{self, say};
use anyhow::{Context, Result};
use espalier_workspace::{Changed, Difference, Workspace, patch, statistics};
use serde_json::{Value, json};

pub(super) fn run(asked: &Asked<'_>, args: &WorkspaceDiff) -> Result<Exit> {
    let mut workspace = asked.find(&args.name)?;
    workspace.tidy(&TREES)?;
    let mut differences = workspace.differences(&TREES)?;
    let paths = paths_below(&workspace, &args.paths, &workspace.original())?;
    differences.retain(|d| paths.is_empty() || paths.iter().any(|path| d.path.starts_with(path)));
    if args.patch || args.stat {
        let text = if args.patch {
            patch(&TREES, &mut workspace, &differences)?
        } else {
            statistics(&TREES, &mut workspace, &differences)?
        };
        if asked.json {
            say!("{}", describe_text(&workspace, &text));
            return Ok(Exit::Success);
        }
        return ui::print_bytes(&text).context("standard output cannot be written").map(|()| Exit::Success);
    }
    if asked.json {
        let changes: Vec<Value> = differences.iter().map(describe).collect();
        say!("{}", json!({"name": workspace.record().name, "changes": changes}));
        return Ok(Exit::Success);
    }
    for difference in &differences {
        let path = difference.path.display();
        match &difference.change {
            _ if args.name_only => say!("{path}"),
            Changed::Added => say!("+ {path}"),
            Changed::Removed => say!("- {path}"),
            Changed::Modified => say!("~ {path}"),
            Changed::Renamed { from } => say!("> {} -> {path}", from.display()),
        }
    }
    Ok(Exit::Success)
}

/// JSON has text in UTF-8 alone; a patch is what files are, and is not changed on the way.
fn describe_text(workspace: &Workspace, text: &[u8]) -> Value {
    let name = &workspace.record().name;
    match std::str::from_utf8(text) {
        Ok(text) => json!({"name": name, "text": text}),
        Err(_) => json!({"name": name, "text": null, "base64": base64(text)}),
    }
}

/// The encoding of RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            // A group of n bytes has n + 1 digits.
            out.push(if digit <= group.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    out
}

fn describe(difference: &Difference) -> Value {
    let (change, from) = match &difference.change {
        Changed::Added => ("added", None),
        Changed::Removed => ("removed", None),
        Changed::Modified => ("changed", None),
        Changed::Renamed { from } => ("renamed", Some(shown(from))),
    };
    json!({"path": shown(&difference.path), "change": change, "kind": difference.kind.word(), "from": from})
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// Those of RFC 4648, section 10.
    #[test]
    fn bytes_are_encoded_as_everywhere() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xef, 0xff, 0xff]), "++///w==");
    }
}
