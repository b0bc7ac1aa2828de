//! Many files written by one call: as by single calls, in batches.

use crate::Bench;
use crate::paths::{assert_kind, bench, make};
use espalier_fs::{
    Attr, Content, Credentials, FileKind, Filter, FsErrorKind, Links, MAX_NEW_FILE_BYTES, NewAttributes,
    NewNode, Open, OwnerChange, PathCaller, Paths, RenameHow, Result, SetTime, TreeLimits, WriteHow,
    WriteRequest, XattrMode,
};
use std::collections::BTreeMap;

/// What a user asks for, owned.
#[derive(Clone, Debug)]
struct Wanted {
    path: String,
    what: What,
    mode: Option<u32>,
    owner: OwnerChange,
    times: (Option<i64>, Option<i64>),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum What {
    Data(Vec<u8>),
    Sparse(u64, Vec<(u64, Vec<u8>)>),
    Symlink(Vec<u8>),
    Node(NewNode),
}

fn plain(path: &str, data: &[u8]) -> Wanted {
    let (owner, what) = (OwnerChange::default(), What::Data(data.to_vec()));
    Wanted { path: path.into(), what, mode: None, owner, times: (None, None), xattrs: Vec::new() }
}

/// Writes files by one call; each batch with its files and result.
fn write_many(
    caller: &PathCaller,
    wanted: &[Wanted],
    how: WriteHow,
) -> Vec<(Vec<usize>, Option<FsErrorKind>)> {
    let pieces: Vec<Vec<(u64, &[u8])>> = wanted
        .iter()
        .map(|file| match &file.what {
            What::Sparse(_, pieces) => pieces.iter().map(|(at, data)| (*at, &data[..])).collect(),
            _ => Vec::new(),
        })
        .collect();
    let xattrs: Vec<Vec<(&[u8], &[u8])>> =
        wanted.iter().map(|file| file.xattrs.iter().map(|(n, v)| (&n[..], &v[..])).collect()).collect();
    let request = |at: usize| {
        let file = &wanted[at];
        let content = match &file.what {
            What::Data(data) => Content::Data(data),
            What::Sparse(size, _) => Content::Sparse { size: *size, pieces: &pieces[at] },
            What::Symlink(target) => Content::Symlink(target),
            What::Node(node) => Content::Node(*node),
        };
        let (atime, mtime) = file.times;
        let attributes =
            NewAttributes { mode: file.mode, owner: file.owner, atime, mtime, xattrs: &xattrs[at] };
        WriteRequest { at: (&file.path).into(), content, attributes }
    };
    let requests: Vec<_> = (0..wanted.len()).map(request).collect();
    let mut told = Vec::new();
    caller.write_many(&requests, how, &mut |batch| {
        told.push((batch.files.to_vec(), batch.result.err().map(|error| error.kind())));
        true
    });
    told
}

/// The same for one file by single calls.
fn write_one(root: &PathCaller, caller: &PathCaller, file: &Wanted, how: WriteHow) -> Result<()> {
    let (above, _) = file.path.rsplit_once('/').unwrap();
    if let Some(mode) = how.directories {
        for (at, _) in file.path.match_indices('/').skip(1) {
            match caller.mkdir(&file.path[..at], mode) {
                Err(error) if error.kind() != FsErrorKind::Exists => return Err(error),
                _ => {}
            }
        }
    }
    let aside = format!("{above}/.aside");
    let done = make_aside(root, caller, file, (&aside, how));
    if done.is_err() {
        let _ = root.unlink(&aside);
    }
    done
}

fn make_aside(
    root: &PathCaller,
    caller: &PathCaller,
    file: &Wanted,
    (aside, how): (&str, WriteHow),
) -> Result<()> {
    // The directory comes first.
    caller.stat(aside.trim_end_matches(".aside"), Links::Follow)?;
    match caller.stat(aside, Links::Stay) {
        Err(error) if error.kind() != FsErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let first = file.mode.map_or(0o666, |_| 0o600);
    let create = Open { exclusive: true, ..Open::create(first) };
    if !how.replace && root.stat(&file.path, Links::Stay).is_ok() {
        match &file.what {
            What::Symlink(target) => caller.symlink(target, aside)?,
            _ => drop(caller.open(aside, &create)?),
        }
        // It is there.
        return root.mkdir("/", 0);
    }
    match &file.what {
        What::Data(data) => drop(caller.open(aside, &create)?.write_at(0, data)?),
        What::Sparse(size, pieces) => {
            let open = caller.open(aside, &create)?;
            for (at, data) in pieces {
                open.write_at(*at, data)?;
            }
            open.truncate(*size)?;
        }
        What::Symlink(target) => caller.symlink(target, aside)?,
        What::Node(node) => caller.mknod(aside, *node, first)?,
    }
    if file.owner != OwnerChange::default() {
        caller.chown(aside, file.owner, Links::Stay)?;
    }
    let is_list = |name: &[u8]| name.starts_with(b"system.posix_acl");
    let set = |name: &[u8], value: &[u8]| caller.set_xattr(aside, name, value, XattrMode::Set, Links::Stay);
    for (name, value) in file.xattrs.iter().filter(|(name, _)| !is_list(name)) {
        set(name, value)?;
    }
    if let Some(mode) = file.mode.filter(|_| !matches!(file.what, What::Symlink(_))) {
        caller.chmod(aside, mode, Links::Stay)?;
    }
    for (name, value) in file.xattrs.iter().filter(|(name, _)| is_list(name)) {
        set(name, value)?;
    }
    // The owner may set times; it may be another user by now.
    let times = (file.times.0.map(SetTime::At), file.times.1.map(SetTime::At));
    root.set_times(aside, times, Links::Stay)?;
    caller.rename(aside, &file.path, RenameHow::Replace)
}

/// All that is seen of a tree.
fn seen(root: &PathCaller) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut paths = Vec::new();
    root.walk("/", &Filter::default(), &mut |entry| {
        paths.push(format!("/{}", String::from_utf8(entry.path.to_vec()).unwrap()));
        true
    })
    .unwrap();
    for path in paths {
        let attr = root.stat(&path, Links::Stay).unwrap();
        let Attr { kind, mode, uid, gid, size, blocks, nlink, rdev, .. } = attr;
        let content = match kind {
            FileKind::Regular => root.read(&path).unwrap(),
            FileKind::Symlink => root.read_link(&path).unwrap(),
            _ => Vec::new(),
        };
        let names = root.list_xattr(&path, Links::Stay).unwrap();
        let xattrs: Vec<_> = names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| (name.to_vec(), root.get_xattr(&path, name, Links::Stay).unwrap()))
            .collect();
        let line = format!(
            "{kind:?} {mode:o} {uid}:{gid} {size} {blocks} {nlink} {rdev} {xattrs:?} {}",
            content.iter().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)))
        );
        all.insert(path, line);
    }
    all
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// An access control list: entries of tag, permissions and id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn long_list() -> Vec<u8> {
    list(&[(1, 6, !0), (2, 6, 8), (4, 4, !0), (16, 6, !0), (32, 0, !0)])
}

