//! Calls on many files, against what the kernel says on the mount.

mod common;

use common::{Mounted, serve_if_asked};
use espalier_client::{Client, Error, Links, Listing, Piece, Write, WriteFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// Numbers by which a test chooses; the same for the same seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// All paths below a directory, with what `lstat` says.
fn tree(root: &Path) -> BTreeMap<Vec<u8>, fs::Metadata> {
    let mut all = BTreeMap::new();
    let mut coming = vec![root.to_owned()];
    while let Some(directory) = coming.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            if status.is_dir() {
                coming.push(path.clone());
            }
            all.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), status);
        }
    }
    all
}

/// Makes a random tree through the kernel; the content of a file is its path, repeated.
fn make_tree(root: &Path, choices: &mut Choices) {
    let mut directories = vec![root.to_owned()];
    for number in 0..400 {
        let above = directories[choices.below(directories.len())].clone();
        let path = above.join(format!("n{number}"));
        match choices.below(5) {
            0 => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            1 => std::os::unix::fs::symlink(format!("n{}", choices.below(400)), &path).unwrap(),
            _ => {
                let data = path.as_os_str().as_bytes().repeat(choices.below(300));
                fs::write(&path, data).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600 | choices.below(0o100) as u32))
                    .unwrap();
            }
        }
    }
}

fn shuffled<T>(mut list: Vec<T>, choices: &mut Choices) -> Vec<T> {
    (1..list.len()).for_each(|at| list.swap(at, choices.below(at + 1)));
    list
}

#[test]
fn attributes_content_and_walks_are_those_of_the_kernel() {
    let mounted = Mounted::new("");
    for seed in [3, 4] {
        println!("seed {seed}");
        let mut choices = Choices(seed);
        let root = mounted.path().join(format!("s{seed}"));
        fs::create_dir(&root).unwrap();
        make_tree(&root, &mut choices);
        fs::write(root.join("large"), (0..3_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
            .unwrap();
        let client = Client::connect(&root).unwrap();
        let known = tree(&root);
        let paths = shuffled(known.keys().cloned().collect(), &mut choices);
        for (path, found) in paths.iter().zip(client.stat_many(&paths, Links::Stay).unwrap()) {
            let (found, known) = (found.unwrap(), &known[path]);
            assert_eq!((found.ino, found.mode, found.size), (known.ino(), known.mode(), known.size()));
            assert_eq!((found.uid, found.nlink.into()), (known.uid(), known.nlink()));
            assert_eq!(found.mtime, known.mtime() * 1_000_000_000 + known.mtime_nsec());
        }
        let followed = client.stat_many(&paths, Links::Follow).unwrap();
        for (path, found) in paths.iter().zip(followed) {
            let kernel = fs::metadata(root.join(std::ffi::OsStr::from_bytes(path)));
            match (found, kernel) {
                (Ok(found), Ok(kernel)) => assert_eq!(found.ino, kernel.ino()),
                (Err(found), Err(kernel)) => assert_eq!(Some(found.errno()), kernel.raw_os_error()),
                other => panic!("{path:?}: {other:?}"),
            }
        }
        check_reads(&client, &root, &paths);
        let walked: BTreeMap<Vec<u8>, u64> = client
            .walk(".", &Listing::default())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.path, entry.stat.ino))
            .collect();
        assert_eq!(walked, known.iter().map(|(path, status)| (path.clone(), status.ino())).collect());
        let filter = Listing { pattern: Some(b"n1*".to_vec()), kinds: 1 << 8, ..Listing::default() };
        let some =
            client.walk(".", &filter).unwrap().map(|entry| entry.unwrap().path).collect::<BTreeSet<_>>();
        let is_given = |path: &Vec<u8>, status: &fs::Metadata| {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
            status.is_file() && name.starts_with(b"n1")
        };
        assert_eq!(some, known.iter().filter(|(p, s)| is_given(p, s)).map(|(p, _)| p.clone()).collect());
    }
    mounted.end();
}

