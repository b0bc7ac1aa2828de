//! Links of documents: files and headings that they name must exist. A heading stands once below
//! the heading above it: a second one is a part that was copied by mistake, or cannot be linked to.

use crate::findings::{Check, Finding};
use crate::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};

/// Every relative link and every anchor that leads nowhere.
pub(crate) fn links(workspace: &Workspace) -> Vec<Finding> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        workspace.with_extension("md").map(|(path, text)| (path, anchors(text))).collect();
    let folders: BTreeSet<String> = workspace.files.keys().flat_map(|path| folders(path)).collect();
    let mut findings = Vec::new();
    for (path, text) in workspace.with_extension("md") {
        for (line, target) in targets(text) {
            let (file, anchor) = match target.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (target.as_str(), None),
            };
            let file = if file.is_empty() { Some(path.to_string()) } else { join(path, file) };
            let mut report = |message| findings.push(Finding::new(Check::Link, path, line, message));
            let exists = |file: &String| workspace.has(file) || folders.contains(file);
            match file.filter(exists) {
                None => report(format!("{target}: there is no such file")),
                Some(file) => {
                    let known = anchors.get(file.as_str());
                    let leads = |anchor: &str| known.is_none_or(|known| known.contains(anchor));
                    if !anchor.is_none_or(leads) {
                        report(format!("{target}: there is no such heading"));
                    }
                }
            }
        }
    }
    findings
}

/// Every heading that stands twice below the same heading.
pub(crate) fn repeated_headings(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in workspace.with_extension("md") {
        let (mut above, mut seen): (Vec<&str>, _) = (Vec::new(), BTreeSet::new());
        for (line, heading) in prose(text).filter(|(_, line)| line.starts_with('#')) {
            let level = heading.bytes().take_while(|byte| *byte == b'#').count();
            above.truncate(level - 1);
            above.resize(level - 1, "");
            above.push(heading);
            if !seen.insert(above.clone()) {
                let message = format!("{heading}: this heading stands here twice");
                findings.push(Finding::new(Check::Heading, path, line, message));
            }
        }
    }
    findings
}

/// The folders above a file.
fn folders(path: &str) -> Vec<String> {
    path.match_indices('/').map(|(at, _)| path[..at].to_string()).collect()
}

/// A path relative to the document at `path`; `None` if it leaves the checkout.
fn join(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The lines of a document outside blocks of code.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((n + 1, line))
    })
}

/// The relative targets of links, images and their definitions.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        // What stands between backticks is no link.
        let prose: String = prose.split('`').step_by(2).collect::<Vec<_>>().join("x");
        for begin in ["](", "]: ", "src=\"", "href=\""] {
            for (at, _) in prose.match_indices(begin) {
                let rest = &prose[at + begin.len()..];
                let end = rest.find([')', ' ', '"', '>']).unwrap_or(rest.len());
                let is_definition = begin != "]: " || prose.trim_start().starts_with('[');
                let target = &rest[..end];
                if is_definition && !target.is_empty() && !target.contains(':') {
                    found.push((line, target.to_string()));
                }
            }
        }
    }
    found
}

/// The anchors that a forge makes of the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.strip_prefix('#') else { continue };
        let heading = heading.trim_start_matches('#').trim();
        let kept = heading.to_lowercase().replace(' ', "-");
        let slug: String = kept.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect();
        let mut name = slug.clone();
        for n in 1.. {
            if anchors.insert(name) {
                break;
            }
            name = format!("{slug}-{n}");
        }
    }
    anchors
}

#[cfg(test)]
mod tests;