const DIRECTORIES: [&str; 8] =
    ["/open", "/sticky", "/shared", "/own", "/closed", "/lists", "/open/new", "/sticky/a/b"];

/// Directories of all kinds, with files that are there before.
fn start(root: &PathCaller) {
    let dirs = [("/open", 0o777, 0), ("/sticky", 0o1777, 0), ("/shared", 0o2775, 7), ("/own", 0o700, 7)];
    for (path, mode, gid) in dirs.into_iter().chain([("/closed", 0o755, 0), ("/lists", 0o777, 0)]) {
        root.mkdir(path, 0o755).unwrap();
        root.chmod(path, mode, Links::Stay).unwrap();
        let uid = Some(if path == "/own" { 7 } else { 0 });
        root.chown(path, OwnerChange { uid, gid: Some(gid) }, Links::Stay).unwrap();
        for name in ["1", "2"] {
            let file = format!("{path}/{name}");
            root.open(&file, &Open::create(0o644)).unwrap().write_at(0, &[7; 9000]).unwrap();
            let uid = Some(if name == "1" { 7 } else { 0 });
            root.chown(&file, OwnerChange { uid, gid: None }, Links::Stay).unwrap();
        }
        root.mkdir(&format!("{path}/3"), 0o755).unwrap();
        root.link(&format!("{path}/1"), &format!("{path}/4"), Links::Stay).unwrap();
        root.link(&format!("{path}/1"), &format!("{path}/5"), Links::Stay).unwrap();
        root.symlink(b"1", &format!("{path}/6")).unwrap();
    }
    let (name, mode) = (b"system.posix_acl_default", XattrMode::Set);
    root.set_xattr("/lists", name, &long_list(), mode, Links::Stay).unwrap();
}

