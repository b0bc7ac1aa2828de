//! The page of a comparison: one file of HTML with all figures and pictures, without scripts, that
//! needs nothing else.

use super::plot;
use super::results::{Results, Summary, short_time};
use super::work::Work;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

const STYLE: &str = "
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 2em 0 .2em }
p { color: #555; margin: .2em 0 .8em }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .3em .9em; text-align: right }
th:first-child, td:first-child { text-align: left } tr { border-bottom: 1px solid #ddd }
td small { color: #777; display: block } td.best { background: #e3f4e5 } td.slow { background: #fbe6e3 }
.plots { display: flex; flex-wrap: wrap; gap: 12px } figure { margin: 0 } figcaption { color: #555 }
svg { max-width: 100%; height: auto }
.site { display: inline-block; margin-right: 1.4em } .site i { display: inline-block; width: 1.6em;
height: .35em; margin-right: .4em; vertical-align: middle }
";

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
            legend(results)
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

fn legend(results: &Results) -> String {
    let sites = results.sites().iter().enumerate().map(|(at, site)| {
        let plotters::style::RGBColor(red, green, blue) = plot::colour(at);
        let name = escaped(site);
        format!("<span class=\"site\"><i style=\"background: rgb({red}, {green}, {blue})\"></i>{name}</span>")
    });
    format!("<div>{}</div>\n", sites.collect::<String>())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
