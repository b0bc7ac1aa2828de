use super::open::find_mount;
use super::*;
use crate::AlignedBuf;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A folder on the file system of the build, which knows direct I/O more often than `/tmp`.
fn folder() -> TempDir {
    let build = std::env::current_exe().unwrap();
    TempDir::new_in(build.parent().unwrap()).unwrap()
}

fn filled(blocks: usize, byte: u8) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(blocks * BLOCK);
    buffer.fill(byte);
    buffer
}

fn kind_of<T: std::fmt::Debug>(outcome: Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind
}

#[test]
fn what_was_written_is_read_after_reopening() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB + 17).unwrap();
    assert_eq!((device.len(), device.mode(), device.is_block_device()), (MIB, OpenMode::ReadWrite, false));
    device.write_at(8192, &[&filled(1, 1), &filled(2, 2), &[], &filled(1, 3)]).unwrap();
    device.sync().unwrap();
    drop(device);

    let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let mut buffer = AlignedBuf::zeroed(6 * BLOCK);
    device.read_at(4096, &mut buffer).unwrap();
    let firsts: Vec<u8> = buffer.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 2, 3, 0]);
    assert_eq!(device.name(), path.display().to_string());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "an image is its owner's alone");
}

#[test]
fn many_buffers_go_out_in_several_calls() {
    let folder = folder();
    let device = FileDevice::create(folder.path().join("image"), 16 * MIB).unwrap();
    let blocks: Vec<AlignedBuf> = (0..2500).map(|i| filled(1, (i % 251) as u8)).collect();
    let buffers: Vec<&[u8]> = blocks.iter().map(|b| &b[..]).collect();
    device.write_at(4096, &buffers).unwrap();
    let mut all = AlignedBuf::zeroed(2500 * BLOCK);
    device.read_at(4096, &mut all).unwrap();
    assert!(all.chunks(BLOCK).enumerate().all(|(i, b)| b.iter().all(|x| *x == (i % 251) as u8)));
}

#[test]
fn short_and_interrupted_transfers_go_on() {
    let data: Vec<AlignedBuf> = (1..=4).map(|byte| filled(2, byte)).collect();
    let buffers: Vec<&[u8]> = data.iter().map(|b| &b[..]).collect();
    let mut file = vec![0; 10 * BLOCK];
    // How many bytes each call moves; `None` is a signal.
    let mut plan = [None, Some(5000), Some(1), Some(4096), None, Some(9000), Some(100_000)].into_iter();
    write_all(4096, &buffers, |slices, at| {
        let limit = plan.next().unwrap().ok_or(Errno::INTR)?;
        assert!(at.is_multiple_of(BLOCK as u64), "direct I/O starts at whole blocks");
        let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).take(limit).collect();
        file[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    })
    .unwrap();
    assert_eq!(plan.next(), None);
    assert_eq!(&file[4096..9 * 4096], data.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>());

    let stuck = write_all(0, &buffers, |_, _| Ok(0));
    assert_eq!(stuck, Err(Errno::NOSPC), "a transfer that never moves ends");
}

#[test]
fn only_one_may_write_and_readers_share() {
    let folder = folder();
    let path = folder.path().join("image");
    let writer = FileDevice::create(&path, MIB).unwrap();
    let refused = FileDevice::open(&path, OpenMode::ReadWrite).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
    assert_eq!(kind_of(FileDevice::open(&path, OpenMode::ReadOnly)), ErrorKind::Busy);
    assert_eq!(kind_of(FileDevice::create_with(&path, MIB, Existing::Replace)), ErrorKind::Busy);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB, "a refused creation changes nothing");
    drop(writer);
    let readers: Vec<_> = (0..2).map(|_| FileDevice::open(&path, OpenMode::ReadOnly).unwrap()).collect();
    assert_eq!(kind_of(FileDevice::open(&path, OpenMode::ReadWrite)), ErrorKind::Busy);
    drop(readers);
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
}

#[test]
fn another_process_is_kept_out() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB).unwrap();
    let locked = || {
        let status = std::process::Command::new("flock").arg("-n").arg(&path).arg("true").status();
        !status.expect("flock of util-linux runs").success()
    };
    assert!(locked());
    drop(device);
    assert!(!locked());
}

#[test]
fn waits_for_the_lock_until_it_is_free() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB).unwrap();
    let options = FileOptions::new(OpenMode::ReadWrite).wait(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| FileDevice::open_with(&path, &options));
        // Whether the other thread tries before or after this, it must succeed.
        drop(device);
        waiter.join().unwrap().unwrap();
    });
    let holder = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let options = options.wait(Duration::from_millis(30));
    assert_eq!(kind_of(FileDevice::open_with(&path, &options)), ErrorKind::Busy);
    drop(holder);
}

