//! What changed since an instant: nothing is left out, whatever happens in between.

use crate::Bench;
use espalier_fs::{
    Caller, ChangedPaths, FsErrorKind, ModeChange, NewNode, NodeId, OpenOptions, RenameMode, SetAttr, SetTime,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const STEPS: usize = 250;

impl Bench {
    fn changed(&self, dir: NodeId, token: &str) -> ChangedPaths {
        self.fs.changed_paths(dir, token.as_bytes(), &ROOT).expect("changes")
    }

    /// A token of a directory that is accepted: the first one is not.
    fn token(&self, dir: NodeId) -> String {
        let first = self.changed(dir, "").token;
        std::iter::repeat_with(|| self.changed(dir, &first)).find(|c| c.token != first).expect("later").token
    }

    /// Paths with what users see of them: of directories kind and mode.
    fn seen(&self, dir: NodeId) -> BTreeMap<Vec<u8>, String> {
        let mut all = BTreeMap::new();
        let mut each = |entry: espalier_fs::TreeEntry<'_>| {
            let attr = entry.attr;
            let shown = match attr.kind {
                espalier_fs::FileKind::Directory => format!("dir {:o}", attr.mode),
                kind => format!("{kind:?} {:o} {} {} {}", attr.mode, attr.size, attr.mtime, attr.ctime),
            };
            all.insert(entry.path.to_vec(), shown);
            true
        };
        self.fs.list_tree(dir, &mut each).expect("list");
        all
    }
}

fn is_told(changes: &ChangedPaths, path: &[u8]) -> bool {
    changes.everything
        || changes.paths.iter().any(|told| told == path || (told.ends_with(b"/") && path.starts_with(told)))
        // A directory itself: with a slash behind its name.
        || changes.paths.contains(&[path, b"/"].concat())
}

#[test]
fn a_token_of_another_life_or_a_made_up_one_gives_everything() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let token = bench.token(src);
    assert!(!bench.changed(src, &token).everything);
    let other = bench.dir(NodeId::ROOT, "other");
    let long = "x".repeat(1000);
    let future = token.replace(token.rsplit(':').next().expect("number"), "18446744073709551615");
    for (dir, token) in
        [(other, &*token), (src, ""), (src, "espalier:1:"), (src, &long), (src, "espalier:1:0:0")]
    {
        assert!(bench.changed(dir, token).everything, "{token}");
    }
    // A number that was never given out tells nothing, as nothing comes after it.
    assert!(bench.changed(src, &future).paths.is_empty());
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    let src = bench.look(NodeId::ROOT, "src");
    assert!(bench.changed(src, &token).everything);
}

#[test]
fn a_file_that_came_and_went_is_told() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let kept = bench.file(src, "kept");
    let token = bench.token(src);
    bench.file(src, "fleeting");
    bench.fs.unlink(src, b"fleeting").expect("unlink");
    let changes = bench.changed(src, &token);
    assert!(is_told(&changes, b"fleeting") && !changes.everything, "{changes:?}");
    // A second later it is not told again, and a read is no change.
    let (_, last) = token.rsplit_once(':').expect("number");
    let later = token.replace(last, &u64::MAX.to_string());
    bench.fs.read(kept, 0, &mut [0; 10]).expect("read");
    assert_eq!(bench.changed(src, &later).paths, Vec::<Vec<u8>>::new());
}

#[test]
fn a_clone_goes_on_from_the_token_of_its_source() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let a = bench.file(src, "a");
    let before = bench.token(src);
    bench.fs.write(a, 0, b"text", false).expect("write");
    let copy = bench.clone_to(src, "copy");
    let changes = bench.changed(copy, &before);
    assert!(!changes.everything && is_told(&changes, b"a"), "{changes:?}");
    // What the source becomes afterwards does not concern the clone, and the other way round.
    bench.file(src, "of the source");
    bench.file(copy, "of the clone");
    let (in_source, in_clone) = (bench.changed(src, &before), bench.changed(copy, &before));
    assert!(is_told(&in_source, b"of the source") && !is_told(&in_source, b"of the clone"));
    assert!(is_told(&in_clone, b"of the clone") && !is_told(&in_clone, b"of the source"));
    // A token of the source from after the clone says nothing about the clone.
    let (_, last) = before.rsplit_once(':').expect("number");
    let after = before.replace(last, &(u64::MAX / 2).to_string());
    assert!(bench.changed(copy, &after).everything);
}