fn wanted(random: &mut Random, names: usize) -> Wanted {
    let path = format!("{}/{}", random.pick(&DIRECTORIES), random.below(names));
    let data = |random: &mut Random, most| vec![random.below(256) as u8; random.below(most)];
    let what = match random.below(12) {
        0 => What::Symlink(random.pick(&[&b"1"[..], b"/open/1", b"", &[b'x'; 5000]]).to_vec()),
        1 => What::Node(random.pick(&[
            NewNode::Fifo,
            NewNode::Socket,
            NewNode::Regular,
            NewNode::CharDevice(0),
            NewNode::CharDevice(0x103),
            NewNode::BlockDevice(0x801),
        ])),
        2 | 3 => {
            let at = [random.below(5000), 5000 + random.below(100_000)];
            let pieces: Vec<_> = at.map(|at| at as u64).map(|at| (at, data(random, 4000))).to_vec();
            let end = pieces.iter().map(|(at, data)| at + data.len() as u64).max().unwrap_or(0);
            let pieces = if pieces[0].0 + pieces[0].1.len() as u64 > pieces[1].0 {
                vec![pieces[1].clone()]
            } else {
                pieces
            };
            What::Sparse(end + random.pick(&[0, 1, 4096, 50_000]), pieces)
        }
        _ => {
            let most = random.pick(&[1, 100, 5000, 40_000]);
            What::Data(data(random, most))
        }
    };
    let mut xattrs = Vec::new();
    let names = [&b"user.a"[..], b"user.b", b"trusted.c", b"security.d", b"bad", b"security.capability"];
    while random.chance(4) && xattrs.len() < 3 {
        let length = random.pick(&[0, 10, 3000]);
        xattrs.push((random.pick(&names).to_vec(), vec![random.below(256) as u8; length]));
    }
    if random.chance(8) {
        let value = random.pick(&[long_list(), list(&[(1, 7, !0), (4, 5, !0), (32, 1, !0)]), vec![1]]);
        xattrs.push((b"system.posix_acl_access".to_vec(), value));
    }
    let id = |random: &mut Random| random.pick(&[None, None, None, Some(7), Some(8), Some(0)]);
    Wanted {
        path,
        what,
        mode: random.pick(&[
            None,
            Some(0o644),
            Some(0o400),
            Some(0),
            Some(0o6755),
            Some(0o2711),
            Some(0o1777),
        ]),
        owner: OwnerChange { uid: id(random), gid: id(random) },
        times: random.pick(&[(None, None), (Some(1), Some(-5_000_000_001)), (None, Some(4 << 40))]),
        xattrs,
    }
}

