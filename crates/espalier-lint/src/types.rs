//! Types: names that occur twice, and the largest.

use crate::findings::{Check, Finding};
use crate::modules::Crate;
use std::collections::{BTreeMap, BTreeSet};

/// How deep imports are followed to find the type of an `impl` block.
const IMPORT_DEPTH: usize = 16;

/// A type with what it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) fields: usize,
    pub(crate) methods: usize,
    /// Files with inherent methods of it.
    pub(crate) files: BTreeSet<String>,
}

/// Crate-visible types that share a name with another one of their crate.
pub(crate) fn shared_names(modules: &Crate) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for module in &modules.modules {
        for definition in module.types.iter().filter(|definition| definition.crate_visible) {
            places.entry(&definition.name).or_default().push((&module.file, definition.line));
        }
    }
    let mut findings = Vec::new();
    for (name, mut places) in places {
        places.sort();
        let Some((first, rest)) = places.split_first() else { continue };
        for (file, line) in rest {
            let message = format!("the type {name} is also in {}:{}", first.0, first.1);
            findings.push(Finding::new(Check::TypeName, file, *line, message));
        }
    }
    findings
}

/// How often the commonest names of types occur, private ones included.
pub(crate) fn commonest_names(modules: &Crate) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for definition in modules.modules.iter().flat_map(|module| &module.types) {
        *counts.entry(&definition.name).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 1).collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    counts.into_iter().take(6).map(|(name, count)| (name.to_string(), count)).collect()
}

/// The size of every struct and enum.
pub(crate) fn sizes(modules: &Crate) -> Vec<Size> {
    let mut sizes: BTreeMap<(usize, String), Size> = BTreeMap::new();
    for (number, module) in modules.modules.iter().enumerate() {
        for definition in &module.types {
            let size = sizes.entry((number, definition.name.clone())).or_default();
            *size = Size {
                name: definition.name.clone(),
                file: module.file.clone(),
                fields: definition.fields,
                ..Size::default()
            };
        }
    }
    for (number, module) in modules.modules.iter().enumerate() {
        for block in &module.impls {
            let Some((at, Some(name))) = modules.follow(number, &block.path, IMPORT_DEPTH) else { continue };
            if let Some(size) = sizes.get_mut(&(at, name)) {
                size.methods += block.methods;
                size.files.insert(module.file.clone());
            }
        }
    }
    sizes.into_values().collect()
}

#[cfg(test)]
mod tests;
