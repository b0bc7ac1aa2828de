//! The modules of a crate: what each defines, imports and refers to.
//!
//! Code that only tests have is left out: items with `#[cfg(test)]`, the modules declared so, and
//! folders called `tests`.

use crate::workspace::Workspace;
use anyhow::{Context, Result};
use proc_macro2::{Ident, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// A crate as a tree of modules; the first is its root.
pub(crate) struct Crate {
    /// Its folder below the checkout, `crates/NAME`.
    pub(crate) folder: String,
    pub(crate) modules: Vec<Module>,
}

/// A module: a file, or an inline module of one.
#[derive(Default)]
pub(crate) struct Module {
    /// Names from the root of the crate down.
    pub(crate) path: Vec<String>,
    /// The path of its file.
    pub(crate) file: String,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// Names that it defines, other than modules.
    pub(crate) items: BTreeSet<String>,
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Modules whose names it imports all.
    pub(crate) globs: Vec<Vec<String>>,
    pub(crate) references: Vec<Reference>,
    /// Names that it publishes again from elsewhere, with the path they come from.
    pub(crate) reexports: Vec<Reference>,
    /// The first name of every path in the code.
    pub(crate) used: BTreeSet<String>,
    pub(crate) types: Vec<TypeDefinition>,
    pub(crate) impls: Vec<InherentImpl>,
}

/// A path in the code.
#[derive(Clone)]
pub(crate) struct Reference {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// The name under which an import knows it.
    pub(crate) name: String,
}

/// A type or trait.
#[derive(Clone)]
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) fields: usize,
    /// Seen by the whole crate at least.
    pub(crate) crate_visible: bool,
}

/// An `impl` block of a type, without a trait.
#[derive(Clone)]
pub(crate) struct InherentImpl {
    pub(crate) path: Vec<String>,
    pub(crate) methods: usize,
}

impl Crate {
    /// Reads the modules of the crate in `folder`, tests left out.
    pub(crate) fn read(workspace: &Workspace, folder: &str) -> Result<Self> {
        let source = format!("{folder}/src/");
        let has_library = workspace.has(&format!("{source}lib.rs"));
        let mut paths: Vec<(Vec<String>, &str)> = workspace
            .with_extension("rs")
            .filter_map(|(path, _)| Some((module_path(path.strip_prefix(&source)?, has_library), path)))
            .filter(|(path, _)| !path.iter().any(|name| name == "tests"))
            .collect();
        // A module comes after the one that declares it.
        paths.sort();
        let mut this = Self { folder: folder.into(), modules: Vec::new() };
        let mut only_tests: Vec<Vec<String>> = Vec::new();
        for (path, file) in paths {
            if only_tests.iter().any(|tests| path.starts_with(tests)) {
                continue;
            }
            let syntax =
                syn::parse_file(&workspace.files[file]).with_context(|| format!("parsing {file}"))?;
            let module = this.add(path, file);
            let mut reader = Reader { modules: &mut this.modules, at: module, only_tests: Vec::new() };
            reader.visit_file(&syntax);
            only_tests.append(&mut reader.only_tests);
        }
        Ok(this)
    }

    fn add(&mut self, path: Vec<String>, file: &str) -> usize {
        let number = self.modules.len();
        let parent = path.split_last().and_then(|(name, above)| {
            let parent = self.modules.iter().position(|module| module.path == above)?;
            self.modules[parent].children.insert(name.clone(), number);
            Some(parent)
        });
        self.modules.push(Module { path, file: file.into(), parent, ..Module::default() });
        number
    }
}

impl Module {
    /// Whether it only declares other modules and publishes their names: then it needs no layer.
    pub(crate) fn only_publishes(&self) -> bool {
        self.items.is_empty() && self.impls.is_empty() && self.references.is_empty()
    }
}

/// The module path of a file, given relative to `src`. The program of a library is a module `main`.
fn module_path(file: &str, has_library: bool) -> Vec<String> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let mut path: Vec<String> = stem.split('/').map(String::from).collect();
    if path.last().is_some_and(|last| last == "mod") || stem == "lib" || (stem == "main" && !has_library) {
        path.pop();
    }
    path
}

/// Whether an item is for tests only.
pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            let has = |word| text.split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
            has("test") && !has("not")
        }
        _ => false,
    })
}

