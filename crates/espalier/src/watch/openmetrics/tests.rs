use super::*;
use crate::watch::figures::{
    BackPressureFigures, CheckpointFigures, DeviceFigures, KindFigures, LogFigures, MemoryFigures,
    MountFigures, ObjectFigures, SpaceFigures,
};
use espalier_fuse::metrics::SharedHistogram;
use std::collections::BTreeSet;
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

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard = include_str!("../../../../../packaging/grafana/espalier.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut asked = BTreeSet::new();
    each_expression(&dashboard, &mut |expression| {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        asked.extend(words.filter(|word| word.starts_with("espalier_")).map(str::to_owned));
    });
    assert!(asked.len() > 15, "{asked:?}");
    let text = encode(figures()).unwrap();
    let series =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let series: BTreeSet<String> = series.map(str::to_owned).collect();
    let unknown: Vec<_> = asked.difference(&series).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
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
