//! Admission: with which rights a client begins, if it is let in.
//!
//! A client proves that it has a directory of the mount open: it passes the descriptor, and a token
//! that the kernel's ioctl on it gave out. The directory becomes the root of all its paths. Whose
//! rights count is what the kernel says of the socket (`SO_PEERCRED`, `SO_PEERGROUPS`). Invariant:
//! *what an admitted client may do, its process may do through the mount.* So a process is refused
//! if rights by user and groups are not the whole truth of it:
//!
//! 1. The mount lets only its owner in, and it runs as another user.
//! 2. Ids of it have no number here (another user namespace).
//! 3. It is root without the capabilities of root over files, or in another user namespace.
//! 4. It cannot gain privileges (`no_new_privs`), which every process has that restricts itself by
//!    Landlock without SYS_ADMIN: what it is forbidden cannot be known.
//! 5. It has another user or group than the socket. It has run a set-user-id program since it
//!    connected, and the facts of it are those of that program, or its threads differ.
//! 6. It cannot reach the directory from its root directory: it was passed the descriptor.
//! 7. The place where it sees the mount translates owners, or follows no links.
//! 8. A profile of AppArmor confines it: those judge paths, of which the server knows nothing.
//! 9. Something is mounted below the directory, as it sees it, and hides what lies there; unless it
//!    is root and could take that away.
//!
//! Where it sees the mount read-only it changes nothing. Like an open file, a session keeps the
//! rights that it began with. Nothing here waits for a file system: what is asked of the descriptor
//! the kernel knows.

mod mount_table;
mod process;

use crate::failure::{Failure, Outcome};
use espalier_client::wire::Hello;
use espalier_fs::{Credentials, NodeId, Policy};
use espalier_fuse::{ClientAccess, MountIdentity};
use mount_table::MountTable;
pub(crate) use process::Peer;
use process::{Process, field};
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Capabilities that root has over files: CHOWN, DAC_OVERRIDE, FOWNER, FSETID.
const FILE_CAPABILITIES: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4;
/// The capability to take mounts away.
const SYS_ADMIN: u64 = 1 << 21;
/// The capability to make devices.
const MKNOD: u64 = 1 << 27;
/// The capability to give capabilities to programs.
const SETFCAP: u64 = 1 << 31;

/// What a client begins with.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) credentials: Credentials,
    /// The directory that becomes its root.
    pub(crate) node: NodeId,
    /// It may change nothing.
    pub(crate) is_read_only: bool,
    pub(crate) policy: Policy,
    pub(crate) powers: Powers,
}

/// What a process may do of what the kernel judges by more than user and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Powers {
    /// Devices: with the capability for them, and with the one for everything, since a control
    /// group may forbid devices, which cannot be seen.
    pub(crate) devices: bool,
    /// Extended attributes that begin with `trusted.`.
    pub(crate) trusted: bool,
    /// Capabilities of programs.
    pub(crate) capabilities: bool,
    /// Access control lists: their ids mean what they mean to the server.
    pub(crate) lists: bool,
}

impl Powers {
    fn of(capabilities: u64, uid: u32, has_own_users: bool) -> Self {
        let has = |wanted: u64| uid == 0 && capabilities & wanted == wanted;
        Self {
            devices: has(MKNOD | SYS_ADMIN),
            trusted: has(SYS_ADMIN),
            capabilities: has(SETFCAP),
            lists: has_own_users,
        }
    }
}

/// Lets the peer of `socket` in, or not; it has passed `directory`.
pub(crate) fn admit(
    access: &ClientAccess,
    socket: &impl AsFd,
    hello: &Hello,
    directory: &OwnedFd,
) -> Outcome<Admission> {
    let peer = Peer::of(socket)?;
    let credentials = Credentials { uid: peer.uid, gid: peer.gid, groups: Peer::groups(socket)? };
    check_ids(&credentials, &access.identity)?;
    let process = Process::of(socket, &peer)?;
    let mounts = MountTable::parse(&process.read("mountinfo")?);
    let has_own_users = process.has_own_users();
    check_profile(&process.profile()?)?;
    // The last one to be read: it says whether the others were of a program with these rights.
    let status = process.read("status")?;
    let capabilities = check_status(&String::from_utf8_lossy(&status), &peer, has_own_users)?;
    let powers = Powers::of(capabilities, peer.uid, has_own_users);
    process.check_lives()?;
    let node = access.redeem(&hello.token, peer.uid).ok_or_else(|| {
        Failure::new(libc::ESTALE, "the token is not one of this mount and user, or used up")
    })?;
    check_directory(access, directory, node)?;
    let is_read_only = check_place(access, &mounts, directory, node, capabilities)?;
    Ok(Admission { credentials, node, is_read_only, policy: policy(), powers })
}

