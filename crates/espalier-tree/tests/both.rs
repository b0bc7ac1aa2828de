//! The same calls on a mount and on an image, with the same results: the mount's server against the
//! library. Needs root and FUSE.

#[path = "../../espalier-server/tests/common/mod.rs"]
mod common;

use common::{Mounted, as_user, serve_if_asked};
use espalier_tree::{
    Change, Changes, Error, ImageOptions, Links, Listing, ModeBits, OpenHow, Piece, Rename, SetXattr, Time,
    Tree, Watch, Write, WriteFlags, Xattrs, format_image,
};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// Both trees, and what came out of the calls on each.
struct Both {
    trees: [Tree; 2],
    calls: usize,
}

impl Both {
    /// Makes a call on both; results and errors must be equal.
    #[track_caller]
    fn same<T: PartialEq + Debug>(&mut self, call: impl Fn(&Tree) -> Result<T, Error>) -> Result<T, i32> {
        let [mounted, image] = self
            .trees
            .each_ref()
            .map(|tree| call(tree).map_err(|error| (error.errno(), error.path().map(<[u8]>::to_vec))));
        assert_eq!(mounted, image, "call {}", self.calls);
        self.calls += 1;
        image.map_err(|(errno, _)| errno)
    }
}

/// What does not depend on when and where.
fn lasting(stat: &espalier_tree::Stat) -> (u32, u32, u32, u32, u64) {
    (stat.mode, stat.nlink, stat.uid, stat.gid, stat.size)
}

#[test]
fn mount_and_image_give_the_same_results() {
    let mounted = Mounted::new("");
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    format_image(&image, 128 << 20).unwrap();
    let options = ImageOptions::default();
    let trees = [Tree::open(mounted.path(), &options).unwrap(), Tree::open(&image, &options).unwrap()];
    let mut both = Both { trees, calls: 0 };
    changes_of_names(&mut both);
    whole_trees(&mut both);
    extended_attributes(&mut both);
    many_files(&mut both);
    open_files(&mut both);
    subtrees(&mut both);
    feeds(&mut both);
    for tree in &both.trees {
        tree.sync().unwrap();
        tree.close().unwrap();
        assert_eq!(tree.stat(".", Links::Follow).unwrap_err().errno(), libc::EBADF);
    }
    drop(both);
    mounted.end();
}