#[test]
fn creation_spares_what_is_there() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, "letters").unwrap();
    let refused = FileDevice::create(&path, MIB).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"letters");

    let device = FileDevice::create_with(&path, MIB, Existing::Replace).unwrap();
    let mut block = filled(1, 9);
    device.read_at(0, &mut block).unwrap();
    assert!(block.iter().all(|b| *b == 0), "nothing of the old content shows");

    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    assert_eq!(FileDevice::create(&empty, MIB).unwrap().len(), MIB);
    let huge = folder.path().join("huge");
    assert!(FileDevice::create(&huge, u64::MAX).is_err());
    assert!(!huge.exists(), "a failed creation leaves nothing");
}

#[test]
fn errors_name_the_path_and_the_cause() {
    let folder = folder();
    let absent = folder.path().join("absent");
    let error = FileDevice::open(&absent, OpenMode::ReadWrite).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.to_string().contains("absent"), "{error}");
    let error = FileDevice::open(folder.path(), OpenMode::ReadOnly).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.to_string().contains("directory"), "{error}");
    assert_eq!(kind_of(FileDevice::create(folder.path(), MIB)), ErrorKind::Unsupported);
    assert_eq!(kind_of(FileDevice::create(folder.path().join("no/such"), MIB)), ErrorKind::NotFound);
    assert_eq!(kind_of(FileDevice::open("/dev/null", OpenMode::ReadOnly)), ErrorKind::Unsupported);

    let path = folder.path().join("image");
    drop(FileDevice::create(&path, MIB).unwrap());
    let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert_eq!(kind_of(device.write_at(0, &[&filled(1, 1)])), ErrorKind::ReadOnly);
    assert_eq!(kind_of(device.discard(0, 4096)), ErrorKind::ReadOnly);
    assert_eq!(kind_of(device.read_at(MIB, &mut filled(1, 0))), ErrorKind::OutOfRange);
    assert_eq!(kind_of(device.read_at(MIB - 4096, &mut filled(2, 0))), ErrorKind::OutOfRange);
    device.sync().unwrap();
}

#[test]
fn a_file_cut_short_gives_an_error() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = device.read_at(0, &mut filled(4, 0)).unwrap_err();
    assert_eq!((error.kind, error.offset, error.length), (ErrorKind::Io, 0, 16384));
    assert!(error.message.contains("shorter"), "{error}");
}

#[test]
fn a_file_cut_inside_a_block_gives_an_error() {
    let folder = folder();
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, MIB).unwrap());
    for direct in [true, false] {
        let options = FileOptions { direct, ..FileOptions::new(OpenMode::ReadWrite) };
        let device = FileDevice::open_with(&path, &options).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(3 * BLOCK as u64 + 577).unwrap();
        device.read_at(BLOCK as u64, &mut filled(2, 0)).unwrap();
        for (offset, blocks) in [(0, 4), (BLOCK as u64, 200), (3 * BLOCK as u64, 1)] {
            let error = device.read_at(offset, &mut filled(blocks, 0)).unwrap_err();
            let length = (blocks * BLOCK) as u64;
            assert_eq!((error.kind, error.offset, error.length), (ErrorKind::Io, offset, length));
            assert!(error.message.contains("shorter"), "{error}");
        }
        file.set_len(MIB).unwrap();
    }
}

#[test]
fn grows_and_never_shrinks() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB).unwrap();
    device.write_at(MIB - 4096, &[&filled(1, 5)]).unwrap();
    device.grow(2 * MIB + 100).unwrap();
    assert_eq!(device.len(), 2 * MIB);
    device.write_at(2 * MIB - 4096, &[&filled(1, 6)]).unwrap();
    assert_eq!(kind_of(device.grow(MIB)), ErrorKind::Unsupported);
    drop(device);
    let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let mut block = filled(1, 0);
    device.read_at(MIB - 4096, &mut block).unwrap();
    assert_eq!((device.len(), block[0]), (2 * MIB, 5));
    assert_eq!(kind_of(device.grow(4 * MIB)), ErrorKind::ReadOnly);
}

