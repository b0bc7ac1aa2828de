//! The kernel's answers: a process of its own, whose root is the mount, makes the calls.

use crate::calls::{BASES, Call, Opening, Place, Script, What};
use crate::common::store;
use crate::world;
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

const ROOT: &str = "ESPALIER_TEST_ROOT";
const SCRIPT: &str = "ESPALIER_TEST_SCRIPT";
const ANSWERS: &str = "ESPALIER_TEST_ANSWERS";

/// Makes the calls of `script` in the tree at `root`.
pub(crate) fn ask(root: &Path, script: &Script) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let (asked, answered) = (place.path().join("script"), place.path().join("answers"));
    std::fs::write(&asked, script.encode()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "asks_the_kernel_when_told", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env(SCRIPT, &asked)
        .env(ANSWERS, &answered);
    assert!(store::run(&mut command), "the process that asks the kernel failed");
    std::fs::read_to_string(&answered).unwrap().lines().map(str::to_owned).collect()
}

/// Makes the calls, if this process was started for that.
pub(crate) fn ask_if_told() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let script = Script::decode(&std::fs::read_to_string(std::env::var_os(SCRIPT).unwrap()).unwrap());
    let mut answers =
        std::io::BufWriter::new(std::fs::File::create(std::env::var_os(ANSWERS).unwrap()).unwrap());
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::chroot(&root).unwrap();
    rustix::process::chdir("/").unwrap();
    let bases = BASES.map(|base| fs::open(base, OFlags::PATH, Mode::empty()).ok());
    for call in script.calls() {
        become_user(&world::users()[call.user]);
        let answer = answer(&bases, &call, !script.changes);
        become_user(&world::users()[0]);
        writeln!(answers, "{}", answer.unwrap_or_else(|error| format!("error {}", error.raw_os_error())))
            .unwrap();
    }
    answers.flush().unwrap();
}

/// Gives this thread the credentials of a user, and keeps the way back to root.
fn become_user(user: &espalier_fs::Credentials) {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let root = Uid::ROOT;
    set_thread_res_uid(root, root, root).unwrap();
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).unwrap();
    let gid = Gid::from_raw(user.gid);
    set_thread_res_gid(gid, gid, gid).unwrap();
    let uid = Uid::from_raw(user.uid);
    set_thread_res_uid(uid, uid, root).unwrap();
}

type Bases = [Option<OwnedFd>; BASES.len()];

fn start<'b>(bases: &'b Bases, place: &Place) -> Result<BorrowedFd<'b>> {
    match place.base {
        None => Ok(fs::CWD),
        Some(base) => bases[base].as_ref().map(AsFd::as_fd).ok_or(Errno::NOENT),
    }
}

