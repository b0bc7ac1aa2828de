//! The program `espalier-bench`: the suites for developers of Espalier.

fn main() {
    espalier_bench::suites();
}
