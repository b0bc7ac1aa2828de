//! The header is what cbindgen makes of the sources.

use std::path::Path;

/// The sources, in the order of the header.
const SOURCES: [&str; 10] =
    ["types", "outcome", "tree", "names", "xattrs", "many", "walks", "diffs", "files", "changes"];

fn made() -> String {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_directory.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_directory.join(format!("src/{source}.rs")));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

/// With `ESPALIER_WRITE_HEADER` in its environment the test writes the header instead.
#[test]
fn the_header_is_made_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/espalier-tree.h");
    let made = made();
    if std::env::var_os("ESPALIER_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == committed,
        "include/espalier-tree.h is not what the sources say; write it anew with: \
         ESPALIER_WRITE_HEADER=1 cargo test -p espalier-c --test header"
    );
}
