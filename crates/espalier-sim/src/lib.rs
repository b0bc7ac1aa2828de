//! Models, workloads and crash simulation for Espalier's tests (unpublished).
