//! Links and renames between what different link areas serve.

use crate::Bench;
use espalier_fs::{FileKind, NodeId, RenameMode, XattrMode};
use std::sync::atomic::{AtomicBool, Ordering};

/// More than 512 blocks.
const LARGE: usize = 513 * 4096 + 1;

/// What programs see of a file: number, names, data.
fn seen(bench: &Bench, node: NodeId) -> (u64, u32, Vec<u8>) {
    let attr = bench.fs.getattr(node).expect("attributes");
    (attr.ino, attr.nlink, bench.read(node))
}

impl Bench {
    /// /src/{a,a2,sub/{b,b2,large,large2},gone,gone2} with two names of each file.
    fn linked(&self) -> NodeId {
        let src = self.dir(NodeId::ROOT, "src");
        let sub = self.dir(src, "sub");
        for (dir, name, len) in [(src, "a", 9000), (sub, "b", 5), (sub, "large", LARGE), (src, "gone", 4096)]
        {
            let file = self.file(dir, name);
            self.fs.write(file, 0, &vec![name.as_bytes()[0]; len], false).expect("write");
            self.fs.setxattr(file, b"user.large", &vec![7; 5000], XattrMode::Set, false).expect("setxattr");
            self.fs.link(file, dir, format!("{name}2").as_bytes()).expect("link");
        }
        src
    }

    /// Everything below a directory: path, number, names, data.
    fn all(&self, dir: NodeId) -> Vec<(String, u64, u32, Vec<u8>)> {
        let mut found = Vec::new();
        self.fs
            .list_tree(dir, &mut |entry| {
                found.push((String::from_utf8_lossy(entry.path).into_owned(), entry.attr.ino));
                true
            })
            .expect("list");
        let full = |(path, ino): (String, u64)| {
            let node = self.look(dir, &path);
            let attr = self.fs.getattr(node).expect("attributes");
            assert_eq!(attr.ino, ino, "{path}");
            let data = if attr.kind == FileKind::Regular { self.read(node) } else { Vec::new() };
            if attr.kind == FileKind::Regular {
                assert_eq!(self.fs.getxattr(node, b"user.large").expect("getxattr"), [7; 5000], "{path}");
            }
            (path, ino, attr.nlink, data)
        };
        found.into_iter().map(full).collect()
    }
}

#[test]
fn a_file_of_a_clone_gets_a_name_outside() {
    let bench = Bench::new(0);
    let src = bench.linked();
    let copy = bench.clone_to(src, "copy");
    let (before, in_source) = (bench.all(copy), bench.all(src));
    let a = bench.look(copy, "a");
    let (ino, _, data) = seen(&bench, a);
    bench.fs.link(a, NodeId::ROOT, b"outside").expect("link");
    bench.check(0);
    assert_eq!(seen(&bench, a), (ino, 3, data.clone()));
    assert_eq!(bench.look(NodeId::ROOT, "outside"), a);
    let mut expected = before;
    expected.iter_mut().filter(|(_, number, ..)| *number == ino).for_each(|(_, _, names, _)| *names = 3);
    assert_eq!(bench.all(copy), expected);
    assert_eq!(bench.all(src), in_source);
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    bench.check(0);
    let copy = bench.look(NodeId::ROOT, "copy");
    assert_eq!(bench.all(copy), expected);
    assert_eq!(seen(&bench, bench.look(NodeId::ROOT, "outside")), (ino, 3, data));
}

#[test]
fn a_file_outside_gets_a_name_in_a_clone_with_links() {
    let bench = Bench::new(0);
    let src = bench.linked();
    let (one, two) = (bench.clone_to(src, "one"), bench.clone_to(src, "two"));
    let in_two = bench.all(two);
    // From clone to clone, with one name so far, and from the source.
    let new = bench.file(one, "new");
    bench.fs.write(new, 0, &[3; 5000], false).expect("write");
    let ino = bench.ino(new);
    bench.fs.link(new, two, b"new").expect("link");
    bench.fs.link(bench.look(src, "a"), one, b"a of src").expect("link");
    bench.check(0);
    assert_eq!(seen(&bench, bench.look(two, "new")), (ino, 2, vec![3; 5000]));
    assert_eq!(bench.fs.getattr(bench.look(one, "a of src")).expect("attr").nlink, 3);
    bench.fs.unlink(two, b"new").expect("unlink");
    assert_eq!(bench.all(two), in_two);
    bench.check(0);
}

