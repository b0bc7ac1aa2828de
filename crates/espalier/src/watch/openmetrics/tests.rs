use super::*;
use crate::watch::figures::{
    BackPressureFigures, CheckpointFigures, DeviceFigures, KindFigures, LogFigures, MemoryFigures,
    MountFigures, ObjectFigures, SpaceFigures,
};
use espalier_fuse::metrics::SharedHistogram;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn times(micros: &[u64]) -> Times {
    let histogram = SharedHistogram::default();
    micros.iter().for_each(|micros| histogram.count(Duration::from_micros(*micros)));
    (&histogram.snapshot()).into()
}

fn figures() -> Figures {
    Figures {
        unix_seconds: 1000.5,
        up_seconds: 0.5,
        mount: MountFigures { directory: "/a \"b\"".into(), ..MountFigures::default() },
        kinds: vec![KindFigures {
            kind: "read".into(),
            requests: 3,
            errors: 1,
            bytes_in: 0,
            bytes_out: 8192,
            work: times(&[1, 3, 100]),
            queue: times(&[]),
        }],
        next_kind: None,
        callers: Vec::new(),
        kernel_requests: Some(3),
        memory: MemoryFigures { cache_hits: 7, ..MemoryFigures::default() },
        log: LogFigures::default(),
        checkpoints: CheckpointFigures { count: 4, batches_behind: 5 },
        back_pressure: BackPressureFigures { slowed_seconds: 0.25, ..BackPressureFigures::default() },
        device: DeviceFigures { reads: times(&[50]), ..DeviceFigures::default() },
        objects: Some(ObjectFigures { gets: 6, got_bytes: 4096, ..ObjectFigures::default() }),
        space: SpaceFigures { total_bytes: 1 << 30, ..SpaceFigures::default() },
    }
}

#[test]
fn the_text_is_as_openmetrics_wants_it() {
    let text = encode(figures()).unwrap();
    for line in [
        "espalier_requests_total{kind=\"read\"} 3.0",
        "espalier_request_errors_total{kind=\"read\"} 1.0",
        "# UNIT espalier_request_sent_bytes bytes",
        "espalier_request_sent_bytes_total{kind=\"read\"} 8192.0",
        "# TYPE espalier_request_work_seconds histogram",
        "espalier_request_work_seconds_count{kind=\"read\"} 3",
        "espalier_request_work_seconds_bucket{le=\"0.000001024\",kind=\"read\"} 1",
        "espalier_request_work_seconds_bucket{le=\"0.000004096\",kind=\"read\"} 2",
        "espalier_request_work_seconds_bucket{le=\"+Inf\",kind=\"read\"} 3",
        "espalier_back_pressure_seconds_total{how=\"slowed\"} 0.25",
        "espalier_mount_start_time_seconds 1000.0",
        "espalier_object_requests_total{verb=\"get\"} 6.0",
        "espalier_object_got_bytes_total 4096.0",
        "espalier_space_size_bytes 1073741824.0",
    ] {
        assert!(text.lines().any(|found| found == line), "no line '{line}' in\n{text}");
    }
    assert!(text.contains("directory=\"/a \\\"b\\\"\""), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn an_image_has_no_metrics_of_objects() {
    let text = encode(Figures { objects: None, ..figures() }).unwrap();
    assert!(!text.contains("espalier_object") && text.contains("espalier_device"), "{text}");
}

/// The names of all metrics in the text.
fn names() -> BTreeSet<String> {
    let text = encode(figures()).unwrap();
    let names =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
    names.collect()
}

#[test]
fn the_page_lists_every_metric_and_no_other() {
    let page = include_str!("../../../../../docs/monitoring.md");
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `espalier_")?.split(['`', '{']).next());
    let listed: BTreeSet<String> = listed
        .map(|name| format!("espalier_{}", name.strip_suffix("_total").unwrap_or(name)))
        .map(|name| name.strip_suffix("_info").unwrap_or(&name).to_owned())
        .collect();
    assert_eq!(listed, names());
}

/// Labels that Prometheus adds to each series.
const ADDED_LABELS: [&str; 2] = ["instance", "job"];

/// What series there are, with the labels of each.
fn series() -> BTreeMap<String, BTreeSet<String>> {
    let text = encode(figures()).unwrap();
    let mut series = BTreeMap::<_, BTreeSet<_>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once('{').unwrap_or((line, ""));
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\"")?.0.into());
        let all = series.entry(name.split(' ').next().unwrap().to_owned()).or_default();
        all.extend(labels.chain(ADDED_LABELS).map(str::to_owned));
    }
    series
}

