//! The page of a comparison: one file of HTML with all figures and pictures, without scripts, that
//! needs nothing else.

use super::plot;
use super::results::{Results, Summary, short_time};
use super::work::Work;
use crate::picture::{STYLE, escaped, legend};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Writes the page of `results` to a file.
///
/// # Errors
/// As for [`html`]; the file cannot be written.
pub fn write_html(results: &Results, path: &Path) -> Result<()> {
    std::fs::write(path, html(results)?).with_context(|| format!("{} cannot be written", path.display()))
}

/// The page of `results`: tables and pictures in one file that needs nothing else.
///
/// # Errors
/// A picture cannot be drawn.
pub fn html(results: &Results) -> Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>espalier bench</title>\n\
         <style>{STYLE}</style></head>\n<body>\n<h1>espalier bench</h1>\n<p>{}</p>\n",
        escaped(&results.circumstances())
    );
    table(&mut page, results);
    for (step, is_cold) in results.steps() {
        let caches = if is_cold { "caches cold at the beginning" } else { "caches warm" };
        let _ = write!(
            page,
            "<h2>{}</h2>\n<p>One operation: {}; {caches}.</p>\n{}",
            escaped(step),
            Work::meaning(step),
            legend(results.sites())
        );
        page += "<div class=\"plots\">\n";
        for (caption, picture) in [
            ("Operations that took longer than a time (all rounds)", plot::distribution(results, step)?),
            ("Throughput (last round), without making durable what is left", plot::over_time(results, step)?),
        ] {
            let _ = writeln!(page, "<figure>{picture}<figcaption>{caption}</figcaption></figure>");
        }
        page += "</div>\n";
    }
    page += "</body></html>\n";
    Ok(page)
}

fn table(page: &mut String, results: &Results) {
    *page += "<table>\n<tr><th>operations per second<br><small>50, 99 of 100 took no longer</small></th>";
    for site in results.sites() {
        let _ = write!(page, "<th>{}</th>", escaped(site));
    }
    *page += "</tr>\n";
    for (step, _) in results.steps() {
        let summaries: Vec<_> = results.sites().iter().map(|site| results.summary(step, site)).collect();
        let best = summaries.iter().flatten().map(Summary::rate).fold(0.0, f64::max);
        let _ = write!(page, "<tr><td>{}</td>", escaped(step));
        for summary in &summaries {
            let Some(summary) = summary else {
                *page += "<td></td>";
                continue;
            };
            let class = match summary.rate() {
                rate if rate >= best => "best",
                rate if rate * 2.0 <= best => "slow",
                _ => "",
            };
            let at = |share| summary.times.quantile(share).map_or_else(String::new, short_time);
            let data = match summary.bytes {
                bytes if bytes / summary.operations.max(1) > 65_536 => {
                    format!(", {:.0} MiB/s", bytes as f64 / f64::from(1 << 20) / summary.seconds.max(1e-9))
                }
                _ => String::new(),
            };
            let _ = write!(
                page,
                "<td class=\"{class}\">{:.0}<small>{}, {}{data}</small></td>",
                summary.rate(),
                at(0.5),
                at(0.99)
            );
        }
        *page += "</tr>\n";
    }
    *page += "</table>\n<p>Until everything is durable. The best is green; what is half as fast or less is red.</p>\n";
}
