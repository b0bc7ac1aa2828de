//! Benchmarks of Espalier side by side with the kernel's file systems (unpublished).

fn main() {}