fn changes_of_names(both: &mut Both) {
    both.same(|tree| tree.make_directory("a/b/c", 0o755, true)).unwrap();
    both.same(|tree| tree.make_directory("a/b/c/", 0o755, true)).unwrap();
    assert_eq!(both.same(|tree| tree.make_directory("a/b", 0o755, false)), Err(libc::EEXIST));
    assert_eq!(both.same(|tree| tree.make_directory("x/y", 0o755, false)), Err(libc::ENOENT));
    both.same(|tree| tree.symlink("b/c", "a/link")).unwrap();
    assert_eq!(both.same(|tree| tree.make_directory("a/link/d/e", 0o700, true)), Ok(()));
    assert_eq!(both.same(|tree| tree.read_link("a/link")), Ok(b"b/c".to_vec()));
    assert_eq!(both.same(|tree| tree.read_link("a")), Err(libc::EINVAL));
    both.same(|tree| tree.write("a/file", b"content")).unwrap();
    assert_eq!(both.same(|tree| tree.make_directory("a/file/d", 0o700, true)), Err(libc::EEXIST));
    both.same(|tree| tree.make_directory("made", 0o755, true)).unwrap();
    both.same(|tree| tree.symlink("nowhere", "made/loose")).unwrap();
    for (path, expected) in [
        ("made//./new/../newer/", Ok(())),
        ("made/loose", Err(libc::EEXIST)),
        ("made/loose/d", Err(libc::EEXIST)),
        ("a/file", Err(libc::EEXIST)),
        ("", Err(libc::ENOENT)),
        ("..", Ok(())),
    ] {
        assert_eq!(both.same(|tree| tree.make_directory(path, 0o755, true)), expected, "{path}");
    }
    // As long as a path may be: it takes the time of one path, not of one for each component.
    let long = format!("{}made/x/y", "made/../".repeat(120_000));
    both.same(|tree| tree.make_directory(&*long, 0o755, true)).unwrap();
    both.same(|tree| tree.link("a/file", "a/name")).unwrap();
    both.same(|tree| tree.set_mode("a/file", 0o4751)).unwrap();
    both.same(|tree| tree.set_owner("a/file", Some(5), None, Links::Follow)).unwrap();
    both.same(|tree| tree.set_times("a/file", (Time::At(3), Time::At(-7)), Links::Follow)).unwrap();
    both.same(|tree| tree.truncate("a/file", 3)).unwrap();
    both.same(|tree| tree.stat("a/name", Links::Follow).map(|stat| lasting(&stat))).unwrap();
    both.same(|tree| tree.clone_tree("a", "z")).unwrap();
    assert_eq!(both.same(|tree| tree.clone_tree("a", "z")), Err(libc::EEXIST));
    assert_eq!(both.same(|tree| tree.rename("a", "z", Rename::NoReplace)), Err(libc::EEXIST));
    both.same(|tree| tree.rename("a/file", "z/name", Rename::Exchange)).unwrap();
    both.same(|tree| tree.rename("z/name", "z/moved", Rename::Replace)).unwrap();
    assert_eq!(both.same(|tree| tree.remove_directory("z")), Err(libc::ENOTEMPTY));
    both.same(|tree| tree.unlink("z/link")).unwrap();
    assert_eq!(both.same(|tree| tree.unlink("z/b")), Err(libc::EISDIR));
    let walk = |tree: &Tree| {
        let found = tree.walk(".", &Listing::default())?;
        found
            .map(|entry| entry.map(|entry| (entry.path, lasting(&entry.stat))))
            .collect::<Result<Vec<_>, _>>()
    };
    assert!(both.same(walk).unwrap().len() > 10);
    let list =
        |tree: &Tree| tree.list("z").map(|all| all.into_iter().map(|entry| entry.path).collect::<Vec<_>>());
    assert_eq!(both.same(list), Ok(vec![b"b".to_vec(), b"file".to_vec(), b"moved".to_vec()]));
    filters(both);
    both.same(|tree| tree.remove_tree("z")).unwrap();
    assert_eq!(both.same(|tree| tree.remove_tree("z")), Err(libc::ENOENT));
    for path in ["", "a\0b", "../../a/b", "a/link/", "a/file/", "a/b/..", "/", "a//b", "./a"] {
        let _ = both.same(|tree| tree.stat(path, Links::Stay).map(|stat| lasting(&stat)));
        let _ = both.same(|tree| tree.make_directory(path, 0o755, false));
        let _ = both.same(|tree| tree.unlink(path));
        let _ = both.same(|tree| tree.open_file(path, &OpenHow::read()).map(drop));
    }
    let long = "d/".repeat(1000);
    assert_eq!(both.same(|tree| tree.stat(&long, Links::Follow).map(drop)), Err(libc::ENOENT));
    let long = "n".repeat(256);
    assert_eq!(both.same(|tree| tree.stat(&long, Links::Follow).map(drop)), Err(libc::ENAMETOOLONG));
}

fn filters(both: &mut Both) {
    let sizes: Vec<String> = [0, 10, 5000].iter().map(|size| format!("s/d/of-{size}")).collect();
    let content = [7; 5000];
    let files: Vec<Write<'_>> = sizes
        .iter()
        .zip([0, 10, 5000])
        .map(|(path, size)| Write::file(path, &content[..size]).with_mtime(size as i64 * 1000))
        .chain([Write::file("s/of-10", &content[..10]).with_mtime(-5), Write::symlink("s/link", "of-10")])
        .collect();
    both.same(|tree| tree.write_many(&files, WriteFlags::default()).into_iter().collect::<Result<(), _>>())
        .unwrap();
    let mut found = |path: &str, listing: Listing| {
        let paths = |walk: espalier_tree::Walk| -> Result<Vec<String>, Error> {
            walk.map(|entry| Ok(String::from_utf8(entry?.path).unwrap())).collect()
        };
        let below = both.same(|tree| paths(tree.walk(path, &listing)?)).unwrap();
        (below, both.same(|tree| paths(tree.entries(path, &listing)?)).unwrap())
    };
    let file = 1 << 8;
    let of = |below: &[&str], top: &[&str]| {
        let owned = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        (owned(below), owned(top))
    };
    let all = Listing { kinds: file, ..Listing::default() };
    let large = Listing { size: Some(10..=u64::MAX), ..all.clone() };
    assert_eq!(found("s", large), of(&["of-10", "d/of-10", "d/of-5000"], &["of-10"]));
    assert_eq!(found("s", Listing { size: Some(0..=0), ..all.clone() }), of(&["d/of-0"], &[]));
    let old = Listing { modified: Some(i64::MIN..=-1), ..all.clone() };
    assert_eq!(found("s", old.clone()), of(&["of-10"], &["of-10"]));
    assert_eq!(found("s/d", old), of(&[], &[]));
    let both_ranges = Listing { size: Some(1..=10), modified: Some(10_000..=10_000), ..Listing::default() };
    assert_eq!(found("s", both_ranges), of(&["d/of-10"], &[]));
    let named = Listing { pattern: Some(b"l*".to_vec()), ..Listing::default() };
    assert_eq!(found("s", named), of(&["link"], &["link"]));
    let none = Listing { pattern: Some(b"d/*".to_vec()), ..all };
    assert_eq!(found("s", none), of(&["d/of-0", "d/of-10", "d/of-5000"], &[]));
}

