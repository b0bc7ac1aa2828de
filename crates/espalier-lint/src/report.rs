//! Runs the checks, and prints what they found.

use crate::findings::{Check, Finding};
use crate::functions::functions;
use crate::layers::{Layers, Structure, structure};
use crate::links::{links, repeated_headings};
use crate::modules::Crate;
use crate::names::names;
use crate::text::text;
use crate::types::{commonest_names, shared_names, sizes};
use crate::workspace::Workspace;
use anyhow::Result;
use std::process::ExitCode;

/// Fails if a check finds something.
pub(crate) fn check(workspace: &Workspace) -> Result<ExitCode> {
    let findings = all(workspace)?.findings;
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

/// Prints every finding, then the figures.
pub(crate) fn report(workspace: &Workspace) -> Result<ExitCode> {
    let all = all(workspace)?;
    all.findings.iter().for_each(|finding| println!("{finding}"));
    println!("\nfindings");
    for check in Check::ALL {
        let found = all.findings.iter().filter(|finding| finding.check == check).count();
        println!("  {:<12} {found:>5}", format!("{check:?}"));
    }
    println!("\nwords by part");
    for (part, count) in words_by_part(workspace, &all.findings) {
        println!("  {part:<28} {count:>5}");
    }
    for (modules, structure) in &all.crates {
        print_crate(workspace, modules, structure);
    }
    print_documents(workspace);
    Ok(ExitCode::SUCCESS)
}

/// What all checks found.
struct All {
    findings: Vec<Finding>,
    crates: Vec<(Crate, Structure)>,
}

fn all(workspace: &Workspace) -> Result<All> {
    let mut findings = Vec::new();
    let mut crates = Vec::new();
    for folder in workspace.crates() {
        let modules = Crate::read(workspace, folder)?;
        let layers = Layers::read(workspace, folder);
        let structure = structure(&modules, layers.as_ref());
        findings.extend(structure.findings.iter().cloned());
        findings.extend(shared_names(&modules));
        crates.push((modules, structure));
    }
    findings.extend(functions(workspace)?);
    findings.extend(text(workspace));
    findings.extend(links(workspace));
    findings.extend(repeated_headings(workspace));
    findings.extend(names(workspace));
    findings.sort();
    Ok(All { findings, crates })
}

fn words_by_part(workspace: &Workspace, findings: &[Finding]) -> Vec<(String, usize)> {
    let mut parts: Vec<String> = workspace.crates().iter().map(|folder| format!("{folder}/")).collect();
    parts.extend(["docs/", "fuzz/", "scripts/", ""].map(String::from));
    let mut counts = vec![0; parts.len()];
    for finding in findings.iter().filter(|finding| finding.check == Check::Word) {
        let part = parts.iter().position(|part| finding.path.starts_with(part));
        counts[part.unwrap_or(parts.len() - 1)] += 1;
    }
    parts.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

fn print_crate(workspace: &Workspace, modules: &Crate, structure: &Structure) {
    println!("\n{}", modules.folder);
    let mut lines: Vec<(usize, &str)> = modules
        .files()
        .iter()
        .map(|file| (workspace.files.get(*file).map_or(0, |text| text.lines().count()), *file))
        .collect();
    lines.sort();
    if let (Some(median), Some((largest, file))) = (lines.get(lines.len() / 2), lines.last()) {
        println!(
            "  files without tests   {}, median {} lines, largest {largest} ({file})",
            lines.len(),
            median.0
        );
    }
    println!("  uses between files    {}", structure.uses);
    println!("  files in circles      {}", structure.files_in_circles);
    if structure.arrows > 0 {
        println!("  arrows of modules     {}, upwards {}", structure.arrows, structure.upward);
        println!("  modules in circles    {}", structure.entries_in_circles);
    }
    let sizes = sizes(modules);
    let mut by_fields: Vec<_> = sizes.iter().collect();
    by_fields.sort_by_key(|size| std::cmp::Reverse(size.fields));
    for size in by_fields.iter().take(5) {
        println!("  most fields           {} {} ({})", size.fields, size.name, size.file);
    }
    let mut by_methods: Vec<_> = sizes.iter().collect();
    by_methods.sort_by_key(|size| std::cmp::Reverse(size.methods));
    for size in by_methods.iter().take(3) {
        let (methods, files, fields) = (size.methods, size.files.len(), size.fields);
        println!("  most methods          {methods} {} in {files} files, {fields} fields", size.name);
    }
    let names = commonest_names(modules);
    if !names.is_empty() {
        let names: Vec<String> = names.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!("  commonest type names  {}", names.join(", "));
    }
}

fn print_documents(workspace: &Workspace) {
    let mut documents: Vec<(usize, &str)> =
        workspace.with_extension("md").map(|(path, text)| (text.lines().count(), path)).collect();
    documents.sort_by(|a, b| b.cmp(a));
    println!("\nlongest documents");
    for (lines, path) in documents.iter().take(6) {
        println!("  {lines:>5} {path}");
    }
}