/// Refuses users that the mount does not let in.
pub(crate) fn check_user(uid: u32, mount: &MountIdentity) -> Outcome<()> {
    if mount.allows_others || uid == mount.owner {
        return Ok(());
    }
    Err(Failure::new(libc::EACCES, "the mount lets only its owner in"))
}

/// Refuses users that the mount does not let in, and ids without a number here.
fn check_ids(of: &Credentials, mount: &MountIdentity) -> Outcome<()> {
    let refuse = |message| Err(Failure::new(libc::EACCES, message));
    check_user(of.uid, mount)?;
    let overflow = |name| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(65534)
    };
    let (user, group): (u32, u32) = (overflow("overflowuid"), overflow("overflowgid"));
    let is_known = |id: u32, unknown: u32| id != unknown && id != u32::MAX;
    let groups_known = of.groups.iter().chain([&of.gid]).all(|gid| is_known(*gid, group));
    if !is_known(of.uid, user) || !groups_known {
        return refuse("ids of the process have no number where the server is");
    }
    Ok(())
}

/// Refuses a process that may do less than its ids say, or has other ones than when it connected;
/// returns its capabilities that count.
fn check_status(status: &str, peer: &Peer, has_own_users: bool) -> Outcome<u64> {
    let refuse = |message| Err(Failure::new(libc::EPERM, message));
    // The second number of four is the effective one, which the socket has as well.
    let effective = |name| field(status, name).split_whitespace().nth(1).and_then(|id| id.parse().ok());
    if (effective("Uid:"), effective("Gid:")) != (Some(peer.uid), Some(peer.gid)) {
        return refuse("the process has another user or group than when it connected");
    }
    if field(status, "NoNewPrivs:") != "0" {
        return refuse("the process has given privileges up (no_new_privs); it has to use the mount");
    }
    let Ok(capabilities) = u64::from_str_radix(field(status, "CapEff:"), 16) else {
        return refuse("the capabilities of the process are not known");
    };
    // A program with capabilities of its own file is no measure for the user that started it.
    let counts = if has_own_users && peer.uid == 0 { capabilities } else { 0 };
    if peer.uid == 0 && counts & FILE_CAPABILITIES != FILE_CAPABILITIES {
        return refuse("root without the capabilities of root has to use the mount");
    }
    Ok(counts)
}

/// Refuses a process that AppArmor confines; `profile` is empty where there is no AppArmor.
fn check_profile(profile: &[u8]) -> Outcome<()> {
    let name = profile.trim_ascii_end();
    match name.is_empty() || name == b"unconfined" || name.ends_with(b" (unconfined)") {
        true => Ok(()),
        false => {
            let message = "a profile of AppArmor confines the process; it has to use the mount";
            Err(Failure::new(libc::EPERM, message))
        }
    }
}

/// Refuses a descriptor that is not one of the directory for which the token was given out.
fn check_directory(access: &ClientAccess, directory: &OwnedFd, node: NodeId) -> Outcome<()> {
    // The numbers never change, and no server is asked for them: that of the descriptor may be
    // another one, which does not answer.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(directory, c"", flags, StatxFlags::INO).map_err(std::io::Error::from)?;
    let is_same_mount = (found.stx_dev_major, found.stx_dev_minor) == access.identity.device;
    if is_same_mount && found.stx_ino == access.fs().getattr(node)?.ino {
        return Ok(());
    }
    Err(Failure::new(libc::EXDEV, "the descriptor is not one of the directory of the token"))
}

/// Refuses a directory that the process does not see, or of which it does not see all; true if it
/// sees it read-only.
fn check_place(
    access: &ClientAccess,
    mounts: &MountTable,
    directory: &OwnedFd,
    node: NodeId,
    capabilities: u64,
) -> Outcome<bool> {
    let refuse = |errno, message: String| Err(Failure::new(errno, message));
    let known = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd()))?;
    let number = field(&known, "mnt_id:").parse().ok();
    let Some(place) = number.and_then(|number| mounts.find(number)) else {
        let message = "the directory cannot be reached from the root directory of the process";
        return refuse(libc::EACCES, message.into());
    };
    if let Some(option) = place.translation() {
        return refuse(libc::EOPNOTSUPP, format!("the place is mounted {option}; use the mount"));
    }
    let path = access.fs().path(node)?;
    if let Some(point) = mounts.mounted_below(place, &path)
        && capabilities & SYS_ADMIN == 0
    {
        let shown = String::from_utf8_lossy(point);
        return refuse(libc::EACCES, format!("something is mounted at {shown}, below the directory"));
    }
    Ok(place.is_read_only())
}

