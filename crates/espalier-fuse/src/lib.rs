//! The FUSE mount of Espalier, over io_uring or the classic device.