/// Paths below a directory with what does not depend on when and where.
fn walked(tree: &Tree, path: &str) -> Result<Vec<(String, u32, u32, u32)>, Error> {
    let entries = tree.walk(path, &Listing::default())?;
    entries
        .map(|entry| {
            let entry = entry?;
            let name = String::from_utf8(entry.path).unwrap();
            Ok((name, entry.stat.mode & 0o7777, entry.stat.uid, entry.stat.gid))
        })
        .collect()
}

fn whole_trees(both: &mut Both) {
    both.same(|tree| tree.make_directory("w/d/e", 0o750, true)).unwrap();
    for (name, mode) in [("w/file", 0o664), ("w/d/program", 0o4711), ("w/d/e/shut", 0)] {
        both.same(|tree| tree.write(name, b"x")).unwrap();
        both.same(|tree| tree.set_mode(name, mode)).unwrap();
    }
    both.same(|tree| tree.symlink("nowhere", "w/link")).unwrap();
    both.same(|tree| tree.clone_tree("w", "before")).unwrap();
    both.same(|tree| tree.own_tree("w", Some(7), None)).unwrap();
    both.same(|tree| tree.own_tree("w/d", None, Some(9))).unwrap();
    assert_eq!(both.same(|tree| tree.own_tree("none", None, Some(9))), Err(libc::ENOENT));
    let bits = ModeBits { clear: 0o4022, add: 0o600, execute: 0o100 };
    both.same(|tree| tree.mode_tree("w", bits)).unwrap();
    let found = both.same(|tree| walked(tree, "w")).unwrap();
    let of = |path: &str| {
        found.iter().find(|entry| entry.0 == path).map(|(_, mode, uid, gid)| (*mode, *uid, *gid))
    };
    assert_eq!(of("file"), Some((0o644, 7, 0)));
    assert_eq!(of("d"), Some((0o750, 7, 9)));
    assert_eq!(of("d/program"), Some((0o711, 7, 9)));
    assert_eq!(of("d/e/shut"), Some((0o600, 7, 9)));
    assert_eq!(of("link").map(|(_, uid, gid)| (uid, gid)), Some((7, 0)));
    both.same(|tree| tree.mode_tree("w", ModeBits { clear: 0o7777, add: 0o640, execute: 0o110 })).unwrap();
    let modes = both.same(|tree| walked(tree, "w")).unwrap();
    let modes: Vec<u32> = modes.iter().filter(|entry| entry.0 != "link").map(|entry| entry.1).collect();
    assert_eq!(modes, [0o750, 0o640, 0o750, 0o750, 0o640]);
    let diff = |tree: &Tree, old: &str, new: &str| tree.diff(old, new)?.collect::<Result<Vec<_>, _>>();
    assert_eq!(both.same(|tree| diff(tree, "before", "before")), Ok(Vec::new()));
    both.same(|tree| tree.clone_tree("w", "after")).unwrap();
    both.same(|tree| tree.write("after/d/new", b"1")).unwrap();
    both.same(|tree| tree.unlink("after/file")).unwrap();
    both.same(|tree| tree.write("after/d/program", b"other")).unwrap();
    let found = both.same(|tree| diff(tree, "w", "after")).unwrap();
    let of = |path: &[u8]| found.iter().find(|(_, found)| found == path).map(|(change, _)| *change);
    assert_eq!(of(b"file"), Some(Change::Removed));
    assert_eq!(of(b"d/new"), Some(Change::Added));
    assert_eq!(of(b"d/program"), Some(Change::Changed));
    assert_eq!(of(b"d/e/shut"), None);
    assert_eq!(both.same(|tree| diff(tree, "w", "after/d/new").map(drop)), Err(libc::ENOTDIR));
    assert_eq!(both.same(|tree| diff(tree, "none", "w").map(drop)), Err(libc::ENOENT));
    // Left in the middle.
    for tree in &both.trees {
        let names: Vec<String> = (0..3000).map(|n| format!("after/many/f{n:04}")).collect();
        let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, "")).collect();
        tree.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
        let mut left = tree.diff("w", "after").unwrap();
        assert!(left.next().unwrap().is_ok());
        drop(left);
        assert_eq!(tree.diff("w", "after").unwrap().map(Result::unwrap).count(), found.len() + 3001);
    }
    for name in ["w", "before", "after"] {
        both.same(|tree| tree.remove_tree(name)).unwrap();
    }
}