fn check_reads(client: &Client, root: &Path, paths: &[Vec<u8>]) {
    let at = |path: &[u8]| root.join(std::ffi::OsStr::from_bytes(path));
    let mut pieces: Vec<Piece<'_>> =
        paths.iter().map(|path| Piece { path, offset: 0, length: u64::MAX }).collect();
    pieces.push(Piece { path: b"large", offset: 4_000_001, length: 2_500_000 });
    pieces.push(Piece { path: b"large", offset: 12_000_000 - 3, length: 10 });
    pieces.push(Piece { path: b"nothing", offset: 0, length: 1 });
    let mut seen = vec![false; pieces.len()];
    let mut each = |index: usize, data: espalier_client::Result<&[u8]>| {
        assert!(!std::mem::replace(&mut seen[index], true), "one answer for each");
        let piece = pieces[index];
        match (data, fs::read(at(piece.path))) {
            (Ok(data), Ok(whole)) => {
                let begin = whole.len().min(piece.offset as usize);
                let end = whole.len().min((piece.offset.saturating_add(piece.length)) as usize);
                assert!(data == &whole[begin..end], "{piece:?}");
            }
            (Err(error), Err(kernel)) => assert_eq!(Some(error.errno()), kernel.raw_os_error(), "{piece:?}"),
            (data, kernel) => panic!("{piece:?}: {:?}, {:?}", data.map(<[u8]>::len), kernel.map(|k| k.len())),
        }
        true
    };
    client.read_many(&pieces, &mut each).unwrap();
    assert!(seen.iter().all(|seen| *seen));
    let mut count = 0;
    let mut only_two = |_: usize, _: espalier_client::Result<&[u8]>| {
        count += 1;
        count < 2
    };
    client.read_many(&pieces, &mut only_two).unwrap();
    assert_eq!(count, 2, "reading can be stopped");
}

#[test]
fn many_files_are_written_with_their_attributes() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    let names: Vec<String> = (0..6000).map(|n| format!("d{}/e/f{n}", n % 7)).collect();
    let large = vec![7u8; 3 << 20];
    let mut files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, name)).collect();
    files.push(Write::file("d1/large", &large).with_mode(0o4711).with_mtime(5));
    files.push(Write::file("d1/own", "x").with_owner(Some(8), Some(9)).with_mode(0o2755).with_mtime(-1));
    files.push(Write::symlink("d1/link", "own"));
    for result in client.write_many(&files, WriteFlags::default()) {
        result.unwrap();
    }
    for name in &names {
        assert_eq!(fs::read(root.join(name)).unwrap(), name.as_bytes());
    }
    let status = fs::metadata(root.join("d1/large")).unwrap();
    assert_eq!((status.size(), status.mode() & 0o7777, status.mtime_nsec()), (3 << 20, 0o4711, 5));
    let status = fs::metadata(root.join("d1/link")).unwrap();
    assert_eq!((status.uid(), status.gid(), status.mode() & 0o7777), (8, 9, 0o2755));
    assert!(fs::read_dir(root.join("d1")).unwrap().count() == 4, "nothing else is left");
    let bad = [
        Write::file("d1", "x"),
        Write::file("d1/own/x", "x"),
        Write::file("d1/new", "x"),
        Write::file("d1/link", "x"),
        Write::file("no/thing", "x"),
        Write::file("d1/\0", "x"),
        Write::file("d1/ok/", "x"),
    ];
    let how = WriteFlags { replace: false, directories: None };
    let results = client.write_many(&bad, how);
    let numbers: Vec<i32> =
        results.iter().map(|result| result.as_ref().err().map_or(0, Error::errno)).collect();
    let expected = [libc::EEXIST, libc::ENOTDIR, 0, libc::EEXIST, libc::ENOENT, libc::EINVAL, libc::EISDIR];
    assert_eq!(numbers, expected);
    assert!(fs::symlink_metadata(root.join("d1/link")).unwrap().is_symlink());
    drop(client);
    mounted.end();
}