/// The rules beyond permissions of this system.
fn policy() -> Policy {
    let level = |name: &str, usual: u8| {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(usual)
    };
    Policy {
        guard_symlinks: level("protected_symlinks", 1) != 0,
        guard_hard_links: level("protected_hardlinks", 1) != 0,
        guard_files: level("protected_regular", 2),
        guard_pipes: level("protected_fifos", 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: MountIdentity =
        MountIdentity { device: (0, 1), owner: 7, allows_others: true, is_write_back: false };

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn ids_count_only_if_they_have_a_number_and_the_mount_lets_them_in() {
        assert!(check_ids(&who(1, 2, &[3]), &MOUNT).is_ok());
        for unknown in [who(65534, 1, &[]), who(1, 65534, &[]), who(1, 1, &[2, 65534]), who(u32::MAX, 1, &[])]
        {
            assert_eq!(check_ids(&unknown, &MOUNT).unwrap_err().errno, libc::EACCES, "{unknown:?}");
        }
        let private = MountIdentity { allows_others: false, ..MOUNT };
        assert!(check_ids(&who(7, 1, &[]), &private).is_ok());
        assert!(check_ids(&who(0, 0, &[]), &private).is_err(), "as the kernel keeps root out");
    }

    #[test]
    fn powers_are_those_of_root_with_the_capabilities() {
        let all = Powers { devices: true, trusted: true, capabilities: true, lists: true };
        assert_eq!(Powers::of(u64::MAX, 0, true), all);
        assert_eq!(Powers::of(u64::MAX, 5, true), Powers { lists: true, ..Powers::default() });
        assert_eq!(Powers::of(0, 0, false), Powers::default());
        // As in an ordinary container.
        let some = Powers::of(FILE_CAPABILITIES | MKNOD | SETFCAP, 0, true);
        assert_eq!(some, Powers { devices: false, trusted: false, ..all });
    }

    #[test]
    fn root_needs_its_capabilities_and_no_process_may_have_given_privileges_up() {
        let status = |uid: u32, capabilities: u64, no_new: u8| {
            let ids = format!("Uid:\t9\t{uid}\t9\t9\nGid:\t9\t3\t9\t9\n");
            format!("Name:\tx\n{ids}CapEff:\t{capabilities:016x}\nNoNewPrivs:\t{no_new}\nSeccomp:\t0\n")
        };
        let peer = |uid| Peer { uid, gid: 3, pid: 1 };
        let (root, user) = (peer(0), peer(5));
        assert_eq!(check_status(&status(0, 0x1ff, 0), &root, true), Ok(0x1ff));
        assert!(check_status(&status(0, 0x1ff & !2, 0), &root, true).is_err(), "no DAC_OVERRIDE");
        assert!(check_status(&status(0, u64::MAX, 0), &root, false).is_err(), "of another user namespace");
        assert_eq!(check_status(&status(5, 0, 0), &user, false), Ok(0));
        assert_eq!(check_status(&status(5, u64::MAX, 0), &user, true), Ok(0), "it is not root");
        assert!(check_status(&status(5, 0, 1), &user, true).is_err());
        assert!(check_status("", &user, true).is_err(), "nothing is known");
    }

    #[test]
    fn a_process_in_a_profile_is_refused() {
        for free in ["", "unconfined\n", "unconfined", "code (unconfined)\n"] {
            assert!(check_profile(free.as_bytes()).is_ok(), "{free}");
        }
        for confined in ["docker-default (enforce)\n", "unconfined//x (enforce)", "a (complain)"] {
            assert_eq!(check_profile(confined.as_bytes()).unwrap_err().errno, libc::EPERM, "{confined}");
        }
    }

    #[test]
    fn a_process_counts_only_with_the_ids_with_which_it_connected() {
        let status = |uids: &str, gids: &str| {
            format!("Uid:\t{uids}\nGid:\t{gids}\nCapEff:\tffffffffffffffff\nNoNewPrivs:\t0\n")
        };
        let peer = Peer { uid: 5, gid: 6, pid: 1 };
        let check = |uids, gids| check_status(&status(uids, gids), &peer, true).is_ok();
        assert!(check("5\t5\t5\t5", "6\t6\t6\t6"));
        assert!(!check("5\t0\t0\t0", "6\t6\t6\t6"), "a set-user-id program");
        assert!(!check("5\t5\t5\t5", "6\t0\t0\t0"), "a set-group-id program");
        assert!(!check("", "6\t6\t6\t6"));
        assert!(!check("5", "6\t6\t6\t6"));
    }
}
