//! The FUSE mount of Espalier, over io_uring or the classic device.
//!
//! [`protocol`] turns bytes into requests and replies into bytes, [`transport`] moves them between
//! the kernel and a handler on the CPU on which they are asked for, [`dispatch`] makes file system
//! calls of them, and [`Mount`] ties it together. [`daemon`] has what a mount in the background
//! needs besides.

mod client_access;
pub mod daemon;
pub mod dispatch;
mod kernel_caches;
mod kernel_release;
pub mod metrics;
mod mount;
mod notifier;
mod prefetch;
pub mod protocol;
pub mod transport;

pub use client_access::{ClientAccess, MountIdentity};
pub use dispatch::{COMMAND_XATTR, Commands, DESCRIPTION_XATTR, Description, LIST_COMMAND, Requester, errno};
pub use kernel_caches::{ChangedCaches, KernelCaches};
pub use mount::{
    Ended, ForgetHook, HandedMount, Handover, ListAttributes, Mount, MountError, MountOptions, PausedMount,
    bind, remount,
};
pub use notifier::Notifier;
pub use protocol::notify::Notification;
pub use protocol::{control, linux_ioctl};