#[test]
fn walks_can_be_left_and_see_one_instant() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let names: Vec<String> = (0..5000).map(|n| format!("d/f{n:05}")).collect();
    let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, "")).collect();
    client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    let mut walk = client.walk(".", &Listing::default()).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().path, b"d");
    drop(client.walk(".", &Listing::default()).unwrap());
    // In turns, entry by entry and many at a time.
    let mut turns = client.walk(".", &Listing::default()).unwrap();
    let mut found = vec![turns.next().unwrap().unwrap().path];
    let mut visit = |most: usize, found: &mut Vec<Vec<u8>>| {
        let until = found.len() + most;
        turns
            .visit(|entry| {
                found.push(entry.path.to_vec());
                found.len() < until
            })
            .unwrap();
        found.extend(turns.next().map(|entry| entry.unwrap().path));
    };
    visit(1, &mut found);
    visit(700, &mut found);
    visit(usize::MAX / 2, &mut found);
    assert_eq!(found[0], b"d");
    assert!(found[1..].iter().eq(names.iter().map(|name| name.as_bytes())));
    client.remove_tree("d").unwrap();
    client.make_directory("later", 0o755, false).unwrap();
    assert_eq!(walk.count(), 5000, "as it was when the walk began");
    assert_eq!(client.walk("d", &Listing::default()).err().unwrap().errno(), libc::ENOENT);
    client.write_at("file", b"", 0, Some(0o644), false).unwrap();
    assert_eq!(client.walk("file", &Listing::default()).err().unwrap().errno(), libc::ENOTDIR);
    drop(client);
    mounted.end();
}

#[test]
fn odd_paths_are_refused_as_the_library_refuses_them() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let error = |path: &[u8]| client.stat(path, Links::Follow).unwrap_err().errno();
    assert_eq!(error(b""), libc::ENOENT);
    assert_eq!(error(b"a\0b"), libc::EINVAL);
    assert_eq!(error(&[b'x'; 256]), libc::ENAMETOOLONG);
    assert_eq!(error(&vec![b'x'; 2 << 20]), libc::ENAMETOOLONG);
    assert_eq!(error(&b"d/".repeat(100_000)), libc::ENOENT);
    assert_eq!(client.stat(b"./".repeat(100_000), Links::Follow).unwrap().ino, 1);
    assert_eq!(error(b"\xff\xfe"), libc::ENOENT);
    drop(client);
    mounted.end();
}

#[test]
fn changes_are_told_from_a_position_on() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    client.make_directory("d/e", 0o755, true).unwrap();
    let mut position = Vec::new();
    for _ in 0..2 {
        let changes = client.changes("d", &position).unwrap();
        assert!(changes.everything && changes.paths.is_empty());
        position = changes.position;
    }
    // What was changed in the second before a position is told again.
    let settled = loop {
        let changes = client.changes("d", &position).unwrap();
        position = changes.position;
        if !changes.everything {
            break changes.paths;
        }
    };
    assert!(settled.iter().all(|path| path.starts_with(b"e") || path.is_empty()), "{settled:?}");
    fs::write(root.join("d/by-kernel"), "x").unwrap();
    client.write_at("d/e/by-client", b"x", 0, Some(0o644), false).unwrap();
    client.write_at("outside", b"x", 0, Some(0o644), false).unwrap();
    let told: BTreeSet<Vec<u8>> = client.changes("d", &position).unwrap().paths.into_iter().collect();
    for path in [&b"by-kernel"[..], b"e/by-client"] {
        assert!(told.contains(path), "{told:?}");
    }
    assert!(!told.iter().any(|path| path.ends_with(b"outside")));
    let many: Vec<String> = (0..3000).map(|n| format!("d/e/{n:0>60}")).collect();
    let files: Vec<Write<'_>> = many.iter().map(|name| Write::file(name, "")).collect();
    client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    let mut watch = client.watch("d", &position).unwrap();
    let told = watch.wait(std::time::Duration::ZERO).unwrap();
    let is_told = |name: &String| {
        let path = name.strip_prefix("d/").unwrap().as_bytes();
        told.paths.iter().any(|told| told == path || told.ends_with(b"/") && path.starts_with(told))
    };
    assert!(told.everything || many.iter().all(is_told), "more paths than one answer has");
    assert_eq!(watch.position(), told.position);
    assert_eq!(client.changes("nothing", b"").unwrap_err().errno(), libc::ENOENT);
    // Both have the root open.
    drop((client, watch));
    mounted.end();
}

#[test]
fn many_clients_work_side_by_side() {
    let mounted = Mounted::new("");
    std::thread::scope(|scope| {
        for number in 0..16 {
            let mounted = &mounted;
            scope.spawn(move || {
                let client = mounted.client();
                for round in 0..10 {
                    let names: Vec<String> = (0..50).map(|n| format!("c{number}/r{round}/f{n}")).collect();
                    let files: Vec<_> = names.iter().map(|name| Write::file(name, name)).collect();
                    for result in client.write_many(&files, WriteFlags::default()) {
                        result.unwrap();
                    }
                    let top = format!("c{number}");
                    let count = client.walk(&top, &Listing::default()).unwrap().count();
                    assert_eq!(count, 51 * (round + 1));
                    let found = client.stat_many(&names, Links::Follow).unwrap();
                    assert!(found.into_iter().all(|stat| stat.is_ok()));
                }
            });
        }
    });
    assert_eq!(tree(mounted.path()).len(), 16 * (1 + 10 * 51));
    mounted.end();
}