/// A file system, and callers: root, a user, and another one in the group of the first.
fn callers(bench: &Bench) -> [PathCaller; 3] {
    let paths = Paths::new(bench.fs.clone()).unwrap();
    let user = |uid, groups: &[u32]| Credentials { uid, gid: uid, groups: groups.to_vec() };
    [
        paths.caller(Credentials::default()),
        paths.caller(user(7, &[])).with_umask(0o027),
        paths.caller(user(8, &[7])).with_umask(0o022),
    ]
}

fn compare(seed: u64) -> [usize; 2] {
    let (one, other) = (Bench::new(0), Bench::new(0));
    let (by_many, by_one) = (callers(&one), callers(&other));
    start(&by_many[0]);
    start(&by_one[0]);
    let mut random = Random(seed);
    let mut fared = [0; 2];
    for round in 0..20 {
        let user = random.below(3);
        let files: Vec<_> = (0..1 + random.below(40)).map(|_| wanted(&mut random, 12)).collect();
        let directories = random.pick(&[None, Some(0o777), Some(0o750)]);
        let how = WriteHow { replace: !random.chance(4), directories };
        let told = write_many(&by_many[user], &files, how);
        let mut all: Vec<usize> = told.iter().flat_map(|(files, _)| files).copied().collect();
        for (batch, kind) in &told {
            for at in batch {
                let done = write_one(&by_one[0], &by_one[user], &files[*at], how);
                let expected = done.err().map(|error| error.kind());
                assert_eq!(*kind, expected, "seed {seed}, round {round}, user {user}: {:?}", files[*at]);
                fared[usize::from(kind.is_some())] += 1;
            }
        }
        all.sort_unstable();
        assert_eq!(all, (0..files.len()).collect::<Vec<_>>(), "each is told once");
        let last = told.iter().rev().find(|(_, kind)| kind.is_none()).and_then(|(batch, _)| batch.last());
        if let Some(file) = last.map(|at| &files[*at]) {
            let attr = by_many[0].stat(&file.path, Links::Stay).unwrap();
            let (atime, mtime) = file.times;
            assert_eq!((attr.atime, attr.mtime), (atime.unwrap_or(attr.atime), mtime.unwrap_or(attr.mtime)));
        }
        // This reads files.
        assert_eq!(seen(&by_many[0]), seen(&by_one[0]), "seed {seed}, round {round}");
    }
    one.check(0);
    other.check(0);
    let bench = one.crash();
    bench.check(0);
    fared
}

#[test]
fn many_files_fare_as_by_single_calls() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = match number("ESPALIER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESPALIER_SEEDS").unwrap_or(8),
    };
    let (count, mut fared) = (seeds.clone().count(), [0; 2]);
    for seed in seeds {
        let [done, refused] = compare(seed);
        fared = [fared[0] + done, fared[1] + refused];
    }
    assert!(fared.iter().all(|files| *files > 50 * count), "{fared:?} files in {count} runs");
}

#[test]
fn batches_are_of_one_directory_and_bounded() {
    let (bench, _paths, root, _) = bench();
    let mut files: Vec<_> = (0..600).map(|n| plain(&format!("/d{}/f{n:03}", n % 2), &[1; 100])).collect();
    files.push(plain("/big", &[2; 3 << 20]));
    let told = write_many(&root, &files, WriteHow::default());
    let sizes: Vec<_> = told.iter().map(|(files, kind)| (files.len(), *kind)).collect();
    assert_eq!(sizes, [1, 256, 44, 256, 44].map(|length| (length, None)));
    let large: Vec<_> = (0..5).map(|n| plain(&format!("/large/{n}"), &vec![n; 700 << 10])).collect();
    let told = write_many(&root, &large, WriteHow::default());
    assert_eq!(told.iter().map(|(files, _)| files.len()).collect::<Vec<_>>(), [2, 2, 1]);
    for file in files.iter().chain(&large) {
        let What::Data(data) = &file.what else { unreachable!() };
        assert_eq!(root.read(&file.path).unwrap(), *data);
    }
    // It ends when the caller says so.
    let requests: Vec<_> = (0..3)
        .map(|n| ["/e0/f", "/e1/f", "/e2/f"][n])
        .map(|path| WriteRequest {
            at: path.into(),
            content: Content::Data(b""),
            attributes: NewAttributes::default(),
        })
        .collect();
    let mut left = 2;
    root.write_many(&requests, WriteHow::default(), &mut |_| {
        left -= 1;
        left > 0
    });
    assert!(root.stat("/e1/f", Links::Stay).is_ok());
    assert_kind(root.stat("/e2", Links::Stay), FsErrorKind::NotFound);
    bench.check(0);
}

