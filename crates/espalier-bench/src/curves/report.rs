//! The points of all curves, as tables, as JSON, and as a page with a picture of each.

use crate::picture::{FONT_PIXELS, SIZE, STYLE, colour, drawn, escaped, legend, thousands};
use crate::report::middle;
use anyhow::{Context, Result};
use plotters::prelude::*;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What one curve shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Title of the picture.
    pub(super) title: &'static str,
    /// What the axes are, with units.
    pub(super) x: &'static str,
    pub(super) y: &'static str,
}

#[derive(Debug, Clone, Serialize)]
struct Point {
    curve: &'static str,
    contender: String,
    x: f64,
    y: f64,
}

/// All points so far, and what was not as it must be.
#[derive(Debug, Serialize)]
pub(super) struct Curves {
    kernel: String,
    contenders: Vec<String>,
    points: Vec<Point>,
    failures: Vec<String>,
}

impl Curves {
    pub(super) fn new(contenders: &[String]) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().into(),
            contenders: contenders.into(),
            points: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, curve: &'static str, contender: &str, x: f64, y: f64) {
        self.points.push(Point { curve, contender: contender.into(), x, y });
    }

    /// Notes what is not as it must be.
    pub(super) fn require(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(otherwise());
        }
    }

    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// A table for each curve: a row for each x, with the median of the rounds.
    pub(super) fn text(&self, shapes: &[Shape]) -> String {
        let mut out = String::new();
        for shape in shapes {
            let _ = write!(out, "\n{}: {}\n\n| {} |", shape.title, shape.y, shape.x);
            for name in &self.contenders {
                let _ = write!(out, " {name} |");
            }
            let _ = write!(out, "\n|---:|{}\n", "---:|".repeat(self.contenders.len()));
            for x in self.places(shape.name) {
                let _ = write!(out, "| {} |", shown(x));
                for name in &self.contenders {
                    let y = self.median(shape.name, name, x).map_or_else(String::new, shown);
                    let _ = write!(out, " {y} |");
                }
                out.push('\n');
            }
        }
        for failure in &self.failures {
            let _ = writeln!(out, "\nNOT KEPT: {failure}");
        }
        out
    }

    /// One page with a picture of each curve, that needs nothing else.
    pub(super) fn write_html(&self, shapes: &[Shape], path: &Path) -> Result<()> {
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>espalier bench suite curves</title>\n\
             <style>{STYLE}</style></head>\n<body>\n<h1>espalier bench suite curves</h1>\n<p>Linux {}</p>\n{}<div class=\"plots\">\n",
            escaped(&self.kernel),
            legend(&self.contenders)
        );
        for shape in shapes {
            if self.places(shape.name).len() > 1 {
                let picture = self.picture(shape)?;
                let title = escaped(shape.title);
                let _ = writeln!(page, "<figure>{picture}<figcaption>{title}</figcaption></figure>");
            }
        }
        page += "</div>\n</body></html>\n";
        std::fs::write(path, page).with_context(|| format!("{} cannot be written", path.display()))
    }

    fn picture(&self, shape: &Shape) -> Result<String> {
        let places = self.places(shape.name);
        let (first, last) = (places.first().copied().unwrap_or(0.0), places.last().copied().unwrap_or(1.0));
        let lines: Vec<(usize, Vec<(f64, f64)>)> = self
            .contenders
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let y = |x: &f64| Some((*x, self.median(shape.name, name, *x)?));
                (at, places.iter().filter_map(y).collect())
            })
            .collect();
        let most = lines.iter().flat_map(|(_, line)| line).map(|(_, y)| *y).fold(1e-3, f64::max);
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut chart = ChartBuilder::on(&area)
                .margin(6)
                .x_label_area_size(38)
                .y_label_area_size(62)
                .build_cartesian_2d(first..last.max(first + 1e-3), 0.0..most * 1.05)
                .map_err(drawn)?;
            chart
                .configure_mesh()
                .x_desc(shape.x)
                .y_desc(shape.y)
                .x_labels(6)
                .y_labels(6)
                .x_label_formatter(&|x| thousands(*x))
                .y_label_formatter(&|y| if most < 10.0 { format!("{y:.1}") } else { thousands(*y) })
                .light_line_style(TRANSPARENT)
                .bold_line_style(RGBColor(225, 225, 225))
                .label_style(("sans-serif", FONT_PIXELS))
                .draw()
                .map_err(drawn)?;
            for (at, line) in lines {
                chart.draw_series(LineSeries::new(line, colour(at).stroke_width(2))).map_err(drawn)?;
            }
            area.present().map_err(drawn)?;
        }
        Ok(svg)
    }

    /// The places on the x axis that have points, in order.
    fn places(&self, curve: &str) -> Vec<f64> {
        let mut places: Vec<f64> = self.points.iter().filter(|p| p.curve == curve).map(|p| p.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn median(&self, curve: &str, contender: &str, x: f64) -> Option<f64> {
        let matching = |p: &&Point| p.curve == curve && p.contender == contender && p.x == x;
        middle(self.points.iter().filter(matching).map(|p| p.y).collect())
    }
}

/// A number with as many digits as it needs.
fn shown(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