#[test]
fn discarded_ranges_give_their_room_back() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, 4 * MIB).unwrap();
    let megabyte = filled(256, 7);
    (0..4).for_each(|i| device.write_at(i * MIB, &[&megabyte]).unwrap());
    device.sync().unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    let before = blocks();
    device.discard(MIB, 2 * MIB).unwrap();
    device.discard(0, 0).unwrap();
    device.sync().unwrap();
    if device.discards.load(Ordering::Relaxed) {
        assert!(blocks() < before, "{} sectors, then {}", before, blocks());
    }
    let mut block = filled(1, 0);
    device.read_at(3 * MIB, &mut block).unwrap();
    assert_eq!(block[0], 7, "what was not discarded stays");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * MIB);
}

#[test]
fn works_without_direct_io() {
    let folder = folder();
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, MIB).unwrap());
    let options = FileOptions { direct: false, ..FileOptions::new(OpenMode::ReadWrite) };
    let device = FileDevice::open_with(&path, &options).unwrap();
    assert!(!device.is_direct());
    device.write_at(0, &[&filled(1, 4)]).unwrap();
    let mut byte = [0];
    std::fs::File::open(&path).unwrap().read_exact_at(&mut byte, 17).unwrap();
    assert_eq!(byte, [4]);
}

#[test]
fn a_failed_sync_is_not_forgotten() {
    let folder = folder();
    let device = FileDevice::create(folder.path().join("image"), MIB).unwrap();
    device.sync_failed.store(true, Ordering::Release);
    assert_eq!(kind_of(device.sync()), ErrorKind::Io);
    assert_eq!(kind_of(device.write_at(0, &[&filled(1, 1)])), ErrorKind::Io);
    device.read_at(0, &mut filled(1, 0)).unwrap();
}

#[test]
#[should_panic(expected = "not aligned")]
fn unaligned_buffers_are_a_bug() {
    let folder = folder();
    let device = FileDevice::create(folder.path().join("image"), MIB).unwrap();
    let buffer = filled(2, 0);
    let _ = device.write_at(0, &[&buffer[512..512 + BLOCK]]);
}

#[test]
fn finds_mounts_in_the_table() {
    let table = "\
22 27 0:21 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/root rw
80 27 0:40 /sub /mnt/a\\040b rw - btrfs /dev/loop1 rw
81 27 7:2 / /mnt/c rw shared:3 - ext4 /dev/loop2 rw";
    let none = |_: &str| false;
    let at =
        |number, is: &dyn Fn(&str) -> bool| find_mount(table, number, is).map(|p| p.display().to_string());
    assert_eq!(at((7, 2), &none).as_deref(), Some("/mnt/c"));
    assert_eq!(at((254, 0), &none).as_deref(), Some("/"));
    assert_eq!(at((7, 3), &none), None);
    assert_eq!(at((7, 1), &|source| source == "/dev/loop1").as_deref(), Some("/mnt/a b"));
}

#[test]
fn large_reads_take_turns() {
    let turns = Turns::default();
    let mut first: Vec<_> = (0..MAX_CONCURRENT_LARGE_READS).map(|_| turns.take()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (turns, sender) = (&turns, sender.clone());
            scope.spawn(move || {
                let turn = turns.take();
                sender.send(n).unwrap();
                drop(turn);
            });
            while turns.state.lock().given <= MAX_CONCURRENT_LARGE_READS + n {
                std::thread::yield_now();
            }
        }
        assert!(receiver.try_recv().is_err());
        drop(first.pop());
        assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [0, 1]);
        drop(first);
    });
    assert_eq!(turns.state.lock().over, MAX_CONCURRENT_LARGE_READS + 2);
}

#[test]
fn a_descriptor_that_is_passed_on_keeps_the_lock() {
    let folder = folder();
    let path = folder.path().join("image");
    let first = FileDevice::create(&path, MIB).unwrap();
    first.write_at(4096, &[&filled(1, 7)]).unwrap();
    let passed = first.as_fd().try_clone_to_owned().unwrap();
    let second = FileDevice::from_descriptor(passed, &path).unwrap();
    assert_eq!((second.len(), second.mode(), second.is_direct()), (MIB, first.mode(), first.is_direct()));
    drop(first);
    assert_eq!(kind_of(FileDevice::open(&path, OpenMode::ReadOnly)), ErrorKind::Busy);
    let mut block = AlignedBuf::zeroed(BLOCK);
    second.read_at(4096, &mut block).unwrap();
    assert_eq!(block[0], 7);
    second.write_at(0, &[&filled(1, 8)]).unwrap();
    drop(second);
    FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let folder_itself = std::fs::File::open(folder.path()).unwrap().into();
    assert_eq!(kind_of(FileDevice::from_descriptor(folder_itself, folder.path())), ErrorKind::Unsupported);
}