/// As a server gives them: by their names in directories that it has open.
#[test]
fn batches_of_open_directories_are_of_one_directory() {
    let (bench, _paths, root, _) = bench();
    let directories = ["/a", "/b", "/c"].map(|path| {
        make(&root, path);
        // Each time another one of the same directory.
        [(); 2].map(|()| root.open(path, &Open { directory: true, ..Open::default() }).unwrap())
    });
    let names: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
    let requests: Vec<_> = names
        .iter()
        .enumerate()
        .flat_map(|(at, name)| directories.iter().map(move |directory| (directory[at % 2].at(name), name)))
        .map(|(at, name)| WriteRequest {
            at,
            content: Content::Data(name.as_bytes()),
            attributes: NewAttributes::default(),
        })
        .collect();
    let mut sizes = Vec::new();
    root.write_many(&requests, WriteHow::default(), &mut |batch| {
        assert!(batch.result.is_ok());
        sizes.push(batch.files.len());
        true
    });
    assert_eq!(sizes, [100; 3]);
    for path in ["/a/f7", "/b/f99", "/c/f0"] {
        assert_eq!(root.read(path).unwrap(), path.as_bytes()[3..]);
    }
    bench.check(0);
}

#[test]
fn bad_requests_are_refused_alone() {
    let (bench, _paths, root, _) = bench();
    make(&root, "/d");
    root.symlink(b"loop", "/loop").unwrap();
    root.symlink(b"nowhere", "/broken").unwrap();
    let long = format!("/d/{}", "x".repeat(256));
    let cases = [
        ("", FsErrorKind::NotFound),
        ("/", FsErrorKind::IsDirectory),
        ("/d/", FsErrorKind::IsDirectory),
        ("/new/", FsErrorKind::IsDirectory),
        ("/d/..", FsErrorKind::IsDirectory),
        ("/d/.", FsErrorKind::IsDirectory),
        ("/d", FsErrorKind::IsDirectory),
        ("/d/a\0b", FsErrorKind::Invalid),
        (&long, FsErrorKind::NameTooLong),
        ("/loop/f", FsErrorKind::Loop),
        ("/broken/f", FsErrorKind::NotFound),
        ("/good/f", FsErrorKind::NotDirectory),
        ("/.snapshots", FsErrorKind::IsDirectory),
        ("/.snapshots/f", FsErrorKind::ReadOnly),
    ];
    let mut files = vec![plain("/good", b"good"), plain("/d/good", b"good")];
    files.extend(cases.iter().map(|(path, _)| plain(path, b"bad")));
    files.push(Wanted { what: What::Sparse(5, vec![(3, vec![1; 3])]), ..plain("/d/behind", b"") });
    files.push(Wanted {
        what: What::Sparse(9, vec![(3, vec![1; 3]), (5, vec![1])]),
        ..plain("/d/overlap", b"")
    });
    files.push(plain("/d/huge", &vec![1; MAX_NEW_FILE_BYTES as usize + 1]));
    let told = write_many(&root, &files, WriteHow::default());
    let kind = |at: usize| told.iter().find(|(files, _)| files.contains(&at)).unwrap().1;
    assert_eq!((kind(0), kind(1)), (None, None));
    for (at, (path, expected)) in cases.iter().enumerate() {
        assert_eq!(kind(at + 2), Some(*expected), "{path:?}");
    }
    let rest = cases.len() + 2;
    assert_eq!(
        [rest, rest + 1, rest + 2].map(kind),
        [FsErrorKind::Invalid, FsErrorKind::Invalid, FsErrorKind::TooBig].map(Some)
    );
    assert_eq!(
        seen(&root).keys().map(String::as_str).collect::<Vec<_>>().join(" "),
        "/broken /d /d/good /good /loop"
    );
    bench.check(0);
}