/// The attributes of an item.
pub(crate) fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::ForeignMod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The attributes of an item of an `impl` block.
pub(crate) fn attributes_of_impl_item(item: &syn::ImplItem) -> &[syn::Attribute] {
    match item {
        syn::ImplItem::Const(item) => &item.attrs,
        syn::ImplItem::Fn(item) => &item.attrs,
        syn::ImplItem::Type(item) => &item.attrs,
        syn::ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Fills in one module from its syntax tree.
struct Reader<'a> {
    modules: &'a mut Vec<Module>,
    at: usize,
    /// Modules that are declared for tests only.
    only_tests: Vec<Vec<String>>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        &mut self.modules[self.at]
    }

    fn refer(&mut self, path: Vec<String>, line: usize) {
        let Some(first) = path.first() else { return };
        self.module().used.insert(first.clone());
        if path.len() > 1 {
            self.module().references.push(Reference { path, line, name: String::new() });
        }
    }

    fn define(&mut self, name: &Ident, visibility: &syn::Visibility, fields: Option<usize>) {
        self.module().items.insert(name.to_string());
        if let Some(fields) = fields {
            let crate_visible = self.is_crate_visible(visibility);
            let line = name.span().start().line;
            let definition = TypeDefinition { name: name.to_string(), line, fields, crate_visible };
            self.module().types.push(definition);
        }
    }

    fn is_crate_visible(&self, visibility: &syn::Visibility) -> bool {
        match visibility {
            syn::Visibility::Public(_) => true,
            syn::Visibility::Restricted(restricted) => {
                let above_is_root = self.modules[self.at].path.len() <= 1;
                restricted.path.is_ident("crate") || (above_is_root && restricted.path.is_ident("super"))
            }
            syn::Visibility::Inherited => false,
        }
    }

    fn import(&mut self, tree: &syn::UseTree, path: &mut Vec<String>, published: bool) {
        let add = |this: &mut Self, name: &Ident, alias: &Ident, path: &[String]| {
            let mut path = path.to_vec();
            // `use a::{self}` is `use a`.
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            let alias = if alias == "self" { path[path.len() - 1].clone() } else { alias.to_string() };
            let line = name.span().start().line;
            let reference = Reference { path: path.clone(), line, name: alias.clone() };
            let module = this.module();
            module.imports.insert(alias, path);
            if published { &mut module.reexports } else { &mut module.references }.push(reference);
        };
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, published);
                path.pop();
            }
            syn::UseTree::Name(part) => add(self, &part.ident, &part.ident, path),
            syn::UseTree::Rename(part) => add(self, &part.ident, &part.rename, path),
            syn::UseTree::Glob(star) => {
                self.module().globs.push(path.clone());
                if !published {
                    let line = star.star_token.spans[0].start().line;
                    self.refer(path.clone(), line);
                }
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path, published));
            }
        }
    }

    /// Finds paths in the tokens of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons < 2 {
                        self.refer(std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.refer(std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.refer(path, line);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_test(attributes_of(item)) {
            if let syn::Item::Mod(module) = item {
                let mut path = self.module().path.clone();
                path.push(module.ident.to_string());
                self.only_tests.push(path);
            }
            return;
        }
        match item {
            syn::Item::Struct(item) => self.define(&item.ident, &item.vis, Some(item.fields.len())),
            syn::Item::Enum(item) => self.define(&item.ident, &item.vis, Some(0)),
            syn::Item::Union(item) => self.define(&item.ident, &item.vis, Some(0)),
            syn::Item::Trait(item) => self.define(&item.ident, &item.vis, Some(0)),
            syn::Item::Type(item) => self.define(&item.ident, &item.vis, Some(0)),
            syn::Item::Const(item) => self.define(&item.ident, &item.vis, None),
            syn::Item::Static(item) => self.define(&item.ident, &item.vis, None),
            syn::Item::Fn(item) => self.define(&item.sig.ident, &item.vis, None),
            syn::Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.define(name, &syn::Visibility::Inherited, None);
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let Some((_, items)) = &item.content else { return };
        let number = self.modules.len();
        let (mut path, file) = (self.module().path.clone(), self.module().file.clone());
        path.push(item.ident.to_string());
        self.module().children.insert(item.ident.to_string(), number);
        self.modules.push(Module { path, file, parent: Some(self.at), ..Module::default() });
        let outer = std::mem::replace(&mut self.at, number);
        items.iter().for_each(|item| self.visit_item(item));
        self.at = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let published = !matches!(item.vis, syn::Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.import(&item.tree, &mut Vec::new(), published);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            let is_method =
                |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(f) if !is_test(&f.attrs));
            let methods = item.items.iter().filter(is_method).count();
            let path = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.module().impls.push(InherentImpl { path, methods });
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !is_test(attributes_of_impl_item(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !is_test(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !is_test(&block.attrs) {
            visit::visit_expr_block(self, block);
        }
    }

    fn visit_stmt_macro(&mut self, item: &'ast syn::StmtMacro) {
        if !is_test(&item.attrs) {
            visit::visit_stmt_macro(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (path.leading_colon, path.segments.first()) {
            let line = first.ident.span().start().line;
            self.refer(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.scan(item.tokens.clone());
    }

    // `pub(in path)` and attributes use nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
