//! Trees as the model knows them, random edits of them, and the model's three-way rule.

use crate::common::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    File(Vec<u8>, u32),
    Directory(u32),
    Link(PathBuf),
}

/// Texts that merge cell by cell: so many lines that are changed, each before lines that are not.
const CELLS: usize = 4;
/// The lines that stand between two cells.
const BETWEEN: [&str; 3] = ["a", "b", "c"];

/// The text with these cells.
fn text_of(cells: &[String]) -> Vec<u8> {
    let cell = |(number, value): (usize, &String)| {
        let between: String = BETWEEN.iter().map(|word| format!("{number} {word}\n")).collect();
        format!("cell {number}: {value}\n{between}")
    };
    cells.iter().enumerate().map(cell).collect::<String>().into_bytes()
}

/// A text that is new.
pub(crate) fn new_text() -> Vec<u8> {
    text_of(&vec!["new".to_owned(); CELLS])
}

/// The cells of a text; `None` if it is none of those that [`text_of`] makes.
fn cells_of(text: &[u8]) -> Option<Vec<String>> {
    let lines: Vec<&str> = std::str::from_utf8(text).ok()?.lines().collect();
    let values = lines.iter().step_by(1 + BETWEEN.len()).enumerate();
    let cells: Option<Vec<String>> = values
        .map(|(number, line)| Some(line.strip_prefix(&format!("cell {number}: "))?.to_owned()))
        .collect();
    cells.filter(|cells| cells.len() == CELLS && text_of(cells) == text)
}

/// How changes are merged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rule {
    /// Only what is at or below these paths; everything if there are none.
    pub(crate) paths: Vec<PathBuf>,
    /// Texts that both sides changed are merged.
    pub(crate) merges_texts: bool,
}

impl Rule {
    /// What of `theirs` counts: `base`, with what is wanted as they have it. Directories above it
    /// that are not there come along if they are `needed`.
    pub(crate) fn part(&self, base: &Tree, theirs: &Tree, needed: impl Fn(&Path) -> bool) -> Things {
        if self.paths.is_empty() {
            return theirs.things.clone();
        }
        let is_wanted = |path: &Path| self.paths.iter().any(|wanted| path.starts_with(wanted));
        let kept = base.things.iter().filter(|(path, _)| !is_wanted(path));
        let come = theirs.things.iter().filter(|(path, _)| is_wanted(path));
        let mut part: Things =
            kept.chain(come.clone()).map(|(path, thing)| (path.clone(), thing.clone())).collect();
        for (path, _) in come.filter(|(path, thing)| base.things.get(*path) != Some(thing)) {
            for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                if !matches!(part.get(above), Some(Thing::Directory(_))) && needed(above) {
                    part.insert(above.to_owned(), theirs.things[above].clone());
                }
            }
        }
        part
    }
}

/// What is at each path.
pub(crate) type Things = BTreeMap<PathBuf, Thing>;

/// A tree, without its top.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tree {
    /// What is at each path.
    pub(crate) things: Things,
    /// For each name of a file, the first of the names in the tree that lead to it.
    pub(crate) files: BTreeMap<PathBuf, PathBuf>,
}

impl Tree {
    /// What differs between two trees called `of`, in words that fit on a screen.
    pub(crate) fn differences(&self, other: &Self, of: &str) -> Vec<String> {
        let paths: BTreeSet<&PathBuf> = self.things.keys().chain(other.things.keys()).collect();
        let word = |thing: Option<&Thing>| match thing {
            Some(Thing::File(bytes, mode)) => {
                format!("{} bytes {:?} {mode:o}", bytes.len(), &bytes[..bytes.len().min(8)])
            }
            thing => format!("{thing:?}"),
        };
        let differ = |path: &&&PathBuf| {
            self.things.get(**path) != other.things.get(**path)
                || self.files.get(**path) != other.files.get(**path)
        };
        let shown = |path: &PathBuf| {
            let (one, two) = (word(self.things.get(path)), word(other.things.get(path)));
            let (first, second) = (self.files.get(path), other.files.get(path));
            format!("{of}: {}: {one} {first:?}, {two} {second:?}", path.display())
        };
        paths.iter().filter(differ).map(|path| shown(path)).collect()
    }