/// A user's own tree is handled without a walk as long as nothing foreign came to lie in it; files
/// that another user asks for in vain change nothing of that.
#[test]
fn files_that_may_not_be_made_leave_the_directory_as_it_is() {
    let (bench, paths, root, seven) = bench();
    root.chmod("/", 0o1777, Links::Follow).unwrap();
    seven.mkdir("/mine", 0o755).unwrap();
    seven.open("/mine/file", &Open::create(0o644)).unwrap();
    let before = root.stat("/mine", Links::Stay).unwrap();
    let eight = paths.caller(Credentials { uid: 8, gid: 8, groups: Vec::new() });
    let files = [plain("/mine/new", b"8"), plain("/mine/file", b"8")];
    let told = write_many(&eight, &files, WriteHow::default());
    let kinds: Vec<_> = told.iter().map(|(_, kind)| *kind).collect();
    assert_eq!(kinds, [Some(FsErrorKind::AccessDenied); 2]);
    assert_eq!(root.stat("/mine", Links::Stay).unwrap(), before);
    seven.clone_tree("/mine", "/copy").unwrap();
    assert_eq!(bench.fs.statistics().ownership_walks, 0);
    bench.check(0);
}

#[test]
fn what_is_open_and_other_names_stay() {
    let (bench, _paths, root, _) = bench();
    let names = ["/a", "/b", "/c"];
    write_many(&root, &[plain("/a", &[1; 70_000])], WriteHow::default());
    names[1..].iter().for_each(|name| root.link("/a", name, Links::Stay).unwrap());
    let open = root.open("/a", &Open::read()).unwrap();
    write_many(&root, &[plain("/a", b"x"), plain("/b", b"y"), plain("/z", b"z")], WriteHow::default());
    assert_eq!(root.stat("/c", Links::Stay).unwrap().nlink, 1);
    assert_eq!(root.read("/c").unwrap(), [1; 70_000]);
    write_many(&root, &[plain("/c", b"z")], WriteHow::default());
    let mut data = vec![0; 70_000];
    assert_eq!(open.read_at(0, &mut data).unwrap(), 70_000);
    assert_eq!(data, [1; 70_000]);
    assert_eq!(open.stat().unwrap().nlink, 0);
    // An open file without other names, too; its data lies where the new one's will.
    let other = root.open("/z", &Open::read()).unwrap();
    write_many(&root, &[plain("/z", &[3; 9000])], WriteHow::default());
    let mut data = [0; 2];
    assert_eq!((other.read_at(0, &mut data).unwrap(), data[0]), (1, b'z'));
    assert_eq!(root.read("/z").unwrap(), [3; 9000]);
    drop((open, other));
    bench.check(0);
}

