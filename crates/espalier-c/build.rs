//! Gives the shared library the name under which programs find it.

fn main() {
    // Before 1.0 a minor version may change the calls, so it is part of the name.
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let name = format!("libespalier.so.{}.{}", version("MAJOR"), version("MINOR"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
    println!("cargo:rerun-if-changed=build.rs");
}
