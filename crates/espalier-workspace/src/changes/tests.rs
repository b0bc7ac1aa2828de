use super::*;

#[test]
fn git_reads_token_and_paths() {
    let changes = Changes { token: b"t".into(), everything: false, paths: vec![b"a b".into(), b"d/".into()] };
    assert_eq!(changes.for_git(), b"t\0a b\0d/\0");
    let none = Changes { token: b"t".into(), ..Changes::default() };
    assert_eq!(none.for_git(), b"t\0");
    let everything = Changes { everything: true, ..changes };
    assert_eq!(everything.for_git(), b"t\0/\0");
}

#[test]
fn mounts_below_a_directory_are_always_told() {
    let mut changes = Changes::default();
    changes.add_mounts_below(Path::new("/")).unwrap();
    assert!(changes.paths.contains(&b"proc/".to_vec()), "{:?}", changes.paths);
    let mut none = Changes::default();
    none.add_mounts_below(&std::env::current_dir().unwrap()).unwrap();
    assert_eq!(none.paths, Vec::<Vec<u8>>::new());
}