fn extended_attributes(both: &mut Both) {
    both.same(|tree| tree.write("x", b"1")).unwrap();
    both.same(|tree| tree.symlink("x", "to-x")).unwrap();
    let set = |name: &'static str, value: &'static [u8], how: SetXattr| {
        move |tree: &Tree| tree.set_xattr("to-x", (name.as_bytes(), value), how, Links::Follow)
    };
    both.same(set("user.one", b"1", SetXattr::Set)).unwrap();
    both.same(set("user.two", b"", SetXattr::Create)).unwrap();
    assert_eq!(both.same(set("user.two", b"2", SetXattr::Create)), Err(libc::EEXIST));
    assert_eq!(both.same(set("user.three", b"3", SetXattr::Replace)), Err(libc::ENODATA));
    both.same(set("user.one", &[7; 3000], SetXattr::Replace)).unwrap();
    both.same(set("trusted.t", b"t", SetXattr::Set)).unwrap();
    assert!(both.same(set("wrong", b"", SetXattr::Set)).is_err());
    let all = both.same(|tree| tree.xattrs("x", Links::Stay)).unwrap();
    assert_eq!(
        all.iter().map(|(name, value)| (&name[..], value.len())).collect::<Vec<_>>(),
        [(&b"trusted.t"[..], 1), (b"user.one", 3000), (b"user.two", 0)]
    );
    assert_eq!(both.same(|tree| tree.xattr("x", b"user.one", Links::Follow)), Ok(vec![7; 3000]));
    assert_eq!(both.same(|tree| tree.xattr("x", b"user.no", Links::Follow)), Err(libc::ENODATA));
    assert_eq!(both.same(|tree| tree.xattrs("to-x", Links::Stay)), Ok(Vec::new()));
    assert_eq!(both.same(|tree| tree.xattrs("none", Links::Stay)), Err(libc::ENOENT));
    both.same(|tree| tree.remove_xattr("x", b"user.two", Links::Follow)).unwrap();
    assert_eq!(both.same(|tree| tree.remove_xattr("x", b"user.two", Links::Follow)), Err(libc::ENODATA));
    assert_eq!(both.same(|tree| tree.xattrs("x", Links::Stay)).map(|all| all.len()), Ok(2));
}

