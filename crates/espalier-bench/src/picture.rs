//! What the pictures and pages of all reports have in common.

use anyhow::anyhow;
use plotters::prelude::*;
use std::fmt::Display;

/// Width and height of a picture, in pixels.
pub(crate) const SIZE: (u32, u32) = (560, 300);
/// The font of axes, in pixels.
pub(crate) const FONT_PIXELS: u32 = 13;

/// The colours of the lines, in their order; they differ also for a reader that sees few colours.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(148, 103, 50),
    RGBColor(80, 80, 80),
];

/// The colour of a line.
pub(crate) fn colour(line: usize) -> RGBColor {
    COLOURS[line % COLOURS.len()]
}

/// A number for an axis.
pub(crate) fn thousands(value: f64) -> String {
    if value >= 10_000.0 { format!("{:.0}k", value / 1000.0) } else { format!("{value:.0}") }
}

/// Says that drawing failed.
pub(crate) fn drawn(error: impl Display) -> anyhow::Error {
    anyhow!("a picture cannot be drawn: {error}")
}

/// The style of a page.
pub(crate) const STYLE: &str = "
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

/// Which line has which colour, for a page.
pub(crate) fn legend(names: &[String]) -> String {
    let names = names.iter().enumerate().map(|(at, name)| {
        let RGBColor(red, green, blue) = colour(at);
        let name = escaped(name);
        format!("<span class=\"site\"><i style=\"background: rgb({red}, {green}, {blue})\"></i>{name}</span>")
    });
    format!("<div>{}</div>\n", names.collect::<String>())
}

/// Text as a page may hold it.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
