use super::super::finding::Grade;
use super::*;
use tempfile::TempDir;

/// A system with nothing but what a test puts there.
fn bare(release: &str, is_root: bool) -> (TempDir, System) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let programs = vec![root.join("usr/bin")];
    (
        dir,
        System {
            root,
            release: release.into(),
            is_root,
            programs,
            open_files: 1024,
            nice: 0,
            sink: Sink::Nowhere,
        },
    )
}

fn put(system: &System, path: &str, content: &str) {
    let path = system.at(path);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
    fs::write(path, content).unwrap();
}

fn grades(system: &System) -> Vec<(&'static str, Grade)> {
    system.examine().iter().map(|finding| (finding.what, finding.grade)).collect()
}

#[test]
fn a_good_system_gets_no_advice() {
    let (_dir, mut system) = bare("6.18.2-amd64", false);
    (system.sink, system.nice) = (Sink::Syslog, 20);
    put(&system, "/dev/fuse", "");
    put(&system, "/sys/module/fuse/parameters/enable_uring", "Y\n");
    put(&system, "/proc/sys/kernel/io_uring_disabled", "0\n");
    put(&system, "/proc/sys/user/max_user_namespaces", "95000\n");
    put(&system, "/proc/meminfo", "MemTotal:       24624396 kB\nMemFree: 1 kB\n");
    put(&system, "/etc/fuse.conf", "# comment\nuser_allow_other\n");
    put(&system, "/usr/bin/fusermount3", "");
    fs::set_permissions(system.at("/usr/bin/fusermount3"), fs::Permissions::from_mode(0o4755)).unwrap();
    for name in ["mkfs.espalier", "fsck.espalier", "mount.fuse.espalier", "umount.fuse.espalier"] {
        put(&system, &format!("/sbin/{name}"), "");
    }
    for finding in system.examine() {
        assert_eq!((finding.grade, &finding.advice), (Grade::Good, &None), "{finding:?}");
    }
}

#[test]
fn what_is_missing_is_graded_and_explained() {
    let (_dir, system) = bare("6.1.0-18-amd64", false);
    let found = grades(&system);
    let broken = ["/dev/fuse", "fusermount3"];
    for (what, grade) in &found {
        let expected = if broken.contains(what) { Grade::Broken } else { Grade::Advice };
        if *what != "open files" {
            assert_eq!(*grade, expected, "{what}");
        }
    }
    for finding in system.examine() {
        assert_eq!(finding.grade != Grade::Good, finding.advice.is_some(), "{finding:?}");
    }
    // Root needs no helper.
    let (_dir, system) = bare("6.1.0-18-amd64", true);
    assert!(!grades(&system).iter().any(|(what, _)| *what == "fusermount3"));
}

#[test]
fn kernels_are_told_apart_by_their_numbers() {
    let grade = |release: &str| bare(release, true).1.kernel().grade;
    assert_eq!(grade("4.19.0"), Grade::Broken);
    assert_eq!(grade("5.3.18-150300"), Grade::Broken);
    assert_eq!(grade("5.4.0-100-generic"), Grade::Advice);
    assert_eq!(grade("6.14.0"), Grade::Good);
    assert_eq!(grade("7.0.0-rc1"), Grade::Good);
    assert_eq!(grade("strange"), Grade::Broken);
}

#[test]
fn a_kernel_that_forbids_io_uring_is_noticed() {
    let (_dir, system) = bare("6.18.0", true);
    put(&system, "/sys/module/fuse/parameters/enable_uring", "N");
    assert_eq!(system.io_uring().grade, Grade::Good, "the next mount by root turns it on");
    put(&system, "/proc/sys/kernel/io_uring_disabled", "2");
    assert_eq!(system.io_uring().grade, Grade::Advice);
}

#[test]
fn memory_is_read_from_its_table() {
    assert_eq!(total_memory("MemTotal:  2048 kB\nMemFree: 5 kB"), Some(2 << 20));
    for table in ["", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB", "MemTotal: 5 MB"] {
        assert_eq!(total_memory(table), None, "{table}");
    }
}

#[test]
fn the_least_limit_of_control_groups_counts() {
    let (_dir, system) = bare("6.18.0", true);
    put(&system, "/proc/meminfo", "MemTotal:       24624396 kB\n");
    let memory = || system.memory();
    assert_eq!(memory().grade, Grade::Good);
    put(&system, "/proc/self/cgroup", "12:cpu,cpuacct:/a\n0::/a.slice/b.service\n");
    assert_eq!(memory().grade, Grade::Good, "it has no limit");
    put(&system, "/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
    put(&system, "/sys/fs/cgroup/a.slice/memory.max", "8589934592\n");
    let found = memory();
    assert_eq!((found.grade, found.advice), (Grade::Good, None));
    assert!(found.found.ends_with("may take 8 GiB"), "{}", found.found);
    put(&system, "/sys/fs/cgroup/a.slice/b.service/memory.max", "536870912\n");
    let found = memory();
    assert_eq!(found.grade, Grade::Advice);
    assert!(found.found.ends_with("may take 512 MiB"), "{}", found.found);
    // A container sees its own group as the root. Of the older hierarchy none is told by a number
    // that no memory has.
    put(&system, "/proc/self/cgroup", "0::/\n");
    put(&system, "/sys/fs/cgroup/memory.max", "1073741824\n");
    assert!(memory().found.ends_with("may take 1 GiB"));
    put(&system, "/proc/self/cgroup", "4:memory:/c\n1:name=systemd:/c\n");
    put(&system, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(memory().grade, Grade::Good);
    put(&system, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1073741824\n");
    assert_eq!(memory().grade, Grade::Advice);
}

#[test]
fn a_log_that_cannot_be_written_is_noticed() {
    let (dir, mut system) = bare("6.18.0", false);
    system.sink = Sink::File(dir.path().join("home/.local/log"));
    assert_eq!(system.log().grade, Grade::Good, "it can be made");
    put(&system, "file", "");
    system.sink = Sink::File(dir.path().join("file"));
    assert_eq!(system.log().grade, Grade::Good, "it is there");
    // A directory is no log, and below a file there is nothing, for root neither.
    for path in ["", "file/log"] {
        system.sink = Sink::File(dir.path().join(path));
        let found = system.log();
        assert_eq!(found.grade, Grade::Advice, "{path}");
        assert!(found.found.contains("cannot be written"), "{}", found.found);
    }
}
