//! Pictures of a step: how many operations took longer than a time, and how many there were in each
//! moment.

use super::results::{Results, short_time};
use crate::picture::{FONT_PIXELS, SIZE, colour, drawn, thousands};
use anyhow::Result;
use espalier_fuse::metrics::{Histogram, bucket_bounds};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use std::time::Duration;

/// A line for each site: its number, and its points.
type Lines = Vec<(usize, Vec<(f64, f64)>)>;

/// How many of all operations took longer, against the time: both axes logarithmic, so that the
/// tail shows.
pub(super) fn distribution(results: &Results, step: &str) -> Result<String> {
    let summaries = results.sites().iter().enumerate().filter_map(|(at, site)| {
        let summary = results.summary(step, site)?;
        Some((at, tail(&summary.times, summary.longest)))
    });
    let lines: Lines = summaries.collect();
    let points = || lines.iter().flat_map(|(_, line)| line);
    let first = points().map(|(time, _)| *time).fold(f64::MAX, f64::min);
    let last = points().map(|(time, _)| *time).fold(0.0, f64::max).max(first * 10.0);
    let least = points().map(|(_, share)| *share).fold(1.0, f64::min);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d((first..last).log_scale(), (least..1.0).log_scale())
            .map_err(drawn)?;
        chart
            .configure_mesh()
            .x_desc("time of an operation")
            .y_desc("took longer")
            .x_labels(6)
            .y_labels(6)
            .x_label_formatter(&|seconds| short_time(Duration::from_secs_f64(*seconds)))
            .y_label_formatter(&|share| percent(*share))
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(225, 225, 225))
            .label_style(("sans-serif", FONT_PIXELS))
            .draw()
            .map_err(drawn)?;
        draw_lines(&mut chart, lines)?;
        area.present().map_err(drawn)?;
    }
    Ok(svg)
}

/// Operations in a second, or MiB for those on much data, over the time of the last round.
pub(super) fn over_time(results: &Results, step: &str) -> Result<String> {
    let last = |site| results.last(step, site);
    let in_bytes = results
        .sites()
        .iter()
        .filter_map(|site| last(site))
        .any(|of| of.bytes() / of.times().count().max(1) > 65_536);
    let recordings = results.sites().iter().enumerate().filter_map(|(at, site)| Some((at, last(site)?)));
    let lines: Lines = recordings
        .map(|(at, recording)| {
            let (length, moments) = recording.moments();
            let amount = |moment: &[u64; 2]| match in_bytes {
                true => moment[1] as f64 / f64::from(1 << 20),
                false => moment[0] as f64,
            };
            let points = moments.iter().enumerate();
            // The last moment is not whole.
            let whole = moments.len().max(2) - 1;
            let points =
                points.take(whole).map(|(at, moment)| ((at as f64 + 0.5) * length, amount(moment) / length));
            (at, points.collect())
        })
        .collect();
    let points = || lines.iter().flat_map(|(_, line): &(usize, Vec<(f64, f64)>)| line);
    let end = points().map(|(time, _)| *time).fold(1e-3, f64::max);
    let most = points().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d(0.0..end, 0.0..most * 1.05)
            .map_err(drawn)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc(if in_bytes { "MiB per second" } else { "operations per second" })
            .x_labels(8)
            .y_labels(6)
            .y_label_formatter(&|rate| thousands(*rate))
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(225, 225, 225))
            .label_style(("sans-serif", FONT_PIXELS))
            .draw()
            .map_err(drawn)?;
        draw_lines(&mut chart, lines)?;
        area.present().map_err(drawn)?;
    }
    Ok(svg)
}

fn draw_lines<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    lines: Lines,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    for (site, line) in lines {
        chart.draw_series(LineSeries::new(line, colour(site).stroke_width(2))).map_err(drawn)?;
    }
    Ok(())
}

/// The share of operations that took longer, at the end of each bucket; the last point is the
/// longest one.
fn tail(times: &Histogram, longest: Duration) -> Vec<(f64, f64)> {
    let count = times.count();
    let mut left = count;
    let mut points = Vec::new();
    for (bucket, of) in times.sparse() {
        let (first, end) = bucket_bounds(bucket);
        if points.is_empty() {
            points.push((first.max(100) as f64 / 1e9, 1.0));
        }
        left = left.saturating_sub(of);
        if left > 0 {
            points.push((end as f64 / 1e9, left as f64 / count as f64));
        }
    }
    if let Some((last, share)) = points.last().copied() {
        points.push((longest.as_secs_f64().max(last), share.min(1.0 / count.max(1) as f64)));
    }
    points
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = (-percent.log10()).ceil().max(0.0) as usize;
    format!("{percent:.digits$}%")
}
