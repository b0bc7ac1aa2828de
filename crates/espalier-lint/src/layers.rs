//! The order of the modules of a crate, and what departs from it.

use crate::findings::{Check, Finding};
use crate::graph::circles;
use crate::modules::Crate;
use crate::resolve::Use;
use crate::workspace::Workspace;
use std::collections::BTreeSet;

/// The layers of a crate, from the top down.
pub(crate) struct Layers {
    /// The path of the file that says them.
    path: String,
    /// The module paths of each layer, with the line where they stand.
    rows: Vec<(usize, Vec<Vec<String>>)>,
}

/// Where a module stands: the row, and the entry in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    row: usize,
    entry: usize,
}

/// How a crate keeps to its layers.
#[derive(Default)]
pub(crate) struct Structure {
    pub(crate) findings: Vec<Finding>,
    /// Uses between files.
    pub(crate) uses: usize,
    /// Pairs of entries of the layers, one of which uses the other.
    pub(crate) arrows: usize,
    /// Those that run upwards.
    pub(crate) upward: usize,
    /// Files in circles.
    pub(crate) files_in_circles: usize,
    /// Entries of the layers in circles.
    pub(crate) entries_in_circles: usize,
}

impl Layers {
    /// The layers of the crate in `folder`, if it has any.
    pub(crate) fn read(workspace: &Workspace, folder: &str) -> Option<Self> {
        let path = format!("{folder}/layers.txt");
        let text = workspace.files.get(&path)?;
        let split =
            |name: &str| name.split("::").flat_map(|part| part.split('/')).map(String::from).collect();
        let rows = text
            .lines()
            .enumerate()
            .map(|(n, line)| (n + 1, line.split('#').next().unwrap_or(line)))
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(n, line)| (n, line.split_whitespace().map(split).collect()))
            .collect();
        Some(Self { path, rows })
    }

    /// Where a module stands: at the longest entry that is its path or above it. The root of the
    /// crate stands above all if no entry names it.
    fn place(&self, path: &[String]) -> Option<Place> {
        let lib = ["lib".to_string()];
        let path = if path.is_empty() { &lib } else { path };
        let mut best: Option<(usize, Place)> = None;
        for (row, (_, entries)) in self.rows.iter().enumerate() {
            for (entry, name) in entries.iter().enumerate() {
                if path.starts_with(name) && best.is_none_or(|(len, _)| len < name.len()) {
                    best = Some((name.len(), Place { row: row + 1, entry }));
                }
            }
        }
        let is_root = path == lib || path == ["main".to_string()];
        best.map(|(_, place)| place).or(is_root.then_some(Place { row: 0, entry: 0 }))
    }

    fn name(&self, place: Place) -> String {
        match place.row.checked_sub(1) {
            Some(row) => self.rows[row].1[place.entry].join("/"),
            None => "lib".into(),
        }
    }

    /// Entries that name no module.
    fn unknown(&self, modules: &Crate) -> Vec<Finding> {
        let exists = |name: &Vec<String>| {
            name == &["lib"] || modules.modules.iter().any(|module| module.path.starts_with(name))
        };
        let entries =
            self.rows.iter().flat_map(|(line, entries)| entries.iter().map(move |name| (line, name)));
        entries
            .filter(|(_, name)| !exists(name))
            .map(|(line, name)| {
                let message = format!("there is no module {}", name.join("/"));
                Finding::new(Check::Unlisted, &self.path, *line, message)
            })
            .collect()
    }
}

/// Compares the uses between the modules of a crate with its layers. Without layers only circles of
/// files are found.
pub(crate) fn structure(modules: &Crate, layers: Option<&Layers>) -> Structure {
    let uses = modules.uses();
    let mut this = Structure { uses: uses.len(), ..Structure::default() };
    let name = |module: usize| modules.modules[module].file.as_str();
    let files: BTreeSet<(&str, &str)> = uses.iter().map(|one| (name(one.from), name(one.to))).collect();
    for circle in circles(&files) {
        this.files_in_circles += circle.len();
        let short =
            |file: &&str| file.strip_prefix(&format!("{}/src/", modules.folder)).unwrap_or(file).to_string();
        let names: Vec<String> = circle.iter().map(short).collect();
        let message = format!("{} files use each other in a circle: {}", circle.len(), names.join(" "));
        this.findings.push(Finding::new(Check::Circle, circle[0], 1, message));
        // What would have to go, for each pair of them.
        for one in
            uses.iter().filter(|one| circle.contains(&name(one.from)) && circle.contains(&name(one.to)))
        {
            let message = format!("  uses {} ({})", short(&name(one.to)), one.path);
            this.findings.push(Finding::new(Check::Circle, name(one.from), one.line, message));
        }
    }
    if let Some(layers) = layers {
        compare(modules, layers, &uses, &mut this);
    }
    this
}

fn compare(modules: &Crate, layers: &Layers, uses: &[Use], this: &mut Structure) {
    this.findings.append(&mut layers.unknown(modules));
    for file in modules.files() {
        let Some(module) = modules.module_of(file) else { continue };
        if layers.place(&module.path).is_none() && !module.only_publishes() {
            let message = format!("{} is in no layer of {}", module.path.join("/"), layers.path);
            this.findings.push(Finding::new(Check::Unlisted, file, 1, message));
        }
    }
    let mut arrows = BTreeSet::new();
    for one in uses {
        let (from, to) = (&modules.modules[one.from], &modules.modules[one.to]);
        let (Some(above), Some(below)) = (layers.place(&from.path), layers.place(&to.path)) else { continue };
        if above == below {
            continue;
        }
        arrows.insert((above, below));
        if below.row < above.row {
            let names = (layers.name(above), layers.name(below));
            let message = format!("{} uses {} of a higher layer ({})", names.0, names.1, one.path);
            this.findings.push(Finding::new(Check::Upward, &from.file, one.line, message));
        }
    }
    this.arrows = arrows.len();
    this.upward = arrows.iter().filter(|(from, to)| to.row < from.row).count();
    let all = circles(&arrows);
    this.entries_in_circles = all.iter().map(Vec::len).sum();
    arrows.retain(|(from, to)| from.row == to.row);
    for circle in circles(&arrows) {
        let names: Vec<String> = circle.iter().map(|place| layers.name(*place)).collect();
        let line = layers.rows.get(circle[0].row.wrapping_sub(1)).map_or(1, |(line, _)| *line);
        let message = format!("modules of one layer use each other in a circle: {}", names.join(" "));
        this.findings.push(Finding::new(Check::Circle, &layers.path, line, message));
    }
}

#[cfg(test)]
mod tests;