fn many_files(both: &mut Both) {
    // Around the lengths at which files do not fit into one message or batch any more.
    let lengths = [0, 1, 4095, 4096, 70_000, (1 << 20) - 200, 1 << 20, (4 << 20) + 1, (17 << 20) + 5];
    let content: Vec<u8> = (0..18 << 20).map(|n: u32| (n % 251) as u8).collect();
    let names: Vec<String> = (0..lengths.len()).map(|n| format!("m/d{}/f{n}", n % 3)).collect();
    let files: Vec<Write<'_>> =
        names.iter().zip(lengths).map(|(name, length)| Write::file(name, &content[..length])).collect();
    let write = |tree: &Tree| tree.write_many(&files, WriteFlags::default()).into_iter().collect();
    both.same::<Vec<()>>(write).unwrap();
    let sizes = |tree: &Tree| {
        let found = tree.stat_many(&names, Links::Follow)?;
        found.into_iter().map(|stat| stat.map(|stat| stat.size as usize)).collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(both.same(sizes), Ok(lengths.to_vec()));
    // A path that no call takes is an error of its own, and keeps no other file from its result.
    let long = "x/".repeat(1_500_000);
    let paths = ["m/d0/f0", &long, "m/d1/f1"];
    let kinds = |tree: &Tree| {
        let found = tree.stat_many(&paths, Links::Follow)?;
        Ok(found.into_iter().map(|stat| stat.map_err(|error| error.errno()).map(|stat| stat.size)).collect())
    };
    let too_long = Err(libc::ENAMETOOLONG);
    assert_eq!(both.same::<Vec<_>>(kinds), Ok(vec![Ok(0), too_long, Ok(1)]));
    let reads = |tree: &Tree| {
        let mut found = vec![Ok(0); paths.len()];
        let pieces = paths.map(|path| Piece { path: path.as_bytes(), offset: 0, length: 9 });
        tree.read_many(&pieces, &mut |at, data| {
            found[at] = data.map(<[u8]>::len).map_err(|error| error.errno());
            true
        })?;
        Ok(found)
    };
    assert_eq!(both.same(reads), Ok(vec![Ok(0), Err(libc::ENAMETOOLONG), Ok(1)]));
    assert_eq!(both.same(|tree| tree.xattrs(&*long, Links::Stay)), Err(libc::ENAMETOOLONG));
    let ends = [(0, u64::MAX), (1, 3), (4090, 10), (1 << 20, 1 << 20), ((16 << 20) - 1, u64::MAX)];
    for (name, length) in names.iter().zip(lengths) {
        for (offset, most) in ends {
            let piece = Piece { path: name.as_bytes(), offset, length: most };
            let mut found = Vec::new();
            let begin = (offset as usize).min(length);
            let expected = &content[begin..length.min(begin + most.min(1 << 40) as usize)];
            for tree in &both.trees {
                tree.read_many(&[piece], &mut |_, data| {
                    found.push(data.unwrap() == expected);
                    true
                })
                .unwrap();
            }
            assert_eq!(found, [true, true], "{name} at {offset}");
        }
    }
    // What is there twice has the later content, however large each is.
    let twice = [
        Write::file("m/twice", &content[..5 << 20]),
        Write::file("m/twice", "short"),
        Write::file("m/other", "short"),
        Write::file("m/other", &content[..5 << 20]),
    ];
    let write = |tree: &Tree| tree.write_many(&twice, WriteFlags::default()).into_iter().collect();
    both.same::<Vec<()>>(write).unwrap();
    let size = |name: &'static str| move |tree: &Tree| tree.stat(name, Links::Stay).map(|stat| stat.size);
    assert_eq!((both.same(size("m/twice")), both.same(size("m/other"))), (Ok(5), Ok(5 << 20)));
    let bad = [Write::file("m/d0/f0/x", "1"), Write::file("m", "1"), Write::file("m/new", "1")];
    let write = |tree: &Tree| {
        let results = tree.write_many(&bad, WriteFlags { replace: false, ..Default::default() });
        Ok(results.into_iter().map(|result| result.err().map(|error| error.errno())).collect::<Vec<_>>())
    };
    let results = both.same(write).unwrap();
    assert_eq!((results[0], results[2]), (Some(libc::ENOTDIR), None));
    assert!(results[1].is_some());
    let mut calls = 0;
    let piece = Piece { path: b"m/new", offset: 0, length: 9 };
    both.trees[1]
        .read_many(&[piece; 5], &mut |_, _| {
            calls += 1;
            calls < 2
        })
        .unwrap();
    assert_eq!(calls, 2, "reading ends when it is told to");
}

fn open_files(both: &mut Both) {
    for how in [OpenHow::create(0o640), OpenHow { exclusive: true, ..OpenHow::create(0o600) }] {
        let _ = both.same(|tree| tree.open_file("o", &how)?.stat().map(|stat| lasting(&stat)));
    }
    let work = |tree: &Tree| {
        let file = tree.open_file("o", &OpenHow::write())?;
        tree.rename("o", "p", Rename::Replace)?;
        file.write_at(5, b"hello")?;
        file.truncate(9)?;
        file.sync()?;
        let mut out = [9; 12];
        let read = file.read_at(3, &mut out)?;
        Ok((read, out, file.stat().map(|stat| lasting(&stat))?, file.read_at(9, &mut [0])?))
    };
    assert_eq!(both.same(work).unwrap().0, 6);
    let write = |tree: &Tree| tree.open_file("p", &OpenHow::read())?.write_at(0, b"x");
    assert_eq!(both.same(write), Err(libc::EBADF));
    let only_write = OpenHow { write: true, ..OpenHow::default() };
    let read = |tree: &Tree| tree.open_file("p", &only_write)?.read_at(0, &mut [0]);
    assert_eq!(both.same(read), Err(libc::EBADF));
    assert_eq!(both.same(|tree| tree.open_file(".", &OpenHow::write()).map(drop)), Err(libc::EISDIR));
}

fn subtrees(both: &mut Both) {
    both.same(|tree| tree.make_directory("sub/dir/deep", 0o755, true)).unwrap();
    both.same(|tree| tree.write("sub/dir/file", b"1")).unwrap();
    both.same(|tree| tree.write("sub/outside", b"2")).unwrap();
    both.same(|tree| tree.symlink("../outside", "sub/dir/out")).unwrap();
    both.same(|tree| tree.symlink("/file", "sub/dir/absolute")).unwrap();
    both.same(|tree| tree.symlink("dir", "sub/link")).unwrap();
    for path in ["none", "sub/outside", "", "sub/dir\0", "sub/link/"] {
        let _ = both.same(|tree| tree.subtree(path).map(drop));
    }
    let mut below =
        Both { trees: both.trees.each_ref().map(|tree| tree.subtree("sub/link").unwrap()), calls: 0 };
    // Also after the directory has moved away.
    for round in ["first", "moved"] {
        for path in ["file", "/file", "../file", "../../file", "absolute", "deep/../file"] {
            assert_eq!(below.same(|tree| tree.read(path)), Ok(b"1".to_vec()), "{path}");
        }
        for path in ["outside", "../outside", "out", "../../sub/outside"] {
            assert_eq!(below.same(|tree| tree.read(path)), Err(libc::ENOENT), "{path}");
        }
        below.same(|tree| tree.write(format!("new/{round}"), b"new")).unwrap_err();
        below.same(|tree| tree.write(round, b"new")).unwrap();
        below
            .same(|tree| tree.open_file("../opened", &OpenHow::create(0o600))?.write_at(0, round.as_bytes()))
            .unwrap();
        let names = below.same(|tree| walked(tree, "..")).unwrap();
        assert!(
            names.iter().any(|entry| entry.0 == round) && !names.iter().any(|entry| entry.0 == "outside")
        );
        let whole = below.same(|tree| {
            tree.subtree("deep").and_then(|deep| deep.stat("..", Links::Stay)).map(|stat| lasting(&stat))
        });
        assert_eq!(whole, below.same(|tree| tree.stat("deep", Links::Stay).map(|stat| lasting(&stat))));
        if round == "first" {
            assert_eq!(both.same(|tree| tree.read("sub/dir/first")), Ok(b"new".to_vec()));
            both.same(|tree| tree.rename("sub/dir", "elsewhere", Rename::Replace)).unwrap();
            both.same(|tree| tree.write("file", b"another")).unwrap();
        }
    }
    assert_eq!(both.same(|tree| tree.read("elsewhere/moved")), Ok(b"new".to_vec()));
    for tree in &below.trees {
        tree.close().unwrap();
        assert_eq!(tree.stat("file", Links::Stay).unwrap_err().errno(), libc::EBADF);
    }
    both.same(|tree| tree.remove_tree("elsewhere")).unwrap();
    both.same(|tree| tree.remove_tree("sub")).unwrap();
}

fn feeds(both: &mut Both) {
    for tree in &both.trees {
        let first = tree.changes("m", b"").unwrap();
        assert!(first.everything);
        let second = tree.changes("m", &first.position).unwrap();
        tree.write("m/changed", b"1").unwrap();
        let told = tree.changes("m", &second.position).unwrap();
        assert!(told.everything || told.paths.contains(&b"changed".to_vec()), "{told:?}");
        assert_eq!(tree.changes("m/changed", b"").unwrap_err().errno(), libc::ENOTDIR);
        assert_eq!(tree.watch("m/none", b"").err().map(|error| error.errno()), Some(libc::ENOENT));
        let mut watch = tree.watch("m/changed", b"").unwrap();
        assert_eq!(watch.wait(LONG).unwrap_err().errno(), libc::ENOTDIR);
        watches(tree);
        a_watch_goes_on_from_where_another_one_was(tree);
    }
}

/// What a watch tells next.
#[track_caller]
fn told(watch: &mut Watch) -> BTreeSet<String> {
    let Changes { everything, paths, .. } = watch.wait(LONG).unwrap();
    assert!(!everything);
    paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
}

fn watches(tree: &Tree) {
    tree.make_directory("w/d", 0o755, true).unwrap();
    let mut watch = tree.watch("w", b"").unwrap();
    assert!(watch.wait(LONG).unwrap().everything, "where it begins nothing is known");
    assert_eq!(watch.wait(Duration::ZERO).unwrap().paths.len(), 0, "and then there is nothing to tell");
    for round in 0..40 {
        let name = format!("d/f{round}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| told(&mut watch));
            tree.write("outside", b"").unwrap();
            tree.make_directory(format!("w/{name}"), 0o755, false).unwrap();
            assert_eq!(waiting.join().unwrap(), [name].into(), "of this change, once, and not of others");
        });
    }
    // What happens while nothing waits is told with the next question.
    tree.rename("w/d/f0", "w/moved", Rename::Replace).unwrap();
    tree.remove_directory("w/d/f1").unwrap();
    let after: BTreeSet<String> = told(&mut watch).iter().map(|path| path.trim_matches('/').into()).collect();
    assert_eq!(after, ["d/f0", "moved", "d/f1"].map(String::from).into());
    assert_eq!(watch.wait(Duration::from_millis(1)).unwrap().paths.len(), 0);
    // Of a wait that is given up nothing is lost.
    let mut asked = 0;
    let mut goes_on = || {
        asked += 1;
        tree.make_directory(format!("w/given-up{asked}"), 0o755, false).unwrap();
        false
    };
    let mut all: BTreeSet<Vec<u8>> =
        watch.wait_while(LONG, &mut goes_on).unwrap().paths.into_iter().collect();
    all.extend(watch.wait(Duration::ZERO).unwrap().paths);
    assert_eq!((asked, all), (1, [b"given-up1".to_vec()].into()));
    assert_eq!(watch.wait(Duration::ZERO).unwrap().paths.len(), 0);
    // Where it is told of is what has the path; a directory that is gone ends the wait.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                if let Err(error) = watch.wait(LONG) {
                    break (error.errno(), error.path().map(<[u8]>::to_vec));
                }
            }
        });
        tree.remove_tree("w").unwrap();
        assert_eq!(waiting.join().unwrap(), (libc::ENOENT, Some(b"w".to_vec())));
    });
}