#[test]
fn a_change_through_another_name_is_told() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let (inside, outside) = (bench.dir(src, "d"), bench.dir(NodeId::ROOT, "outside"));
    let file = bench.file(inside, "a");
    bench.fs.link(file, src, b"b").expect("link");
    bench.fs.link(file, outside, b"c").expect("link");
    let token = bench.token(src);
    let (_, last) = token.rsplit_once(':').expect("number");
    let now = token.replace(last, &bench.env.monotonic().as_nanos().to_string());
    let by_outside = bench.look(outside, "c");
    bench.fs.write(by_outside, 0, b"text", false).expect("write");
    let changes = bench.changed(src, &now);
    let told: BTreeSet<_> = changes.paths.into_iter().collect();
    assert_eq!(told, BTreeSet::from([b"b".to_vec(), b"d/a".to_vec()]));
}

/// A clone with hard links has a link area of its own: found by random changes (seed 4).
#[test]
fn a_change_in_the_link_area_of_a_directory_below_is_told() {
    let bench = Bench::new(0);
    let (top, src) = (bench.dir(NodeId::ROOT, "top"), bench.dir(NodeId::ROOT, "src"));
    let file = bench.file(src, "a");
    bench.fs.link(file, src, b"b").expect("link");
    let copy = bench.fs.clone_tree(src, top, b"copy", &ROOT).expect("clone").node;
    let token = bench.token(top);
    let (_, last) = token.rsplit_once(':').expect("number");
    let now = token.replace(last, &bench.env.monotonic().as_nanos().to_string());
    bench.fs.write(bench.look(copy, "a"), 0, b"text", false).expect("write");
    let told: BTreeSet<_> = bench.changed(top, &now).paths.into_iter().collect();
    assert_eq!(told, BTreeSet::from([b"copy/a".to_vec(), b"copy/b".to_vec()]));
}

/// An empty directory moves by its entry alone: found by random changes (seed 4).
#[test]
fn an_empty_directory_that_moves_is_told_and_those_around_are_not() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let (a, b) = (bench.dir(src, "a"), bench.dir(src, "b"));
    bench.dir(a, "empty");
    let token = bench.token(src);
    let (_, last) = token.rsplit_once(':').expect("number");
    let now = token.replace(last, &bench.env.monotonic().as_nanos().to_string());
    bench.fs.rename(a, b"empty", b, b"moved", RenameMode::Replace).expect("rename");
    let told: BTreeSet<_> = bench.changed(src, &now).paths.into_iter().collect();
    assert_eq!(told, BTreeSet::from([b"a/empty".to_vec(), b"b/moved".to_vec()]));
}

#[test]
fn only_the_owner_of_all_is_told() {
    let bench = Bench::new(0);
    let user = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
    let own = bench.fs.mkdir(NodeId::ROOT, b"own", 0o755, &user).expect("mkdir").node;
    assert!(bench.fs.changed_paths(own, b"", &user).expect("changes").everything);
    let stranger = Caller { uid: 8, gid: 8, ..user };
    let refused = bench.fs.changed_paths(own, b"", &stranger).expect_err("another user");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    bench.file(own, "of root");
    let refused = bench.fs.changed_paths(own, b"", &user).expect_err("a foreign file");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    let file = bench.look(own, "of root");
    assert_eq!(
        bench.fs.changed_paths(file, b"", &ROOT).expect_err("a file").kind(),
        FsErrorKind::NotDirectory
    );
}

#[test]
fn git_s_own_directory_is_told_but_not_to_git_and_a_mode_of_a_directory_is() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let (git, sub) = (bench.dir(src, ".git"), bench.dir(src, "sub"));
    bench.file(git, "index");
    bench.file(sub, "a");
    let token = bench.token(src);
    let (_, last) = token.rsplit_once(':').expect("number");
    let now = token.replace(last, &bench.env.monotonic().as_nanos().to_string());
    bench.file(git, "index.lock");
    bench.fs.rename(git, b"index.lock", git, b"index", RenameMode::Replace).expect("rename");
    bench.fs.setattr(sub, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).expect("chmod");
    bench.file(src, ".gitignore");
    let changed = bench.changed(src, &now);
    let told = |changed: ChangedPaths| changed.paths.into_iter().collect::<BTreeSet<_>>();
    let outside = BTreeSet::from([&b".gitignore"[..], b"sub", b"sub/"].map(<[u8]>::to_vec));
    let inside = BTreeSet::from([&b".git/index"[..], b".git/index.lock"].map(<[u8]>::to_vec));
    assert_eq!(told(changed.clone()), &outside | &inside);
    assert_eq!(told(changed.without_git_directory()), outside);
    // The directory itself, as one that comes and goes.
    bench.fs.remove_tree(src, b".git", &ROOT).expect("remove");
    let changed = bench.changed(src, &now);
    assert!(is_told(&changed, b".git") && is_told(&changed, b".git/index"), "{changed:?}");
    assert_eq!(told(changed.without_git_directory()), outside);
}