/// The metrics in an expression, and where each ends.
fn metrics(expression: &str) -> impl Iterator<Item = (&str, usize)> {
    expression.match_indices(PREFIX).map(|(begin, _)| {
        let rest = &expression[begin..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        (&rest[..end], begin + end)
    })
}

/// The text between the parenthesis that `text` begins with and the one that closes it, and what
/// is behind.
fn parenthesis(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let end = text.trim_start().strip_prefix('(')?.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth < 0).then_some(at)
    })?;
    let inside = &text.trim_start()[1..];
    Some((&inside[..end], &inside[end + 1..]))
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|label| !label.is_empty())
}

/// What is wrong with an expression: metrics and labels that there are not.
fn faults(expression: &str, series: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    let has = |metric: &str, label: &str| series.get(metric).is_some_and(|labels| labels.contains(label));
    for (metric, end) in metrics(expression) {
        if !series.contains_key(metric) {
            faults.push(format!("there is no {metric}"));
        }
        // No value in the dashboard has a comma or a brace.
        let chosen = expression[end..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        let chosen = list(chosen.unwrap_or_default()).map(|one| one.split(['=', '!']).next().unwrap());
        // label_values(metric, label)
        let shown = expression[end..].strip_prefix(',').and_then(|rest| rest.split(')').next());
        for label in chosen.chain(list(shown.unwrap_or_default())).filter(|label| !has(metric, label)) {
            faults.push(format!("{metric} has no label {label}"));
        }
    }
    for (by, _) in expression.match_indices(" by ") {
        let (labels, rest) = parenthesis(&expression[by + 4..]).unwrap();
        let (inside, _) = parenthesis(rest).unwrap();
        for (metric, _) in metrics(inside) {
            for label in list(labels).filter(|label| !has(metric, label)) {
                faults.push(format!("{metric} is summed by {label}, which it has not"));
            }
        }
        let is_quantile = expression[..by].contains("histogram_quantile");
        if is_quantile && !list(labels).any(|label| label == "le") {
            faults.push(format!("quantiles need the label le: {expression}"));
        }
    }
    faults
}

/// The labels of what an expression gives.
fn labels_of(expression: &str, series: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let by = expression.find(" by ").and_then(|by| parenthesis(&expression[by + 4..]));
    match by {
        Some((labels, _)) => list(labels).filter(|label| *label != "le").map(str::to_owned).collect(),
        None if expression.contains("sum(") => BTreeSet::new(),
        None => {
            let of_each = metrics(expression).filter_map(|(metric, _)| series.get(metric).cloned());
            of_each.reduce(|all, labels| &all & &labels).unwrap_or_default()
        }
    }
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_there_are() {
    let dashboard = include_str!("../../../../../packaging/grafana/espalier.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let series = series();
    let (mut asked, mut wrong) = (BTreeSet::new(), Vec::new());
    each_expression(&dashboard, &mut |expression| {
        asked.extend(metrics(expression).map(|(metric, _)| metric.to_owned()));
        wrong.extend(faults(expression, &series));
    });
    assert!(asked.len() > 15, "{asked:?}");
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array());
    for target in targets.flatten() {
        let text = |field: &str| target[field].as_str().unwrap_or_default();
        let labels = labels_of(text("expr"), &series);
        let named = text("legendFormat").split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap());
        wrong.extend(
            named
                .filter(|name| !labels.contains(*name))
                .map(|name| format!("'{}' has no label {name} to show", text("expr"))),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn faults_of_expressions_are_found() {
    let series = series();
    for (expression, fault) in [
        ("rate(espalier_requests_total{instance=\"a\",kind=\"read\"}[1m])", ""),
        ("espalier_requests", "no espalier_requests"),
        ("espalier_requests_total{verb=\"get\"}", "no label verb"),
        ("label_values(espalier_mount_info, place)", "no label place"),
        ("sum by (how) (rate(espalier_requests_total[1m]))", "summed by how"),
        ("sum by (kind, le) (espalier_request_work_seconds_bucket)", ""),
        ("histogram_quantile(1, sum by (kind) (espalier_request_work_seconds_bucket))", "need the label le"),
    ] {
        let found = faults(expression, &series).join(", ");
        assert!(found.contains(fault) && found.is_empty() == fault.is_empty(), "{expression}: {found}");
    }
    let labels = |expression: &str| labels_of(expression, &series).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(labels("espalier_memory_bytes / espalier_memory_bytes"), "holds instance job");
    assert_eq!(labels("histogram_quantile(1, sum by (kind, le) (a))"), "kind");
    assert_eq!(labels("sum(espalier_memory_bytes)"), "");
}

fn each_expression(value: &serde_json::Value, each: &mut impl FnMut(&str)) {
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if name == "expr" || name == "query" || name == "definition" => each(text),
            _ => each_expression(value, each),
        }),
        serde_json::Value::Array(items) => items.iter().for_each(|item| each_expression(item, each)),
        _ => {}
    }
}