#[test]
fn names_and_directories_with_names_move_between_areas() {
    let bench = Bench::new(0);
    let src = bench.linked();
    let (one, two) = (bench.clone_to(src, "one"), bench.clone_to(src, "two"));
    let inside = bench.clone_to(src, "inside");
    bench
        .fs
        .rename(NodeId::ROOT, b"inside", one, b"inside", RenameMode::Replace)
        .expect("its area comes along");
    bench.check(0);
    let b = bench.look(inside, "sub/b");
    let was = seen(&bench, b);
    // From the lower of two areas, one in the other, to a third.
    bench.fs.rename(bench.look(inside, "sub"), b"b", two, b"b", RenameMode::Replace).expect("rename");
    bench.check(0);
    assert_eq!((bench.look(two, "b"), seen(&bench, b)), (b, was.clone()));
    assert_eq!(bench.look(inside, "sub/b2"), b);
    let sub = bench.all(bench.look(inside, "sub"));
    bench.fs.rename(inside, b"sub", src, b"sub of inside", RenameMode::Replace).expect("rename");
    assert_eq!(bench.all(bench.look(src, "sub of inside")), sub);
    bench.check(0);
    // Each with what belongs to other names at home.
    let three = bench.clone_to(src, "three");
    let (here, there) = (bench.look(src, "a"), bench.look(three, "sub"));
    let (old, below) = (seen(&bench, here), bench.all(there));
    bench.fs.rename(src, b"a", three, b"sub", RenameMode::Exchange).expect("exchange");
    assert_eq!((bench.look(three, "sub"), seen(&bench, here)), (here, old));
    assert_eq!((bench.look(src, "a"), bench.all(there)), (there, below));
    bench.check(0);
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    assert_eq!(seen(&bench, bench.look(NodeId::ROOT, "two/b")), was);
    bench.check(0);
}

#[test]
fn what_is_in_use_stays_in_use_when_areas_become_one() {
    let bench = Bench::correcting(0);
    let src = bench.linked();
    let copy = bench.clone_to(src, "copy");
    // Unlinked, unlinked and counted anew, open under both names.
    let gone = bench.look(copy, "gone");
    bench.fs.unlink(copy, b"gone").expect("unlink");
    bench.fs.unlink(copy, b"gone2").expect("unlink");
    let large = bench.look(copy, "sub/large");
    let was = seen(&bench, large);
    let mut names = Vec::new();
    let mut at = 0;
    bench
        .fs
        .readdirplus(copy, 0, &mut |entry| {
            at = entry.cookie;
            names.push(entry.name.to_vec());
            names.len() < 4
        })
        .expect("readdirplus");
    bench.fs.link(bench.look(copy, "a"), NodeId::ROOT, b"outside").expect("link");
    bench.check(1);
    assert_eq!((seen(&bench, large), bench.look(copy, "sub/large2")), (was, large));
    assert_eq!(bench.read(gone), vec![b'g'; 4096]);
    bench.fs.write(gone, 4096, b"more", false).expect("write");
    bench.fs.write(large, 0, b"new", false).expect("write");
    assert_eq!(&bench.read(bench.look(copy, "sub/large2"))[..4], b"newl");
    // The listing goes on where it was.
    bench
        .fs
        .readdirplus(copy, at, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .expect("readdirplus");
    names.sort();
    names.dedup();
    assert_eq!(names, [&b"."[..], b"..", b"a", b"a2", b"sub"]);
    bench.fs.unlink(bench.look(copy, "sub"), b"large").expect("unlink");
    bench.fs.unlink(bench.look(copy, "sub"), b"large2").expect("unlink");
    assert_eq!(bench.fs.getattr(large).expect("attr").nlink, 0);
    bench.check(2);
    bench.fs.forget(gone, 10);
    bench.fs.forget(large, 20);
    bench.check(0);
    bench.fs.background_tick().expect("tick");
    bench.check(0);
}

#[test]
fn an_area_that_was_not_settled_leaves_its_rests_behind() {
    let bench = Bench::correcting(0);
    let src = bench.linked();
    let sub = bench.look(src, "sub");
    for n in 0..50 {
        let file = bench.file(src, &format!("f{n}"));
        bench.fs.link(file, src, format!("g{n}").as_bytes()).expect("link");
    }
    // The copies hold a hundred names of the source, and show four.
    let (one, two) = (bench.clone_to(sub, "one"), bench.clone_to(sub, "two"));
    let before = bench.all(two);
    bench.fs.rename(one, b"b", two, b"from one", RenameMode::Replace).expect("rename");
    bench.fs.background_tick().expect("tick");
    bench.check(0);
    bench.fs.unlink(two, b"from one").expect("unlink");
    assert_eq!(bench.all(two), before);
    assert_eq!(bench.fs.getattr(bench.look(one, "b2")).expect("attr").nlink, 1);
    bench.check(0);
}

#[test]
fn linked_files_stay_readable_while_areas_become_one() {
    let bench = Bench::new(2);
    let src = bench.dir(NodeId::ROOT, "src");
    let content: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
    for name in ["a", "b", "c"] {
        let file = bench.file(src, name);
        bench.fs.write(file, 0, &content, false).expect("write");
        bench.fs.link(file, src, format!("{name}2").as_bytes()).expect("link");
    }
    for round in 0..40 {
        let copy = bench.clone_to(src, &format!("copy{round}"));
        let ino = bench.ino(bench.look(copy, "b"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = bench.look(copy, "a");
                while !done.load(Ordering::SeqCst) {
                    assert!(bench.read(file) == content, "round {round}: a file reads as something else");
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    for name in [&b"b"[..], b"b2"] {
                        let entry = bench.fs.lookup(copy, name).expect("lookup");
                        assert_eq!((entry.attr.ino, entry.attr.nlink), (ino, 2), "round {round}");
                        bench.fs.forget(entry.node, 1);
                    }
                    let mut seen = Vec::new();
                    bench
                        .fs
                        .readdirplus(copy, 2, &mut |entry| {
                            seen.extend(entry.entry.map(|entry| (entry.node, entry.attr.size)));
                            true
                        })
                        .expect("list");
                    seen.iter().for_each(|(node, _)| bench.fs.forget(*node, 1));
                    assert!(seen.len() >= 6 && seen.iter().all(|(_, size)| *size == 30_000), "{seen:?}");
                }
            });
            let outside = format!("outside{round}");
            bench.fs.link(bench.look(copy, "c"), NodeId::ROOT, outside.as_bytes()).expect("link");
            done.store(true, Ordering::SeqCst);
        });
        bench.check(0);
    }
}

