use super::Home;
use std::path::{Path, PathBuf};

#[test]
fn places_are_relative_to_what_is_above() {
    let home = Home { above: "/mnt/a".into(), dir: PathBuf::new() };
    for (place, relative) in
        [("/mnt/a/work/1", "work/1"), ("/mnt/b", "../b"), ("/srv/x", "../../srv/x"), ("/mnt/a", "")]
    {
        assert_eq!(home.relative(Path::new(place)), Path::new(relative), "{place}");
        assert_eq!(home.absolute(Path::new(relative)), Path::new(place), "{place}");
    }
}