/// What a random run knows: the directories that are asked about, with the paths that changed after
/// each token.
struct Run {
    bench: Bench,
    seed: u64,
    names: u64,
    /// By name in the root.
    tops: BTreeMap<String, Top>,
    /// What was done, for people.
    done: Vec<String>,
}

#[derive(Clone, Default)]
struct Top {
    /// Each with the paths that were touched since.
    tokens: Vec<(String, BTreeSet<Vec<u8>>)>,
}

impl Run {
    fn below(&mut self, limit: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % limit.max(1)
    }

    fn seen(&self) -> HashMap<String, BTreeMap<Vec<u8>, String>> {
        let node = |name: &str| self.bench.look(NodeId::ROOT, name);
        self.tops.keys().map(|name| (name.clone(), self.bench.seen(node(name)))).collect()
    }

    fn top(&mut self) -> String {
        let at = self.below(self.tops.len());
        self.tops.keys().nth(at).expect("a top").clone()
    }

    /// A random directory, or a random entry with the directory that it is in.
    fn directory(&mut self) -> NodeId {
        let top = self.top();
        let node = self.bench.look(NodeId::ROOT, &top);
        let all = self.bench.seen(node);
        let mut dirs: Vec<&Vec<u8>> =
            all.iter().filter(|(_, shown)| shown.starts_with("dir")).map(|(path, _)| path).collect();
        dirs.sort();
        match self.below(dirs.len() + 1) {
            0 => node,
            at => self.bench.look(node, std::str::from_utf8(dirs[at - 1]).expect("a name")),
        }
    }

    fn entry(&mut self) -> Option<(NodeId, String, NodeId)> {
        let top = self.top();
        let node = self.bench.look(NodeId::ROOT, &top);
        let all = self.bench.seen(node);
        let at = self.below(all.len());
        let path = String::from_utf8(all.keys().nth(at)?.clone()).expect("a name");
        let (dir, name) =
            path.rsplit_once('/').map_or((node, &*path), |(dir, name)| (self.bench.look(node, dir), name));
        Some((dir, name.to_owned(), self.bench.look(dir, name)))
    }

    fn name(&mut self) -> String {
        // Few names, so that what is gone comes back.
        format!("n{}", self.below(8))
    }

    /// Does something random; what fails changes nothing.
    fn act(&mut self) {
        let (dir, name) = (self.directory(), self.name());
        let fs = self.bench.fs.clone();
        let name = name.as_bytes();
        let what = self.below(16);
        self.done.push(format!("{what} in {dir:?} as {}", String::from_utf8_lossy(name)));
        match what {
            0..=2 => drop(fs.mknod(dir, name, NewNode::Regular, 0o644, &ROOT)),
            3 => drop(fs.mkdir(dir, name, 0o755, &ROOT)),
            4 => drop(fs.symlink(dir, name, b"target", &ROOT)),
            what => {
                let Some((parent, old, node)) = self.entry() else { return };
                self.done.push(format!("  {old} {node:?} of {parent:?}"));
                let old = old.as_bytes();
                match what {
                    5 | 6 => drop(fs.write(node, self.below(9000) as u64, b"data", false)),
                    7 => drop(fs.unlink(parent, old).or_else(|_| fs.rmdir(parent, old))),
                    8 => drop(fs.link(node, dir, name)),
                    9 => {
                        let mode = Some(0o600 | self.below(64) as u32);
                        drop(fs.setattr(node, &SetAttr { mode, ..SetAttr::default() }));
                    }
                    10 => drop(fs.rename(parent, old, dir, name, RenameMode::Replace)),
                    11 => drop(fs.rename(parent, old, dir, name, RenameMode::Exchange)),
                    12 => drop(fs.clone_tree(node, dir, name, &ROOT)),
                    13 => drop(fs.remove_tree(parent, old, &ROOT)),
                    14 => {
                        let change = ModeChange {
                            keep_directories: 0o7777,
                            keep_files: 0o700,
                            add_files: self.below(8) as u32,
                            add_directories: 0,
                            add_executables: 0,
                        };
                        drop(fs.chmod_tree(node, change, &ROOT));
                    }
                    _ => {
                        let mtime = Some(SetTime::At(self.below(99) as i64));
                        drop(fs.setattr(node, &SetAttr { mtime, ..SetAttr::default() }));
                    }
                }
            }
        }
    }