fn at(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// `with_numbers`: inode numbers are part of the answer.
fn answer(bases: &Bases, call: &Call, with_numbers: bool) -> Result<String> {
    let (dir, path) = (start(bases, &call.place)?, &call.place.path[..]);
    let done = |result: Result<()>| result.map(|()| "done".to_owned());
    match &call.what {
        What::Stat(follow) => fs::statat(dir, path, at(*follow)).map(|stat| shown(&stat, with_numbers)),
        What::Access(want) => {
            done(fs::accessat(dir, path, fs::Access::from_bits_retain(*want), AtFlags::EACCESS))
        }
        What::ReadLink => {
            fs::readlinkat(dir, path, Vec::new()).map(|target| format!("{:x?}", target.as_bytes()))
        }
        What::Open(how) => open(dir, path, how, with_numbers),
        What::GetXattr(name, follow) => {
            let mut value = [0; 4096];
            let length = match follow {
                true => fs::getxattr(path, *name, &mut value)?,
                false => fs::lgetxattr(path, *name, &mut value)?,
            };
            Ok(format!("{:x?}", &value[..length]))
        }
        What::ListXattr(follow) => {
            let mut names = [0; 4096];
            let length = match follow {
                true => fs::listxattr(path, &mut names)?,
                false => fs::llistxattr(path, &mut names)?,
            };
            Ok(format!("{:x?}", &names[..length]))
        }
        What::Walk => {
            let top = fs::openat(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            fs::accessat(&top, c".", fs::Access::EXEC_OK, AtFlags::EACCESS)?;
            let mut entries = Vec::new();
            walk(top, "", with_numbers, &mut entries)?;
            entries.sort();
            Ok(entries.join(", "))
        }
        What::MakeDirectory(mode) => done(fs::mkdirat(dir, path, Mode::from_raw_mode(*mode))),
        What::MakeNode(is_pipe, mode) => {
            let kind = if *is_pipe { fs::FileType::Fifo } else { fs::FileType::RegularFile };
            done(fs::mknodat(dir, path, kind, Mode::from_raw_mode(*mode), 0))
        }
        What::Symlink(target) => done(fs::symlinkat(&target[..], dir, path)),
        What::Link(new, follow) => {
            let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
            done(fs::linkat(dir, path, start(bases, new)?, &new.path[..], flags))
        }
        What::Unlink => done(fs::unlinkat(dir, path, AtFlags::empty())),
        What::RemoveDirectory => done(fs::unlinkat(dir, path, AtFlags::REMOVEDIR)),
        What::Rename(new, flags) => {
            let flags = fs::RenameFlags::from_bits_retain(*flags);
            done(fs::renameat_with(dir, path, start(bases, new)?, &new.path[..], flags))
        }
        What::Mode(mode) => done(fs::chmodat(dir, path, Mode::from_raw_mode(*mode), AtFlags::empty())),
        What::Owner(uid, gid, follow) => {
            let (uid, gid) = (uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw));
            done(fs::chownat(dir, path, uid, gid, at(*follow)))
        }
        What::Truncate(size) => {
            let path = std::ffi::CString::new(path).map_err(|_| Errno::INVAL)?;
            // SAFETY: the path ends with a NUL and lives through the call.
            let result = unsafe { libc::truncate(path.as_ptr(), *size as i64) };
            if result == 0 { Ok("done".into()) } else { Err(last_error()) }
        }
        What::Times(times, follow) => {
            let time = |time: Option<Option<i64>>| fs::Timespec {
                tv_sec: time.flatten().unwrap_or(0),
                tv_nsec: match time {
                    None => fs::UTIME_OMIT,
                    Some(None) => fs::UTIME_NOW,
                    Some(Some(_)) => 0,
                },
            };
            let times = fs::Timestamps { last_access: time(times[0]), last_modification: time(times[1]) };
            done(fs::utimensat(dir, path, &times, at(*follow)))
        }
        What::SetXattr(name, value, flags, follow) => {
            let flags = fs::XattrFlags::from_bits_retain(*flags);
            done(match follow {
                true => fs::setxattr(path, *name, value, flags),
                false => fs::lsetxattr(path, *name, value, flags),
            })
        }
        What::RemoveXattr(name, follow) => done(match follow {
            true => fs::removexattr(path, *name),
            false => fs::lremovexattr(path, *name),
        }),
    }
}

/// Everything below a directory as far as it can be listed and searched.
fn walk(dir: OwnedFd, above: &str, with_numbers: bool, entries: &mut Vec<String>) -> Result<()> {
    let names: Vec<_> = fs::Dir::read_from(&dir)?.collect::<Result<_>>()?;
    for name in names.iter().map(fs::DirEntry::file_name).filter(|name| *name != c"." && *name != c"..") {
        let stat = fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let path = format!("{above}{}", name.to_string_lossy());
        let is_dir = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let both = fs::Access::READ_OK | fs::Access::EXEC_OK;
        let is_closed = is_dir && fs::accessat(&dir, name, both, AtFlags::EACCESS).is_err();
        let closed = if is_closed { " closed" } else { "" };
        entries.push(format!("{path:?} {}{closed}", shown(&stat, with_numbers)));
        if is_dir && !is_closed {
            let below = fs::openat(&dir, name, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty())?;
            walk(below, &format!("{path}/"), with_numbers, entries)?;
        }
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn shown(stat: &fs::Stat, with_numbers: bool) -> String {
    let size = if stat.st_mode & libc::S_IFMT == libc::S_IFIFO { 0 } else { stat.st_size };
    format!(
        "ino {} mode {:o} links {} owner {} {} size {size}",
        if with_numbers { stat.st_ino } else { 0 },
        stat.st_mode,
        stat.st_nlink,
        stat.st_uid,
        stat.st_gid
    )
}

/// Opens a file, and says what is in it.
fn open(dir: BorrowedFd<'_>, path: &[u8], how: &Opening, with_numbers: bool) -> Result<String> {
    let mut flags = OFlags::NONBLOCK | if how.write { OFlags::RDWR } else { OFlags::RDONLY };
    flags.set(OFlags::CREATE, how.create.is_some());
    flags.set(OFlags::EXCL, how.exclusive && how.create.is_some());
    flags.set(OFlags::TRUNC, how.truncate);
    // With O_CREAT Linux refuses it since 6.4 where it made a file before.
    flags.set(OFlags::DIRECTORY, how.directory && how.create.is_none());
    flags.set(OFlags::NOFOLLOW, how.stay);
    let file = fs::openat(dir, path, flags, Mode::from_raw_mode(how.create.unwrap_or(0)))?;
    let stat = fs::fstat(&file)?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => Err(Errno::NXIO),
        libc::S_IFDIR => {
            let mut entries: Vec<String> = Vec::new();
            for entry in fs::Dir::new(file)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    entries.push(format!("{:x?} {}", name, if with_numbers { entry.ino() } else { 0 }));
                }
            }
            entries.sort();
            Ok(entries.join(", "))
        }
        _ => {
            let mut data = [0; 8192];
            let length = rustix::io::read(&file, &mut data)?;
            Ok(format!("{:x?}", &data[..length]))
        }
    }
}
