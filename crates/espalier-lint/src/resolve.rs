//! Which module a path of the code leads to, through imports and names that are published again.

use crate::modules::{Crate, Module};
use std::collections::{BTreeMap, BTreeSet};

/// Longest chain of imports that is followed.
const MAX_IMPORT_DEPTH: usize = 16;

/// A use of one file by another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) line: usize,
    pub(crate) path: String,
}

impl Crate {
    /// The module that a path names in module `from`, or that defines what it names; `None` for
    /// what other crates define.
    pub(crate) fn resolve(&self, from: usize, path: &[String]) -> Option<usize> {
        self.follow(from, path, MAX_IMPORT_DEPTH).map(|(module, _)| module)
    }

    /// Like [`Crate::resolve`], with the name of the item if it is not a module itself.
    pub(crate) fn follow(
        &self,
        from: usize,
        path: &[String],
        depth: usize,
    ) -> Option<(usize, Option<String>)> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let module = &self.modules[from];
        match first.as_str() {
            "crate" => self.descend(0, rest, depth),
            "self" => self.descend(from, rest, depth),
            "super" => self.descend(module.parent?, rest, depth),
            _ => self.named(from, first, rest, depth),
        }
    }

    fn descend(&self, at: usize, path: &[String], depth: usize) -> Option<(usize, Option<String>)> {
        let Some((first, rest)) = path.split_first() else { return Some((at, None)) };
        if first == "super" {
            return self.descend(self.modules[at].parent?, rest, depth);
        }
        // A macro makes names that are not seen here: they count as the module's own.
        Some(self.named(at, first, rest, depth).unwrap_or((at, Some(first.clone()))))
    }

    /// What `name` is in a module, followed by `rest`.
    fn named(
        &self,
        at: usize,
        name: &String,
        rest: &[String],
        depth: usize,
    ) -> Option<(usize, Option<String>)> {
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return self.descend(*child, rest, depth);
        }
        if module.items.contains(name) {
            return Some((at, Some(name.clone())));
        }
        if let Some(import) = module.imports.get(name).filter(|import| import.first() != Some(name)) {
            let whole: Vec<String> = import.iter().chain(rest).cloned().collect();
            return self.follow(at, &whole, depth);
        }
        let depth = depth.checked_sub(1)?;
        module.globs.iter().find_map(|glob| {
            let (target, _) = self.follow(at, glob, depth)?;
            (target != at && self.has(target, name)).then(|| self.named(target, name, rest, depth))?
        })
    }

    fn has(&self, at: usize, name: &String) -> bool {
        let module = &self.modules[at];
        module.children.contains_key(name)
            || module.items.contains(name)
            || module.imports.contains_key(name)
            || !module.globs.is_empty()
    }

    /// Every use of one module by another, the first line of each; a name that a module only
    /// publishes again is no use of it.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses: BTreeMap<(usize, usize), Use> = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            let published = module.reexports.iter().filter(|one| module.used.contains(&one.name));
            for reference in module.references.iter().chain(published) {
                let Some(to) = self.resolve(from, &reference.path) else { continue };
                let line = reference.line;
                let path = reference.path.join("::");
                let found = Use { from, to, line, path };
                let known = uses.entry((from, to)).or_insert_with(|| found.clone());
                if found.line < known.line {
                    *known = found;
                }
            }
        }
        uses.into_values().filter(|one| self.modules[one.from].file != self.modules[one.to].file).collect()
    }

    /// The files, each with the modules in it.
    pub(crate) fn files(&self) -> BTreeSet<&str> {
        self.modules.iter().map(|module| module.file.as_str()).collect()
    }

    /// A module of the file at this path.
    pub(crate) fn module_of(&self, file: &str) -> Option<&Module> {
        self.modules.iter().find(|module| module.file == file)
    }
}