fn a_watch_goes_on_from_where_another_one_was(tree: &Tree) {
    tree.make_directory("w", 0o755, false).unwrap();
    let mut watch = tree.watch("w", b"").unwrap();
    // A position is good from the first second of a watch on.
    while tree.changes("w", watch.position()).unwrap().everything {
        watch.wait(Duration::from_millis(20)).unwrap();
    }
    let position = watch.position().to_vec();
    drop(watch);
    for name in ["one", "two", "three"] {
        tree.write(format!("w/{name}"), b"").unwrap();
    }
    let mut later = tree.watch("w", &position).unwrap();
    assert_eq!(later.position(), position);
    assert_eq!(told(&mut later), ["one", "two", "three"].map(String::from).into());
    tree.write("w/four", b"").unwrap();
    assert_eq!(told(&mut later), ["four".to_owned()].into());
    // From what another directory holds on.
    tree.clone_tree("w", "before").unwrap();
    tree.unlink("w/one").unwrap();
    tree.write("w/five", b"").unwrap();
    let mut since = tree.watch_since("w", "before").unwrap();
    assert_eq!(told(&mut since), ["one", "five"].map(String::from).into());
    tree.write("w/six", b"").unwrap();
    assert_eq!(told(&mut since), ["six".to_owned()].into());
    assert_eq!(since.wait(Duration::ZERO).unwrap().paths.len(), 0);
    assert_eq!(tree.watch_since("w", "none").err().map(|error| error.errno()), Some(libc::ENOENT));
    tree.remove_tree("before").unwrap();
    tree.remove_tree("w").unwrap();
}