    /// Clones, moves, exchanges or removes one of the tops; the expectations go along.
    fn act_on_tops(&mut self) {
        let (one, other) = (self.top(), self.top());
        let fs = self.bench.fs.clone();
        self.names += 1;
        let new = format!("top{}", self.names);
        let what = self.below(4);
        self.done.push(format!("top {what}: {one} {other} {new}"));
        match what {
            0 if self.tops.len() < 5 => {
                let node = self.bench.look(NodeId::ROOT, &one);
                fs.clone_tree(node, NodeId::ROOT, new.as_bytes(), &ROOT).expect("clone");
                self.tops.insert(new, self.tops[&one].clone());
            }
            1 => {
                let (old, name) = (one.as_bytes(), new.as_bytes());
                fs.rename(NodeId::ROOT, old, NodeId::ROOT, name, RenameMode::NoReplace).expect("rename");
                let top = self.tops.remove(&one).expect("known");
                self.tops.insert(new, top);
            }
            2 if one != other => {
                let (a, b) = (one.as_bytes(), other.as_bytes());
                fs.rename(NodeId::ROOT, a, NodeId::ROOT, b, RenameMode::Exchange).expect("exchange");
                let (a, b) = (self.tops[&one].clone(), self.tops[&other].clone());
                self.tops.extend([(one, b), (other, a)]);
            }
            _ if self.tops.len() > 2 => {
                fs.remove_tree(NodeId::ROOT, one.as_bytes(), &ROOT).expect("remove");
                self.tops.remove(&one);
            }
            _ => {}
        }
    }

    /// Asks about every top, with all tokens, and takes a new one.
    fn ask(&mut self) {
        let names: Vec<String> = self.tops.keys().cloned().collect();
        for name in names {
            let node = self.bench.look(NodeId::ROOT, &name);
            let top = self.tops.get_mut(&name).expect("known");
            let mut last = String::new();
            for (token, touched) in &top.tokens {
                let changes = self.bench.changed(node, token);
                for path in touched {
                    let path_text = String::from_utf8_lossy(path);
                    let done = &self.done[self.done.len().saturating_sub(60)..];
                    assert!(
                        is_told(&changes, path),
                        "{name}/{path_text} since {token}: {changes:?}, {done:#?}"
                    );
                }
                last = changes.token;
            }
            if last.is_empty() {
                last = self.bench.changed(node, "").token;
            }
            // Tokens lag behind; one of this instant is what has to be right at the least.
            if let Some((start, number)) = last.rsplit_once(':')
                && number.parse::<u64>().is_ok_and(|number| number > 0)
                && top.tokens.iter().any(|(token, _)| token.starts_with(start))
            {
                last = format!("{start}:{}", self.bench.env.monotonic().as_nanos());
            }
            top.tokens.push((last, BTreeSet::new()));
            if top.tokens.len() > 6 {
                top.tokens.remove(2);
            }
        }
    }

    fn step(&mut self) {
        let before = self.seen();
        self.act();
        for (name, after) in self.seen() {
            let Some(old) = before.get(&name) else { continue };
            let paths = old.keys().chain(after.keys());
            let touched: BTreeSet<_> =
                paths.filter(|path| old.get(*path) != after.get(*path)).cloned().collect();
            for (_, since) in &mut self.tops.get_mut(&name).expect("known").tokens {
                since.extend(touched.iter().cloned());
            }
        }
        if self.below(12) == 0 {
            self.act_on_tops();
        }
        if self.below(5) == 0 {
            self.ask();
        }
    }
}

#[test]
fn nothing_that_changed_is_left_out() {
    let seeds: u64 = std::env::var("ESPALIER_SEEDS").map_or(3, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let bench = Bench::with(0, OpenOptions::default());
        let mut run = Run { bench, seed, names: 0, tops: BTreeMap::new(), done: Vec::new() };
        for name in ["one", "two"] {
            run.bench.dir(NodeId::ROOT, name);
            run.tops.insert(name.into(), Top::default());
        }
        for step in 0..STEPS {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.step())).is_err() {
                panic!("seed {seed}, step {step}");
            }
        }
    }
}
