use super::*;

const TINY: Amount =
    Amount { files: 230, file_bytes: 4 << 20, overwrites: 50, appends: 5, device_bytes: 0, cache_bytes: 0 };

fn plan(dirs: Vec<PathBuf>) -> Plan {
    Plan {
        dirs,
        contenders: vec!["espalier".into()],
        device: None,
        scratch: "unused".into(),
        espalier: "/nowhere/espalier".into(),
        rounds: 2,
        amount: TINY,
    }
}

/// Runs a plan without a thread for signals.
fn run_plan(plan: &Plan) -> Result<Results> {
    let undo = Undo::default();
    let results = run_all(plan, &undo, &mut |_| {});
    undo.play();
    results
}

#[test]
fn directories_are_compared_and_left_as_they_were() {
    let base = tempfile::tempdir().unwrap();
    let dirs = ["a", "b <&>"].map(|name| base.path().join(name));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let results = run_plan(&plan(dirs.to_vec())).unwrap();
    for dir in &dirs {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "{}", dir.display());
    }
    let told = results.json();
    let outcomes = told["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 2 * 2 * Work::ALL.len());
    for (step, operations) in [
        ("create", 230),
        ("stat", 230),
        ("rename", 115),
        ("append+fsync", 5),
        ("read 1M", 4),
        ("overwrite 4K", 50),
    ] {
        let all: Vec<_> = outcomes.iter().filter(|outcome| outcome["step"] == step).collect();
        assert_eq!(all.len(), 4, "{step}");
        assert!(all.iter().all(|outcome| outcome["operations"] == operations), "{step}: {all:?}");
    }
    // Files, the directories that hold them in both places, and these places.
    let removed = outcomes.iter().find(|outcome| outcome["step"] == "remove").unwrap();
    assert_eq!(removed["operations"], 230 + 3 + 3 + 2, "{removed}");
    let text = results.text(false);
    assert!(text.contains("overwrite 4K") && !text.contains('\x1b'), "{text}");
    assert!(results.text(true).contains("\x1b[32m"));
    let page = html(&results).unwrap();
    assert_eq!(page.matches("<svg").count(), 2 * Work::ALL.len());
    assert!(page.contains("b &lt;&amp;&gt;") && !page.contains("<script") && !page.contains("http-equiv"));
    assert!(!page.contains("NaN") && !page.contains("inf,"), "a point that is no number");
}

#[test]
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let missing = base.path().join("missing");
    assert!(format!("{:#}", run_plan(&plan(vec![missing])).unwrap_err()).contains("missing cannot be used"));
    // Of two directories the second one is in the way.
    let dirs = ["a", "b"].map(|name| base.path().join(name));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    std::fs::create_dir(dirs[1].join("espalier-bench-work")).unwrap();
    let said = format!("{:#}", run_plan(&plan(dirs.to_vec())).unwrap_err());
    assert!(said.contains("an earlier run"), "{said}");
    assert_eq!(std::fs::read_dir(&dirs[0]).unwrap().count(), 0);
    assert!(dirs[1].join("espalier-bench-work").exists(), "it is not ours");
    assert!(run_plan(&Plan { rounds: 0, ..plan(vec![dirs[0].clone()]) }).is_err());
}

#[test]
fn a_module_is_loaded_before_its_parameters_are_looked_at() {
    let base = tempfile::tempdir().unwrap();
    let parameter = base.path().join("enable_uring");
    assert!(!is_in_kernel(&parameter, || {}), "an older kernel");
    assert!(is_in_kernel(&parameter, || std::fs::write(&parameter, "N").unwrap()));
    assert!(is_in_kernel(&parameter, || unreachable!("it is loaded")));
}

#[test]
fn a_device_is_looked_at_before_it_is_written_over() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "kept").unwrap();
    for (what, words) in [(file.path(), "no block device"), (Path::new("/nowhere/disk"), "cannot be used")] {
        let said = format!("{:#}", check_device(what, &TINY).unwrap_err());
        assert!(said.contains(words), "{said}");
    }
}