/// Extended attributes, and whether the file is a symbolic link.
fn odd_xattrs() -> Vec<(Vec<u8>, Vec<u8>, bool)> {
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 6, none), entry(2, 4, 7), entry(4, 4, none), entry(16, 4, none), entry(32, 0, none)];
    let list = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    let long = [&b"user."[..], &[b'n'; 251]].concat();
    let plain: [(&[u8], &[u8]); 15] = [
        (b"user.a", b"1"),
        (b"user.empty", b""),
        (b"user.", b"1"),
        (b"trusted.a", b"1"),
        (b"security.capability", &capability),
        (b"security.capability", b"1"),
        (b"system.posix_acl_access", &list),
        (b"system.posix_acl_access", b"1"),
        (b"system.posix_acl_default", &list),
        (b"system.other", b"1"),
        (b"wrong", b"1"),
        (b"other.a", b"1"),
        (b"", b"1"),
        (&long, b"1"),
        (b"user.large", &[1; 65_537]),
    ];
    let links: [&[u8]; 3] = [b"user.a", b"trusted.a", b"system.posix_acl_access"];
    let of_files = plain.into_iter().map(|(name, value)| (name.to_vec(), value.to_vec(), false));
    of_files.chain(links.map(|name| (name.to_vec(), list.clone(), true))).collect()
}

