use super::*;

#[test]
fn what_exists_is_itself_and_the_rest_may_lie_in_an_image() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("image"), b"").unwrap();
    std::fs::write(at("with:colon"), b"").unwrap();
    std::fs::create_dir(at("image:d")).unwrap();
    let image = |name: &str, inside: &str| Ok(Place::Image(at(name), inside.as_bytes().to_vec()));
    assert_eq!(Place::of(&at("image")), image("image", "/"));
    assert_eq!(Place::of(&at("image:")), image("image", "/"));
    assert_eq!(Place::of(&at("image:/a/b:c")), image("image", "//a/b:c"));
    assert_eq!(Place::of(&at("image:a")), image("image", "/a"));
    assert_eq!(Place::of(&at("with:colon")), image("with:colon", "/"));
    assert_eq!(Place::of(&at("with:colon:x")), image("with:colon", "/x"));
    assert_eq!(Place::of(&at("image:d")), Ok(Place::Directory(at("image:d"))));
    assert_eq!(Place::of(&at("none:/x")).unwrap_err().errno(), libc::ENOENT);
    assert_eq!(Place::of(Path::new("/dev/null")).unwrap_err().errno(), libc::ENOTDIR);
}
