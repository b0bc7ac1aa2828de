use super::*;
use crate::options::User;

fn column(contender: &str) -> Column {
    Column { contender: contender.into(), user: User::Root, live: 1 }
}

#[test]
fn medians_percentiles_and_missed_goals_are_told() {
    let mut figures = Figures::new(100);
    for value in 1..=200 {
        figures.add(&column("espalier"), "create_ms", f64::from(value) / 10.0);
        figures.add(&column("btrfs"), "create_ms", f64::from(value));
    }
    assert_eq!(figures.median(&column("espalier"), "create_ms"), Some(10.1));
    assert_eq!(figures.value(&column("espalier"), "create_ms", Of::P99), Some(19.8));
    let text = figures.text();
    let row =
        |name: &str| text.lines().find(|line| line.starts_with(&format!("| {name} "))).unwrap().to_owned();
    assert!(row("create_ms p99").contains("19.8 ! |"), "{text}");
    assert!(row("create_ms p99").ends_with(" 198 |"), "{text}");
    assert!(!text.contains("undo"), "{text}");
}

#[test]
fn one_sample_is_its_own_percentile() {
    let mut figures = Figures::new(100);
    figures.add(&column("espalier"), "undo_ms", 3.0);
    assert_eq!(figures.value(&column("espalier"), "undo_ms", Of::P99), Some(3.0));
    assert_eq!(figures.value(&column("espalier"), "undo_ms", Of::Median), Some(3.0));
}
