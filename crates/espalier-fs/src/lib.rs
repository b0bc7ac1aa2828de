//! POSIX semantics over the Espalier engine: paths, inodes, blocks and subtree operations.
