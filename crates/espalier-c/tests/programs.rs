//! C programs, compiled as their authors would: with the header, `pkg-config` and `cc`, from what
//! `make install` lays out. Here they work on an image; `scripts/bindings` runs them on mounts too.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A place with the library as it is installed.
struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let words = [
            "--silent".into(),
            "install-library".into(),
            format!("PREFIX={}", directory.path().display()),
            format!("LIBRARIES={}", built().display()),
        ];
        check(Command::new("make").arg("-C").arg(root).args(words));
        Self { directory }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Compiles a program of this crate; `more` are options of the compiler. `None` if the compiler
    /// does not have them.
    fn compile(&self, source: &str, more: &[&str]) -> Option<PathBuf> {
        let mut pkg_config = Command::new("pkg-config");
        let flags = check(
            pkg_config
                .args(["--cflags", "--libs", "espalier"])
                .env("PKG_CONFIG_PATH", self.at("lib/pkgconfig")),
        );
        let flags = String::from_utf8(flags.stdout).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let program = self.at(&format!("{}{}", source.file_stem().unwrap().display(), more.concat()));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-g"]).args(more);
        compiler.arg(source).arg("-o").arg(&program).args(flags.split_whitespace());
        let compiled = compiler.output().expect("cc runs");
        match (compiled.status.success(), more) {
            (true, _) => Some(program),
            (false, [_, ..]) if !has(more) => None,
            _ => panic!("{compiler:?} failed: {}", String::from_utf8_lossy(&compiled.stderr)),
        }
    }

    fn run(&self, program: &Path, place: &Path) -> Output {
        check(Command::new(program).arg(place).env("LD_LIBRARY_PATH", self.at("lib")))
    }

    fn image(&self, name: &str) -> PathBuf {
        let image = self.at(name);
        espalier_tree::format_image(&image, 64 << 20).unwrap();
        image
    }
}

/// Whether the compiler can make an empty program with these options.
fn has(options: &[&str]) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(options).arg(&source).arg("-o").arg(directory.path().join("empty"));
    compiler.output().is_ok_and(|compiled| compiled.status.success())
}

/// Where Cargo has put the libraries.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dependencies = test.parent().unwrap();
    let place = [dependencies, dependencies.parent().unwrap()];
    let has_library = |place: &&Path| place.join("libespalier_c.so").exists();
    place.into_iter().find(has_library).expect("the library was built").to_path_buf()
}

fn check(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&out.stderr));
    out
}

#[test]
fn the_example_prints_what_it_promises() {
    let installed = Installed::new();
    let example = installed.compile("examples/files.c", &[]).unwrap();
    let out = installed.run(&example, &installed.image("image"));
    let lines: Vec<_> = std::str::from_utf8(&out.stdout).unwrap().lines().collect();
    let read: std::collections::BTreeSet<_> = lines[..3].iter().copied().collect();
    let expected = ["example/copy/deep/three: 333", "example/copy/one: 1", "example/copy/two: 22"];
    assert_eq!(read, expected.into());
    let walked: Vec<_> = lines[3..].iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(walked[..2], ["copy", "data"]);
    assert_eq!(walked.len(), 10);
    assert!(lines[3..].contains(&"100640    5 data/deep/three"), "{lines:?}");
}

#[test]
fn every_call_does_what_the_header_says() {
    let installed = Installed::new();
    let calls = installed.compile("tests/calls.c", &[]).unwrap();
    installed.run(&calls, &installed.image("image"));
}

/// Memory that is used wrongly, or never given back, ends the program.
#[test]
fn memory_is_given_back_and_not_used_afterwards() {
    let installed = Installed::new();
    let Some(calls) = installed.compile("tests/calls.c", &["-fsanitize=address,undefined"]) else {
        return;
    };
    installed.run(&calls, &installed.image("image"));
}

/// The static library has all that it needs, with the libraries that `Libs.private` names.
#[test]
fn a_program_can_be_linked_statically() {
    let installed = Installed::new();
    let archive = built().join("libespalier_c.a");
    let pkg_config = std::fs::read_to_string(installed.at("lib/pkgconfig/espalier.pc")).unwrap();
    let private = pkg_config.lines().find_map(|line| line.strip_prefix("Libs.private: ")).unwrap();
    let program = installed.at("static");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/files.c");
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(installed.at("include")).arg(source).arg(archive).arg("-o").arg(&program);
    check(compiler.args(private.split_whitespace()));
    installed.run(&program, &installed.image("image"));
}
