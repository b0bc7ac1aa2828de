//! Sizes of functions: lines, parameters, nesting of control flow.

use crate::findings::{Check, Finding};
use crate::modules::{attributes_of, attributes_of_impl_item, is_test};
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Most lines of a function, from its signature to its closing brace.
const MAX_FUNCTION_LINES: usize = 70;
/// Most parameters of a function, `self` included.
const MAX_PARAMETERS: usize = 7;
/// Deepest nesting of control flow and closures in a function.
const MAX_NESTING: usize = 5;

/// Every function that is too large, in code that is not for tests only.
pub(crate) fn functions(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, text) in workspace.with_extension("rs") {
        let is_test_file = |part| part == "tests" || part == "tests.rs";
        if path.split('/').any(is_test_file) || is_declared_for_tests(workspace, path) {
            continue;
        }
        let syntax = syn::parse_file(text).with_context(|| format!("parsing {path}"))?;
        Sizes { path, findings: &mut findings }.visit_file(&syntax);
    }
    Ok(findings)
}

/// Whether the module that declares this file does so for tests.
fn is_declared_for_tests(workspace: &Workspace, path: &str) -> bool {
    let Some((folder, name)) = path.strip_suffix(".rs").and_then(|stem| stem.rsplit_once('/')) else {
        return false;
    };
    let declaration = format!("#[cfg(test)]\nmod {name};");
    let parents = [format!("{folder}.rs"), format!("{folder}/mod.rs"), format!("{folder}/lib.rs")];
    parents.iter().any(|parent| workspace.files.get(parent).is_some_and(|text| text.contains(&declaration)))
}

struct Sizes<'a> {
    path: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Sizes<'_> {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (line, name) = (signature.fn_token.span.start().line, &signature.ident);
        let mut report = |check, message| self.findings.push(Finding::new(check, self.path, line, message));
        let lines = block.span().end().line - line + 1;
        if lines > MAX_FUNCTION_LINES {
            report(Check::Length, format!("{name} has {lines} lines"));
        }
        let parameters = signature.inputs.len();
        if parameters > MAX_PARAMETERS {
            report(Check::Parameters, format!("{name} takes {parameters} parameters"));
        }
        let mut nesting = Nesting::default();
        nesting.visit_block(block);
        if nesting.deepest > MAX_NESTING {
            report(Check::Nesting, format!("{name} nests {} levels deep", nesting.deepest));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !is_test(attributes_of_impl_item(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// How deeply control flow and closures with blocks are nested; `else if` is no level of its own.
#[derive(Default)]
struct Nesting {
    depth: usize,
    deepest: usize,
}

impl Nesting {
    fn inside(&mut self, visit: impl FnOnce(&mut Self)) {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        visit(self);
        self.depth -= 1;
    }
}

impl<'ast> Visit<'ast> for Nesting {
    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        self.visit_expr(&expr.cond);
        self.inside(|this| this.visit_block(&expr.then_branch));
        match expr.else_branch.as_ref().map(|(_, branch)| &**branch) {
            Some(syn::Expr::If(chained)) => self.visit_expr_if(chained),
            Some(branch) => self.inside(|this| this.visit_expr(branch)),
            None => {}
        }
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        self.inside(|this| visit::visit_expr_match(this, expr));
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast syn::ExprForLoop) {
        self.inside(|this| visit::visit_expr_for_loop(this, expr));
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.inside(|this| visit::visit_expr_while(this, expr));
    }

    fn visit_expr_loop(&mut self, expr: &'ast syn::ExprLoop) {
        self.inside(|this| visit::visit_expr_loop(this, expr));
    }

    fn visit_expr_closure(&mut self, expr: &'ast syn::ExprClosure) {
        match &*expr.body {
            syn::Expr::Block(_) => self.inside(|this| visit::visit_expr_closure(this, expr)),
            _ => visit::visit_expr_closure(self, expr),
        }
    }

    // A function inside is measured by itself.
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

#[cfg(test)]
mod tests;