    /// True if a path is one of several names of a file.
    pub(crate) fn has_names(&self, path: &Path) -> bool {
        let file = self.files.get(path);
        file.is_some() && self.files.values().filter(|first| Some(*first) == file).count() > 1
    }
}

/// Everything in a tree, with its number.
fn walk(top: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let (mut all, mut waiting) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(top.join(&below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            let metadata = top.join(&path).symlink_metadata().unwrap();
            if metadata.is_dir() {
                waiting.push(path.clone());
            }
            all.push((path, metadata));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// True if something in a tree has this number.
pub(crate) fn has_number(top: &Path, number: u64) -> bool {
    walk(top).iter().any(|(_, metadata)| metadata.ino() == number)
}

/// Reads a tree.
pub(crate) fn read(top: &Path) -> Tree {
    let (mut tree, mut first) = (Tree::default(), BTreeMap::new());
    for (path, metadata) in walk(top) {
        let (full, mode) = (top.join(&path), metadata.mode() & 0o7777);
        let thing = if metadata.is_dir() {
            Thing::Directory(mode)
        } else if metadata.is_symlink() {
            Thing::Link(fs::read_link(&full).unwrap())
        } else {
            let first: &PathBuf = first.entry(metadata.ino()).or_insert_with(|| path.clone());
            tree.files.insert(path.clone(), first.clone());
            Thing::File(fs::read(&full).unwrap(), mode)
        };
        tree.things.insert(path, thing);
    }
    tree
}

/// Makes a file, or writes it anew.
pub(crate) fn put(path: &Path, bytes: &[u8], each: &mut dyn FnMut()) {
    let mut file = fs::File::create(path).unwrap();
    each();
    file.write_all(bytes).unwrap();
    each();
}

/// Removes what is at a path, and below.
fn remove(path: &Path, each: &mut dyn FnMut()) {
    if !path.symlink_metadata().unwrap().is_dir() {
        fs::remove_file(path).unwrap();
        return each();
    }
    for entry in fs::read_dir(path).unwrap() {
        remove(&entry.unwrap().path(), each);
    }
    fs::remove_dir(path).unwrap();
    each();
}

/// A random edit of a tree on disk. Files get names in the directory `outside`, and from there.
/// `each` is called after every system call that changed something.
pub(crate) fn edit(top: &Path, outside: &Path, random: &mut Random, each: &mut dyn FnMut()) {
    let tree = read(top).things;
    let paths: Vec<&PathBuf> = tree.keys().collect();
    let any = |random: &mut Random| paths.get(random.below(paths.len().max(1) as u64) as usize).copied();
    let parents: Vec<PathBuf> = std::iter::once(PathBuf::new())
        .chain(tree.iter().filter(|(_, thing)| matches!(thing, Thing::Directory(_))).map(|(p, _)| p.clone()))
        .collect();
    let parent = parents[random.below(parents.len() as u64) as usize].clone();
    let new = top.join(&parent).join(format!("n{}", random.below(12)));
    let there = new.symlink_metadata().is_ok();
    let out = outside.join(format!("o{}", random.below(4)));
    let is_file = |path: &PathBuf| matches!(tree[path], Thing::File(..));
    let files: Vec<&PathBuf> = paths.iter().copied().filter(|path| is_file(path)).collect();
    let file = files.get(random.below(files.len().max(1) as u64) as usize).copied();
    let cells = |path: &PathBuf| match &tree[path] {
        Thing::File(bytes, _) => cells_of(bytes),
        _ => None,
    };
    let texts: Vec<&PathBuf> = paths.iter().copied().filter(|path| cells(path).is_some()).collect();
    let text = texts.get(random.below(texts.len().max(1) as u64) as usize).copied();
    match (random.below(23), any(random)) {
        (0..=2, _) if !there => {
            let length = [0, 5, 4096, 20_000, 300_000][random.below(5) as usize];
            put(&new, &random.bytes(length), each);
        }
        (3, _) if !there => fs::create_dir(&new).unwrap(),
        (4, _) if !there => symlink(format!("to{}", random.below(3)), &new).unwrap(),
        (5, Some(path)) => remove(&top.join(path), each),
        (6, Some(path)) if !there && !parent.starts_with(path) => fs::rename(top.join(path), &new).unwrap(),
        (7, Some(path)) if !top.join(path).symlink_metadata().unwrap().is_symlink() => {
            let mode = [0o700, 0o755, 0o711, 0o750][random.below(4) as usize];
            fs::set_permissions(top.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        (8..=10, _) if !there && file.is_some() => fs::hard_link(top.join(file.unwrap()), &new).unwrap(),
        // A file takes the place of a name, as editors and git do it.
        (11, _) if file.is_some() => {
            put(&outside.join("new"), &random.bytes(7), each);
            fs::rename(outside.join("new"), top.join(file.unwrap())).unwrap();
        }
        (12, _) if file.is_some() => {
            if fs::remove_file(&out).is_ok() {
                each();
            }
            fs::hard_link(top.join(file.unwrap()), &out).unwrap();
        }
        // Two trees share no file, so an edit of one changes no other.
        (13, _) if !there && out.metadata().is_ok_and(|of| of.nlink() == 1 || has_number(top, of.ino())) => {
            fs::rename(&out, &new).unwrap();
        }
        (17, _) if !there => put(&new, &new_text(), each),
        (18..=22, _) if text.is_some() => {
            let mut values = text.and_then(cells).unwrap();
            values[random.below(CELLS as u64) as usize] = random.below(50).to_string();
            put(&top.join(text.unwrap()), &text_of(&values), each);
        }
        _ if file.is_some() => {
            put(&top.join(file.unwrap()), &random.bytes(1 + random.0 as usize % 9), each);
        }
        _ => {}
    }
    each();
}

/// Where what is at a path of a merged tree comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Ours,
    Theirs,
    /// Content and mode: true for what is theirs.
    Both(bool, bool),
    /// The text of both, and the mode: true if it is theirs.
    Merged(bool),
}

/// The merge by a rule of two trees that come from `base`, or the paths on which they contradict
/// each other. Unlike the library, it makes the result of every path first, and asks then whether
/// it is a tree.
pub(crate) fn merge(base: &Tree, ours: &Tree, theirs: &Tree, rule: &Rule) -> Result<Tree, BTreeSet<PathBuf>> {
    let is_new = |path: &Path| !base.things.contains_key(path) && !ours.things.contains_key(path);
    let part = rule.part(base, theirs, is_new);
    let all = [&base.things, &ours.things, &part];
    let paths: BTreeSet<&PathBuf> = all.iter().flat_map(|things| things.keys()).collect();
    let (mut merged, mut clashes) = (BTreeMap::new(), BTreeSet::new());
    for path in paths {
        match merge_thing(all.map(|things| things.get(path)), rule.merges_texts) {
            Ok((Some(thing), from)) => drop(merged.insert(path.clone(), (thing, from))),
            Ok((None, _)) => {}
            Err(()) => drop(clashes.insert(path.clone())),
        }
    }
    for path in merged.keys() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let is_fine = parent.is_none_or(|parent| {
            clashes.contains(parent) || matches!(merged.get(parent), Some((Thing::Directory(_), _)))
        });
        if !is_fine {
            clashes.insert(path.clone());
        }
    }
    if !clashes.is_empty() {
        return Err(clashes);
    }
    let files = merge_names(&merged, ours, theirs);
    Ok(Tree { things: merged.into_iter().map(|(path, (thing, _))| (path, thing)).collect(), files })
}

/// Which names of a merged tree lead to one file, as the first name of each.
fn merge_names(
    merged: &BTreeMap<PathBuf, (Thing, From)>,
    ours: &Tree,
    theirs: &Tree,
) -> BTreeMap<PathBuf, PathBuf> {
    // A file of theirs is one of ours if both have it at a name, and ours stays there.
    let mut shared: BTreeMap<&PathBuf, &PathBuf> = BTreeMap::new();
    for (path, file) in &theirs.files {
        if ours.things.get(path) == theirs.things.get(path)
            && matches!(merged.get(path), Some((_, From::Ours)))
        {
            shared.entry(file).or_insert(&ours.files[path]);
        }
    }
    let (mut first, mut files) = (BTreeMap::new(), BTreeMap::new());
    for (path, (thing, from)) in merged {
        if !matches!(thing, Thing::File(..)) {
            continue;
        }
        let (our, their) = (ours.files.get(path), theirs.files.get(path));
        let file = match (from, their.and_then(|their| shared.get(their))) {
            (From::Ours, _) => (our, None, None, None),
            (From::Theirs, Some(our)) => (Some(*our), None, None, None),
            (From::Theirs, None) => (None, their, None, None),
            (From::Both(content, mode), _) => (our, their, Some((*content, *mode)), None),
            // What each name was before may make texts of the same files differ.
            (From::Merged(mode), _) => (our, their, Some((false, *mode)), Some(thing)),
        };
        let first: &PathBuf = first.entry(file).or_insert_with(|| path.clone());
        files.insert(path.clone(), first.clone());
    }
    files
}

/// The text with what each side changed; `None` if both changed a cell, or one is no such text.
fn merge_text(texts: [&Vec<u8>; 3]) -> Option<Vec<u8>> {
    let [base, ours, theirs] = texts.map(|text| cells_of(text));
    let (base, ours, theirs) = (base?, ours?, theirs?);
    let cell = |number: usize| match (&base[number], &ours[number], &theirs[number]) {
        (base, ours, theirs) if ours == theirs || theirs == base => Some(ours.clone()),
        (base, ours, theirs) if ours == base => Some(theirs.clone()),
        _ => None,
    };
    Some(text_of(&(0..CELLS).map(cell).collect::<Option<Vec<_>>>()?))
}

fn merge_thing(
    [base, ours, theirs]: [Option<&Thing>; 3],
    merges_texts: bool,
) -> Result<(Option<Thing>, From), ()> {
    if ours == theirs || theirs == base {
        return Ok((ours.cloned(), From::Ours));
    }
    if ours == base {
        return Ok((theirs.cloned(), From::Theirs));
    }
    /// True if it is theirs.
    fn one<T: PartialEq>(base: &T, ours: &T, theirs: &T) -> Result<bool, ()> {
        match () {
            () if ours == theirs || theirs == base => Ok(false),
            () if ours == base => Ok(true),
            () => Err(()),
        }
    }
    match (base, ours, theirs) {
        (Some(Thing::File(base, old)), Some(Thing::File(ours, mode)), Some(Thing::File(theirs, other))) => {
            let Ok(content) = one(base, ours, theirs) else {
                let merged = merge_text([base, ours, theirs]).filter(|_| merges_texts).ok_or(())?;
                one(old, mode, other)?;
                // Where all agree it is theirs.
                let attributes = mode == old;
                let mode = if attributes { *other } else { *mode };
                return Ok((Some(Thing::File(merged, mode)), From::Merged(attributes)));
            };
            let attributes = one(old, mode, other)?;
            let bytes = if content { theirs } else { ours };
            let mode = if attributes { *other } else { *mode };
            let from = match (content, attributes) {
                (true, true) => From::Theirs,
                (false, false) => From::Ours,
                _ => From::Both(content, attributes),
            };
            Ok((Some(Thing::File(bytes.clone(), mode)), from))
        }
        (Some(Thing::Directory(old)), Some(Thing::Directory(mode)), Some(Thing::Directory(other))) => {
            let mode = if one(old, mode, other)? { *other } else { *mode };
            Ok((Some(Thing::Directory(mode)), From::Ours))
        }
        _ => Err(()),
    }
}