/// Several clients read all files at the same time, each in an order of its own and again and
/// again, with threads that help all of them; answers have less room than the files.
#[test]
fn many_clients_read_the_same_files() {
    let mounted = Mounted::new("");
    let names: Vec<String> = (0..400).map(|n| format!("d{}/f{n}", n % 7)).collect();
    let content = |name: &str| name.repeat(1 + name.len() * 300);
    let contents: Vec<String> = names.iter().map(|name| content(name)).collect();
    let files: Vec<_> = names.iter().zip(&contents).map(|(name, all)| Write::file(name, all)).collect();
    for result in mounted.client().write_many(&files, WriteFlags::default()) {
        result.unwrap();
    }
    std::thread::scope(|scope| {
        for number in 0..6usize {
            let (mounted, names, contents) = (&mounted, &names, &contents);
            scope.spawn(move || {
                let client = mounted.client();
                for round in 0..4 {
                    let step = [1, 3, 7, 11, 13, 17][number];
                    let order: Vec<usize> = (0..400).map(|n| (n * step + round) % 400).collect();
                    let mut missing = vec![1; 400];
                    let piece =
                        |at: &usize| Piece { path: names[*at].as_bytes(), offset: 0, length: u64::MAX };
                    let mut pieces: Vec<Piece<'_>> = order.iter().map(piece).collect();
                    pieces.push(Piece { path: b"d0/none", offset: 0, length: 1 });
                    client
                        .read_many(&pieces, &mut |at, data| {
                            match order.get(at) {
                                Some(file) => {
                                    assert!(data.unwrap() == contents[*file].as_bytes());
                                    missing[*file] -= 1;
                                }
                                None => assert_eq!(data.unwrap_err().errno(), libc::ENOENT),
                            }
                            true
                        })
                        .unwrap();
                    assert_eq!(missing, vec![0; 400]);
                }
            });
        }
    });
    mounted.end();
}

/// Whether one call or two are under way, and however often a part is asked for again.
#[test]
fn what_is_read_by_two_calls_at_a_time_is_what_is_there() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let length = |n: usize| if n.is_multiple_of(50) { (3 << 20) + n } else { n * 13 };
    let content: Vec<u8> = (0..4 << 20).map(|n: u32| (n % 251) as u8).collect();
    let names: Vec<String> = (0..200).map(|n| format!("d{}/f{n}", n % 9)).collect();
    let is_there = |n: usize| n % 7 != 3;
    let files: Vec<Write<'_>> = (0..names.len())
        .filter(|n| is_there(*n))
        .map(|n| Write::file(&names[n], &content[n..n + length(n)]))
        .collect();
    client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    let pieces: Vec<_> =
        names.iter().map(|name| Piece { path: name.as_bytes(), offset: 1, length: u64::MAX }).collect();
    // Two calls at a time from the sixth round on.
    for round in 0..9 {
        let mut given = vec![0; names.len()];
        let mut each = |at: usize, data: espalier_client::Result<&[u8]>| {
            given[at] += 1;
            match data {
                Ok(data) => {
                    let whole = &content[at..at + length(at)];
                    assert!(is_there(at) && data == &whole[whole.len().min(1)..], "{at} in round {round}");
                }
                Err(error) => assert!(!is_there(at) && error.errno() == libc::ENOENT, "{at}: {error}"),
            }
            true
        };
        client.read_many(&pieces, &mut each).unwrap();
        assert_eq!(given, vec![1; names.len()], "round {round}");
    }
    // It may make calls meanwhile, and end the reading.
    let mut count = 0;
    let mut each = |at: usize, _: espalier_client::Result<&[u8]>| {
        assert_eq!(client.stat(&names[at], Links::Stay).is_ok(), is_there(at));
        count += 1;
        count < 150
    };
    client.read_many(&pieces, &mut each).unwrap();
    assert_eq!(count, 150);
    assert_eq!(client.read(&names[1]).unwrap(), &content[1..14]);
    drop(client);
    mounted.end();
}