#[test]
fn a_full_store_tells_which_batches_are_there() {
    let format = espalier_engine::FormatOptions::default();
    let bench = Bench::sized(24 << 20, 0, Default::default(), &format);
    let [root, ..] = callers(&bench);
    let mut random = Random(5);
    let files: Vec<_> = (0..3000)
        .map(|n| {
            let data: Vec<u8> = (0..20_000).map(|_| random.below(256) as u8).collect();
            plain(&format!("/d{:02}/f{n:04}", n / 100), &data)
        })
        .collect();
    let told = write_many(&root, &files, WriteHow::default());
    let is_full = |(_, kind): &&(Vec<usize>, Option<FsErrorKind>)| *kind == Some(FsErrorKind::NoSpace);
    assert!(told.iter().any(|(_, kind)| kind.is_none()), "something fits");
    assert!(told.iter().any(|batch| is_full(&batch)), "not everything fits");
    for (batch, kind) in &told {
        for file in batch.iter().map(|at| &files[*at]) {
            let found = root.stat(&file.path, Links::Stay);
            assert_eq!(found.map(|attr| attr.size).ok(), kind.is_none().then_some(20_000), "{}", file.path);
        }
    }
    bench.check(0);
    for n in 0..30 {
        let _ = root.remove_tree(&format!("/d{n:02}"));
    }
    bench.fs.syncfs().unwrap();
    assert_eq!(write_many(&root, &files[..100], WriteHow::default())[0].1, None);
    bench.check(0);
}

#[test]
fn a_limited_tree_refuses_what_has_no_room() {
    let (bench, _paths, root, _) = bench();
    make(&root, "/limited");
    let dir = root.stat("/limited", Links::Stay).unwrap().ino;
    let node = bench.fs.lookup(espalier_fs::NodeId::ROOT, b"limited").unwrap().node;
    let limits = TreeLimits { exclusive: Some(2 << 20), total: None };
    bench.fs.set_quota(node, Some(limits), &espalier_fs::Caller::default(), false).unwrap();
    let files: Vec<_> =
        (0..40).map(|n| plain(&format!("/limited/{}/f{n:02}", n / 10), &vec![n as u8; 150_000])).collect();
    let told = write_many(&root, &files, WriteHow::default());
    assert_eq!((told[0].0.len(), told[0].1), (7, None));
    assert_eq!(told.last().unwrap().1, Some(FsErrorKind::QuotaExceeded));
    let written = told.iter().filter(|(_, kind)| kind.is_none()).map(|(files, _)| files.len()).sum::<usize>();
    assert!((7..14).contains(&written), "{written} files of 150,000 bytes");
    for (batch, kind) in &told {
        for at in batch {
            assert_eq!(root.stat(&files[*at].path, Links::Stay).is_ok(), kind.is_none());
        }
    }
    assert_eq!(root.stat("/limited", Links::Stay).unwrap().ino, dir);
    bench.fs.forget(node, 1);
    bench.check(0);
}

#[test]
fn differences_come_by_path() {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/t/a");
    write_many(
        &root,
        &[plain("/t/f", b"1"), plain("/t/a/g", b"1"), plain("/t/a/h", b"1")],
        WriteHow::default(),
    );
    bench.fs.snapshot("before", false).unwrap();
    root.clone_tree("/t", "/u").unwrap();
    write_many(&root, &[plain("/u/a/g", b"2"), plain("/u/a/new", b"")], WriteHow::default());
    root.unlink("/u/f").unwrap();
    let differ = |old: &str| {
        let mut all = Vec::new();
        root.diff(old, "/u", &mut |change, path| {
            all.push(format!("{change:?} {}", String::from_utf8_lossy(path)));
            true
        })
        .unwrap();
        all
    };
    let expected = ["Removed f", "Changed a/g", "Added a/new"];
    assert_eq!(differ("/t"), expected);
    assert_eq!(differ("/.snapshots/before/t"), expected);
    let mut seen = 0;
    root.diff("/t", "/u", &mut |_, _| {
        seen += 1;
        false
    })
    .unwrap();
    assert_eq!(seen, 1);
    assert_kind(seven.diff("/t", "/u", &mut |_, _| true), FsErrorKind::Permission);
    assert_kind(root.diff("/t/f", "/u", &mut |_, _| true), FsErrorKind::NotDirectory);
    root.chown_tree("/t", OwnerChange { uid: Some(7), gid: None }).unwrap();
    root.chown_tree("/u", OwnerChange { uid: Some(7), gid: None }).unwrap();
    seven.diff("/t", "/u", &mut |_, _| true).unwrap();
    bench.check(0);
}