#[test]
fn copied_areas_are_corrected_beside_other_calls() {
    let bench = Bench::correcting(2);
    let src = bench.dir(NodeId::ROOT, "src");
    for n in 0..60 {
        let file = bench.file(src, &format!("f{n}"));
        bench.fs.write(file, 0, format!("content {n}").as_bytes(), false).expect("write");
        let dir = if n % 3 == 0 { NodeId::ROOT } else { src };
        bench.fs.link(file, dir, format!("g{n}").as_bytes()).expect("link");
    }
    for round in 0..20 {
        let copy = bench.clone_to(src, &format!("copy{round}"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    bench.fs.background_tick().expect("tick");
                }
            });
            for n in 0..60 {
                let (f, g) = (format!("f{n}"), format!("g{n}"));
                let file = bench.look(copy, &f);
                let names = if n % 3 == 0 { 1 } else { 2 };
                assert_eq!(bench.fs.getattr(file).expect("attributes").nlink, names, "round {round}, {f}");
                match n % 4 {
                    0 => drop(bench.fs.link(file, copy, b"new").map(|_| bench.fs.unlink(copy, b"new"))),
                    1 if names == 2 => bench.fs.unlink(copy, g.as_bytes()).expect("unlink"),
                    2 => drop(bench.fs.link(file, copy, format!("h{n}").as_bytes()).expect("link")),
                    _ => bench
                        .fs
                        .rename(copy, f.as_bytes(), copy, b"moved", RenameMode::Replace)
                        .expect("rename"),
                }
                bench.fs.forget(file, 1);
            }
            done.store(true, Ordering::SeqCst);
        });
        bench.check(0);
        for n in (2..60).step_by(4) {
            let names = if n % 3 == 0 { 2 } else { 3 };
            let file = bench.look(copy, &format!("h{n}"));
            assert_eq!(bench.fs.getattr(file).expect("attributes").nlink, names, "round {round}, h{n}");
            assert_eq!(bench.read(file), format!("content {n}").as_bytes());
        }
        bench.fs.background_tick().expect("tick");
        bench.check(0);
    }
}
