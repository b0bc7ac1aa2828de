use super::*;

const SHAPE: Shape = shape("some", "Some work", "files <new>", "files per second");

#[test]
fn tables_and_pictures_have_the_medians_of_the_rounds() {
    let mut curves = Curves::new(&["ext4".into(), "espalier".into()]);
    for (round, rate) in [100.0, 300.0, 200.0].into_iter().enumerate() {
        for x in [10.0, 20.0] {
            curves.add("some", "ext4", x, rate);
        }
        curves.add("some", "espalier", 10.0, 7.0 + round as f64);
    }
    let text = curves.text(&[SHAPE]);
    assert!(text.contains("| 10 | 200 | 8 |") && text.contains("| 20 | 200 |  |"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    curves.write_html(&[SHAPE], &page).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("files &lt;new"), "{page}");
}

#[test]
fn what_is_not_kept_is_told() {
    let mut curves = Curves::new(&["espalier".into()]);
    curves.require(true, || "never".into());
    assert!(curves.failures().is_empty());
    curves.require(false, || "600 MiB resident".into());
    assert!(curves.text(&[]).contains("NOT KEPT: 600 MiB resident"));
}

#[test]
fn scenarios_are_chosen_by_name() {
    let names: Vec<_> = choose(&["mail".into(), "creation".into()]).unwrap().iter().map(|s| s.name).collect();
    assert_eq!(names, ["creation", "mail"]);
    assert!(choose(&["male".into()]).err().unwrap().to_string().contains("mail"));
}