/// Makes files with each of the attributes by the kernel, by the mount's server and in the image:
/// numbers must be equal, and what is there afterwards.
fn xattrs_of_new_files(mounted: &Path, [server, image]: [&Tree; 2], prefix: &str) {
    let mut differences = Vec::new();
    for (at, (name, value, is_link)) in odd_xattrs().into_iter().enumerate() {
        let of_kernel = mounted.join(format!("{prefix}-kernel-{at}"));
        match is_link {
            true => std::os::unix::fs::symlink("target", &of_kernel).unwrap(),
            false => std::fs::write(&of_kernel, "content").unwrap(),
        }
        let set = rustix::fs::lsetxattr(&of_kernel, &name[..], &value, rustix::fs::XattrFlags::empty());
        let kernel = set.map_or_else(|error| error.raw_os_error(), |()| 0);
        let mut xattrs = Xattrs::default();
        xattrs.push(&name, &value);
        let path = format!("{prefix}-tree-{at}");
        let file = match is_link {
            true => Write::symlink(&path, "target"),
            false => Write::file(&path, "content"),
        };
        let what = format!("{prefix}: {} of {} bytes", String::from_utf8_lossy(&name), value.len());
        let mut seen = Vec::new();
        for tree in [server, image] {
            let mut made = tree.write_many(&[file.with_xattrs(&xattrs)], WriteFlags::default());
            let errno = made.remove(0).map_or_else(|error| error.errno(), |()| 0);
            let found = tree.stat(&path, Links::Stay).map(|stat| (stat.mode, stat.size));
            // A file that is refused is not there.
            seen.push((errno, found.ok(), tree.xattrs(&path, Links::Stay).ok()));
        }
        let name = of_kernel.file_name().unwrap().as_encoded_bytes();
        let by_kernel = (kernel == 0).then(|| {
            let found = server.stat(name, Links::Stay).unwrap();
            ((found.mode, found.size), server.xattrs(name, Links::Stay).unwrap())
        });
        let (found, xattrs) = by_kernel.unzip();
        let expected = (kernel, found, xattrs);
        if seen.iter().any(|seen| *seen != expected) {
            differences.push(format!("{what}: {expected:?} and not {seen:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn new_files_get_the_extended_attributes_that_the_kernel_would_let_them_have() {
    let mounted = Mounted::new("");
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    format_image(&image, 64 << 20).unwrap();
    let options = ImageOptions { wait: LONG, ..ImageOptions::default() };
    let of_image = Tree::open(&image, &options).unwrap();
    let of_mount = Tree::open(mounted.path(), &options).unwrap();
    xattrs_of_new_files(mounted.path(), [&of_mount, &of_image], "root");
    for tree in [&of_mount, &of_image] {
        tree.make_directory("user", 0o777, false).unwrap();
        tree.set_mode("user", 0o777).unwrap();
        tree.set_mode("/", 0o755).unwrap();
    }
    of_image.close().unwrap();
    drop((of_image, of_mount));
    let all = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    all(directory.path(), 0o777);
    all(&image, 0o666);
    as_user(1000, 1000, &[], || {
        let of_image = Tree::open(format!("{}:/user", image.display()), &options).unwrap();
        let place = mounted.path().join("user");
        let of_mount = Tree::open(&place, &options).unwrap();
        xattrs_of_new_files(&place, [&of_mount, &of_image], "user");
        // A directory has to be listed and searched to be a tree.
        for (mode, errno) in [(0o700, 0), (0o500, 0), (0o300, libc::EACCES), (0o600, libc::EACCES)] {
            for tree in [&of_mount, &of_image] {
                tree.make_directory("own", 0o700, true).unwrap();
                tree.set_mode("own", mode).unwrap();
                let found = tree.subtree("own").map_or_else(|error| error.errno(), |_| 0);
                assert_eq!(found, errno, "{mode:o}");
            }
        }
        of_image.close().unwrap();
    });
    mounted.end();
}

#[test]
fn an_image_has_one_writer_or_several_readers() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    format_image(&image, 64 << 20).unwrap();
    assert_eq!(format_image(&image, 64 << 20).unwrap_err().errno(), libc::EEXIST);
    let now = ImageOptions { wait: Duration::ZERO, ..ImageOptions::default() };
    let reading = ImageOptions { read_only: true, ..now.clone() };
    // A process that another test begins has the lock of what is closed here as well, until it runs
    // its program.
    let patience = Duration::from_secs(60);
    let tree = Tree::open(&image, &ImageOptions { wait: patience, ..now.clone() }).unwrap();
    tree.write("a", b"1").unwrap();
    for options in [&now, &reading] {
        assert_eq!(Tree::open(&image, options).err().map(|error| error.errno()), Some(libc::EBUSY));
    }
    // Without a word, dropping it closes it.
    drop(tree);
    let patient = ImageOptions { wait: patience, ..reading };
    let [first, second] = [(), ()].map(|()| Tree::open(&image, &patient).unwrap());
    assert_eq!((first.read("a").unwrap(), second.read("a").unwrap()), (b"1".to_vec(), b"1".to_vec()));
    assert_eq!(first.write("b", b"").unwrap_err().errno(), libc::EROFS);
    // A walk goes on after its tree was dropped.
    let mut walk = first.walk("/", &Listing::default()).unwrap();
    drop(first);
    assert_eq!(walk.next().unwrap().map(|entry| entry.path).unwrap_or_default(), b"a");
}
