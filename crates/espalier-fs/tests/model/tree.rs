//! A POSIX tree in memory, as plain as can be: what the file system is compared with.

use crate::renames::later_than;
use espalier_fs::FsErrorKind as Kind;
use espalier_fs::{Caller, Fallocate, FileFlags, FileKind, RenameMode, SetAttr, SetTime, XattrMode};
use std::collections::BTreeMap;

pub(crate) type Id = usize;
pub(crate) type Answer<T> = Result<T, Kind>;

/// A file or directory. It stays in the table for ever, so that what was removed can be looked at.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    pub(crate) names: u32,
    /// It was removed with a tree that it was in.
    pub(crate) lost: bool,
    /// Of a directory: it has a link area.
    area: bool,
    /// Of a file that had a second name: the directory whose link area it lives in.
    home: Option<Id>,
    pub(crate) data: Vec<u8>,
    /// How far blocks of it may be reserved.
    pub(crate) allocated: usize,
    pub(crate) target: Vec<u8>,
    pub(crate) entries: BTreeMap<Vec<u8>, Id>,
    pub(crate) parent: Id,
    /// It never had a name.
    pub(crate) linkable: bool,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) flags: FileFlags,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) btime: i64,
}

impl Object {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Refuses what must not be done to an object that is immutable.
    fn mutable(&self) -> Answer<()> {
        if self.flags.has(FileFlags::IMMUTABLE) { Err(Kind::Permission) } else { Ok(()) }
    }

    /// Refuses what must not be done to an object that is immutable or append-only.
    fn unprotected(&self) -> Answer<()> {
        if self.flags.protect() { Err(Kind::Permission) } else { Ok(()) }
    }

    pub(crate) fn nlink(&self, tree: &Tree) -> u32 {
        match (self.is_dir(), self.names) {
            (_, 0) => 0,
            (false, names) => names,
            (true, _) => 2 + self.entries.values().filter(|id| tree.objects[**id].is_dir()).count() as u32,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self.kind {
            FileKind::Directory => self.entries.len() as u64,
            FileKind::Symlink => self.target.len() as u64,
            _ => self.data.len() as u64,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) objects: Vec<Object>,
    pub(crate) now: i64,
    /// Link areas that became one with another.
    pub(crate) joined: usize,
    /// Link areas that took files of others.
    pub(crate) split: usize,
}

pub(crate) const ROOT: Id = 0;

fn object(kind: FileKind, mode: u32, uid: u32, gid: u32, parent: Id, now: i64) -> Object {
    Object {
        kind,
        mode,
        uid,
        gid,
        rdev: 0,
        names: 1,
        lost: false,
        area: false,
        home: None,
        data: Vec::new(),
        allocated: 0,
        target: Vec::new(),
        entries: BTreeMap::new(),
        parent,
        linkable: false,
        xattrs: BTreeMap::new(),
        flags: FileFlags::default(),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

impl Tree {
    pub(crate) fn new(now: i64) -> Self {
        let mut root = object(FileKind::Directory, 0o755, 0, 0, ROOT, now);
        root.area = true;
        Self { objects: vec![root], now, joined: 0, split: 0 }
    }

    fn dir(&self, id: Id) -> Answer<&Object> {
        if self.objects[id].is_dir() { Ok(&self.objects[id]) } else { Err(Kind::NotDirectory) }
    }

    fn check_name(name: &[u8]) -> Answer<()> {
        if name.len() > 255 { Err(Kind::NameTooLong) } else { Ok(()) }
    }

    pub(crate) fn lookup(&self, dir: Id, name: &[u8]) -> Answer<Id> {
        let object = self.dir(dir)?;
        Self::check_name(name)?;
        object.entries.get(name).copied().ok_or(Kind::NotFound)
    }

    #[allow(clippy::too_many_arguments, reason = "all that a new object is made of")]
    pub(crate) fn create(
        &mut self,
        dir: Id,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
        caller: &Caller,
    ) -> Answer<Id> {
        self.dir(dir)?;
        Self::check_name(name)?;
        if self.objects[dir].names == 0 {
            return Err(Kind::NotFound);
        }
        if self.objects[dir].entries.contains_key(name) {
            return Err(Kind::Exists);
        }
        self.objects[dir].mutable()?;
        let mut new = object(kind, mode & !caller.umask, caller.uid, caller.gid, dir, self.now);
        new.flags = self.inherited(dir, kind);
        if self.objects[dir].mode & 0o2000 != 0 {
            new.gid = self.objects[dir].gid;
            if kind == FileKind::Directory {
                new.mode |= 0o2000;
            }
        }
        if kind == FileKind::Symlink {
            new.mode = 0o777;
        }
        new.rdev = rdev;
        new.target = target.to_vec();
        self.objects.push(new);
        let id = self.objects.len() - 1;
        self.enter(dir, name, id);
        Ok(id)
    }

    /// A file without a name.
    pub(crate) fn tmpfile(&mut self, dir: Id, mode: u32, caller: &Caller) -> Answer<Id> {
        self.dir(dir)?;
        if self.objects[dir].names == 0 {
            return Err(Kind::NotFound);
        }
        self.objects[dir].mutable()?;
        let mut new = object(FileKind::Regular, mode & !caller.umask, caller.uid, caller.gid, dir, self.now);
        if self.objects[dir].mode & 0o2000 != 0 {
            new.gid = self.objects[dir].gid;
        }
        (new.names, new.linkable) = (0, true);
        new.flags = self.inherited(dir, FileKind::Regular);
        self.objects.push(new);
        Ok(self.objects.len() - 1)
    }

    fn inherited(&self, dir: Id, kind: FileKind) -> FileFlags {
        let all = FileFlags::SYNC.0 | FileFlags::NODUMP.0 | FileFlags::NOATIME.0;
        let more = if kind == FileKind::Directory { FileFlags::DIRSYNC.0 } else { 0 };
        FileFlags(self.objects[dir].flags.0 & (all | more))
    }

    pub(crate) fn set_flags(&mut self, id: Id, flags: FileFlags, caller: &Caller) -> Answer<()> {
        let now = self.now;
        let object = &mut self.objects[id];
        if flags.has(FileFlags::DIRSYNC) && !object.is_dir() {
            return Err(Kind::Unsupported);
        }
        let changes = FileFlags(object.flags.0 ^ flags.0);
        if caller.uid != 0 && (caller.uid != object.uid || changes.protect()) {
            return Err(Kind::Permission);
        }
        (object.flags, object.ctime) = (flags, now);
        Ok(())
    }

    fn enter(&mut self, dir: Id, name: &[u8], id: Id) {
        let now = self.now;
        let above = &mut self.objects[dir];
        above.entries.insert(name.to_vec(), id);
        (above.mtime, above.ctime) = (now, now);
    }

    fn leave(&mut self, dir: Id, name: &[u8]) {
        let now = self.now;
        let above = &mut self.objects[dir];
        above.entries.remove(name);
        (above.mtime, above.ctime) = (now, now);
    }

    fn drop_name(&mut self, id: Id) {
        let now = self.now;
        let object = &mut self.objects[id];
        object.names -= 1;
        object.ctime = now;
        if object.is_dir() {
            object.xattrs.clear();
        }
    }

    pub(crate) fn unlink(&mut self, dir: Id, name: &[u8]) -> Answer<()> {
        let id = self.lookup(dir, name)?;
        if self.objects[id].is_dir() {
            return Err(Kind::IsDirectory);
        }
        self.objects[id].unprotected()?;
        self.objects[dir].unprotected()?;
        self.leave(dir, name);
        self.drop_name(id);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, dir: Id, name: &[u8]) -> Answer<()> {
        let id = self.lookup(dir, name)?;
        if !self.objects[id].is_dir() {
            return Err(Kind::NotDirectory);
        }
        if !self.objects[id].entries.is_empty() {
            return Err(Kind::NotEmpty);
        }
        self.objects[id].unprotected()?;
        self.objects[dir].unprotected()?;
        self.leave(dir, name);
        self.drop_name(id);
        Ok(())
    }

    pub(crate) fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Answer<()> {
        self.dir(dir)?;
        if self.objects[id].is_dir() {
            return Err(Kind::Permission);
        }
        Self::check_name(name)?;
        if self.objects[dir].names == 0 {
            return Err(Kind::NotFound);
        }
        if self.objects[dir].entries.contains_key(name) {
            return Err(Kind::Exists);
        }
        let first = self.objects[id].linkable;
        if (self.objects[id].names == 0 && !first) || self.objects[id].lost {
            return Err(Kind::NotFound);
        }
        self.objects[id].unprotected()?;
        self.objects[dir].mutable()?;
        if first {
            self.objects[id].parent = dir;
        } else {
            let home = self.objects[id].home.unwrap_or(self.objects[id].parent);
            self.join(home, dir);
            self.objects[id].home = Some(self.serves(dir));
        }
        let now = self.now;
        self.objects[id].linkable = false;
        self.objects[id].names += 1;
        self.objects[id].ctime = now;
        self.enter(dir, name, id);
        Ok(())
    }

    /// The directory whose link area serves `dir`.
    fn serves(&self, mut dir: Id) -> Id {
        while !self.objects[dir].area {
            dir = self.objects[dir].parent;
        }
        dir
    }

    /// True if an area outside of `dir` serves a name below.
    fn needs_area(&self, dir: Id) -> bool {
        self.objects[dir].entries.values().any(|id| {
            let object = &self.objects[*id];
            object.home.is_some() || (object.is_dir() && !object.area && self.needs_area(*id))
        })
    }

    /// The files of link areas above `dir` that have names below, with the number of these.
    fn linked_below(&self, dir: Id, found: &mut BTreeMap<Id, u32>) {
        for id in self.objects[dir].entries.values() {
            let object = &self.objects[*id];
            if object.home.is_some() {
                *found.entry(*id).or_default() += 1;
            } else if object.is_dir() && !object.area {
                self.linked_below(*id, found);
            }
        }
    }

    /// Gives a directory a link area of its own; false if it can have none, because a file that
    /// would lie there has names elsewhere.
    pub(crate) fn split_area(&mut self, dir: Id) -> bool {
        if self.objects[dir].area {
            return true;
        }
        let mut found = BTreeMap::new();
        self.linked_below(dir, &mut found);
        let is_split = found.iter().all(|(id, names)| self.objects[*id].names == *names);
        if is_split {
            self.objects[dir].area = true;
            self.split += usize::from(!found.is_empty());
            found.keys().for_each(|id| self.objects[*id].home = Some(dir));
        }
        is_split
    }

    /// Has one link area serve two directories. Users cannot see that, except that a file of a
    /// removed tree keeps its link count.
    fn join(&mut self, one: Id, other: Id) {
        let mut common = one;
        while !self.is_below(other, common) {
            common = self.objects[common].parent;
        }
        let goal = self.serves(common);
        for dir in [one, other] {
            while self.serves(dir) != goal {
                let top = self.serves(dir);
                self.objects[top].area = false;
                self.joined += 1;
                let home = Some(self.serves(top));
                let files = self.objects.iter_mut().filter(|object| object.home == Some(top));
                files.for_each(|object| object.home = home);
            }
        }
    }

    /// True if an entry cannot move between directories before one link area serves both.
    fn crosses(&self, id: Id, from: Id, to: Id) -> bool {
        let object = &self.objects[id];
        self.serves(from) != self.serves(to)
            && match object.is_dir() {
                true => !object.area && self.needs_area(id),
                false => object.home.is_some() && object.names > 1,
            }
    }

    /// In memory of the model, an entry has moved.
    fn moved(&mut self, id: Id, from_area: Id, to: Id) {
        if from_area != self.serves(to) {
            self.objects[id].home = None;
        }
        self.objects[id].parent = to;
        self.objects[id].ctime = later_than(self.objects[id].ctime, self.now);
    }

    /// Everything below a directory, once.
    fn below(&self, dir: Id) -> std::collections::BTreeSet<Id> {
        let mut found = std::collections::BTreeSet::new();
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            for id in self.objects[dir].entries.values() {
                if found.insert(*id) && self.objects[*id].is_dir() {
                    waiting.push(*id);
                }
            }
        }
        found
    }

    /// Refuses what only root may do with what is not all the caller's own, and to change what
    /// flags forbid to change.
    fn check_own(&self, id: Id, caller: &Caller, changes: bool) -> Answer<()> {
        let mut all = self.below(id);
        all.insert(id);
        let own = |id: &Id| {
            let object = &self.objects[*id];
            let special = !object.is_dir() && object.mode & 0o2000 != 0 && object.gid != caller.gid;
            let plain = !special && !object.xattrs.contains_key(&b"security.capability"[..]);
            object.uid == caller.uid && plain && !object.flags.protect()
        };
        let allowed = match caller.uid {
            0 => !changes || !all.iter().any(|id| self.objects[*id].flags.protect()),
            _ => all.iter().all(own),
        };
        if allowed { Ok(()) } else { Err(Kind::Permission) }
    }

    pub(crate) fn clone_tree(&mut self, source: Id, dir: Id, name: &[u8], caller: &Caller) -> Answer<Id> {
        self.dir(dir)?;
        Self::check_name(name)?;
        if self.objects[dir].names == 0 {
            return Err(Kind::NotFound);
        }
        if self.objects[dir].entries.contains_key(name) {
            return Err(Kind::Exists);
        }
        if self.objects[source].names == 0 || self.objects[source].lost {
            return Err(Kind::NotFound);
        }
        self.check_own(source, caller, false)?;
        self.objects[dir].mutable()?;
        let needs_area = self.objects[source].is_dir() && self.needs_area(source);
        let keeps_area = self.objects[source].area && source != ROOT;
        let mut copies = BTreeMap::new();
        let copy = self.copy(source, dir, &mut copies);
        if self.objects[copy].is_dir() {
            self.objects[copy].area = keeps_area || needs_area;
        } else {
            self.objects[copy].names = 1;
            self.objects[copy].home = None;
        }
        for id in copies.values() {
            let home = self.objects[*id].home;
            self.objects[*id].home = home.map(|home| copies.get(&home).copied().unwrap_or(copy));
        }
        self.enter(dir, name, copy);
        Ok(copy)
    }

    /// A copy of something and all below; files with several names are copied once.
    fn copy(&mut self, id: Id, parent: Id, copies: &mut BTreeMap<Id, Id>) -> Id {
        if let Some(copy) = copies.get(&id) {
            self.objects[*copy].names += 1;
            return *copy;
        }
        let mut object = self.objects[id].clone();
        (object.parent, object.names) = (parent, 1);
        let entries = std::mem::take(&mut object.entries);
        self.objects.push(object);
        let copy = self.objects.len() - 1;
        copies.insert(id, copy);
        for (name, child) in entries {
            let child = self.copy(child, copy, copies);
            self.objects[copy].entries.insert(name, child);
        }
        copy
    }

    pub(crate) fn remove_tree(&mut self, dir: Id, name: &[u8], caller: &Caller) -> Answer<()> {
        let top = self.lookup(dir, name)?;
        if !self.objects[top].is_dir() {
            return Err(Kind::NotDirectory);
        }
        self.check_own(top, caller, true)?;
        self.objects[dir].unprotected()?;
        self.leave(dir, name);
        let mut waiting = vec![top];
        while let Some(dir) = waiting.pop() {
            for id in std::mem::take(&mut self.objects[dir].entries).into_values() {
                let outside = self.objects[id].home.is_some_and(|home| !self.is_below(home, top));
                if self.objects[id].is_dir() {
                    waiting.push(id);
                } else if outside {
                    self.drop_name(id);
                } else {
                    self.objects[id].lost = true;
                }
            }
            self.objects[dir].names = 0;
            self.objects[dir].lost = dir != top;
        }
        self.objects[top].xattrs.clear();
        self.objects[top].ctime = self.now;
        Ok(())
    }

    /// As the removal of a tree; an empty directory with the same attributes is left.
    pub(crate) fn empty_tree(&mut self, dir: Id, name: &[u8], caller: &Caller) -> Answer<()> {
        let before = self.lookup(dir, name).map(|top| self.objects[top].clone());
        self.remove_tree(dir, name, caller)?;
        let mut empty = before?;
        (empty.area, empty.home) = (false, None);
        empty.entries.clear();
        self.objects.push(empty);
        self.enter(dir, name, self.objects.len() - 1);
        Ok(())
    }

    pub(crate) fn change_tree(
        &mut self,
        id: Id,
        caller: &Caller,
        change: impl Fn(&mut Object, i64),
    ) -> Answer<()> {
        if self.objects[id].names == 0 || self.objects[id].lost {
            return Err(Kind::NotFound);
        }
        self.check_own(id, caller, true)?;
        let mut all = self.below(id);
        all.insert(id);
        all.into_iter().for_each(|id| change(&mut self.objects[id], self.now));
        Ok(())
    }

    fn is_below(&self, mut id: Id, above: Id) -> bool {
        loop {
            if id == above {
                return true;
            }
            if id == ROOT {
                return false;
            }
            id = self.objects[id].parent;
        }
    }

    pub(crate) fn rename(
        &mut self,
        from: Id,
        name: &[u8],
        to: Id,
        new: &[u8],
        mode: RenameMode,
    ) -> Answer<()> {
        self.dir(from)?;
        self.dir(to)?;
        Self::check_name(name)?;
        Self::check_name(new)?;
        if self.objects[from].names == 0 || self.objects[to].names == 0 {
            return Err(Kind::NotFound);
        }
        let source = self.lookup(from, name)?;
        let target = self.lookup(to, new).ok();
        match mode {
            RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. } if target.is_some() => {
                return Err(Kind::Exists);
            }
            RenameMode::Exchange if target.is_none() => return Err(Kind::NotFound),
            _ => {}
        }
        if target == Some(source) {
            return Ok(());
        }
        if self.objects[source].is_dir() && self.is_below(to, source) {
            return Err(Kind::Invalid);
        }
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                return self.exchange((from, name, source), (to, new, target));
            }
            match (self.objects[source].is_dir(), self.objects[target].is_dir()) {
                (true, false) => return Err(Kind::NotDirectory),
                (false, true) => return Err(Kind::IsDirectory),
                (true, true) if !self.objects[target].entries.is_empty() => return Err(Kind::NotEmpty),
                _ => {}
            }
        }
        self.check_flags((from, source), (to, target))?;
        if let Some(target) = target {
            self.leave(to, new);
            self.drop_name(target);
        }
        if self.crosses(source, from, to) {
            self.join(from, to);
        }
        self.leave(from, name);
        self.enter(to, new, source);
        self.moved(source, self.serves(from), to);
        if let RenameMode::Whiteout { uid, gid, .. } = mode {
            let caller = Caller { uid, gid, ..Caller::default() };
            self.create(from, name, FileKind::CharDevice, 0, 0, b"", &caller)?;
        }
        Ok(())
    }

    /// What flags forbid of a rename.
    fn check_flags(&self, (from, source): (Id, Id), (to, target): (Id, Option<Id>)) -> Answer<()> {
        self.objects[from].unprotected()?;
        self.objects[source].unprotected()?;
        let Some(target) = target else { return self.objects[to].mutable() };
        self.objects[to].unprotected()?;
        self.objects[target].unprotected()
    }

    fn exchange(&mut self, a: (Id, &[u8], Id), b: (Id, &[u8], Id)) -> Answer<()> {
        if self.objects[b.2].is_dir() && self.is_below(a.0, b.2) {
            return Err(Kind::Invalid);
        }
        self.check_flags((a.0, a.2), (b.0, Some(b.2)))?;
        if self.crosses(a.2, a.0, b.0) || self.crosses(b.2, b.0, a.0) {
            self.join(a.0, b.0);
        }
        let areas = (self.serves(a.0), self.serves(b.0));
        self.enter(a.0, a.1, b.2);
        self.enter(b.0, b.1, a.2);
        self.moved(a.2, areas.0, b.0);
        self.moved(b.2, areas.1, a.0);
        Ok(())
    }

    fn file(&mut self, id: Id) -> Answer<&mut Object> {
        match self.objects[id].kind {
            FileKind::Regular => Ok(&mut self.objects[id]),
            FileKind::Directory => Err(Kind::IsDirectory),
            _ => Err(Kind::Invalid),
        }
    }

    /// The rule of relatime.
    pub(crate) fn touch(&mut self, id: Id) {
        let now = self.now;
        let object = &mut self.objects[id];
        if object.flags.has(FileFlags::NOATIME) {
            return;
        }
        if object.atime <= object.mtime
            || object.atime <= object.ctime
            || now - object.atime >= 86_400_000_000_000
        {
            object.atime = now;
        }
    }

    pub(crate) fn read(&mut self, id: Id, offset: usize, len: usize) -> Answer<Vec<u8>> {
        let object = self.file(id)?;
        let from = offset.min(object.data.len());
        let data = object.data[from..(offset + len).min(object.data.len()).max(from)].to_vec();
        self.touch(id);
        Ok(data)
    }

    pub(crate) fn write(&mut self, id: Id, offset: usize, data: &[u8], kill: bool) -> Answer<usize> {
        let now = self.now;
        let object = self.file(id)?;
        if data.is_empty() {
            return Ok(0);
        }
        if offset < object.data.len() {
            object.unprotected()?
        } else {
            object.mutable()?
        }
        if object.data.len() < offset + data.len() {
            object.data.resize(offset + data.len(), 0);
        }
        object.data[offset..offset + data.len()].copy_from_slice(data);
        Self::changed(object, now);
        if kill {
            Self::kill(object);
        }
        Ok(data.len())
    }

    /// What goes with every change of data.
    fn changed(object: &mut Object, now: i64) {
        (object.mtime, object.ctime) = (now, now);
        object.xattrs.remove(&b"security.capability"[..]);
    }

    pub(crate) fn kill(object: &mut Object) {
        if object.is_dir() {
            return;
        }
        object.mode &= !0o4000;
        if object.mode & 0o010 != 0 {
            object.mode &= !0o2000;
        }
        object.xattrs.remove(&b"security.capability"[..]);
    }

    pub(crate) fn fallocate(&mut self, id: Id, offset: usize, len: usize, what: Fallocate) -> Answer<()> {
        let now = self.now;
        let object = self.file(id)?;
        let end = offset + len;
        if len == 0 {
            return Err(Kind::Invalid);
        }
        match what {
            Fallocate::Allocate { .. } => object.mutable()?,
            _ => object.unprotected()?,
        }
        let (zero, grow) = match what {
            Fallocate::Allocate { keep_size } => (false, !keep_size),
            Fallocate::PunchHole => (true, false),
            Fallocate::ZeroRange { keep_size } => (true, !keep_size),
        };
        if zero && offset < object.data.len() {
            let end = end.min(object.data.len());
            object.data[offset..end].fill(0);
        }
        if grow && end > object.data.len() {
            object.data.resize(end, 0);
        }
        if what != Fallocate::PunchHole {
            object.allocated = object.allocated.max(end);
        }
        Self::changed(object, now);
        Ok(())
    }

    pub(crate) fn setattr(&mut self, id: Id, set: &SetAttr) -> Answer<()> {
        let now = self.now;
        let time = |t: SetTime| if let SetTime::At(at) = t { at } else { now };
        let is_set = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let more = set.mode.or(set.uid).or(set.gid).is_some() || set.size.is_some();
        match more || is_set(set.atime) || is_set(set.mtime) {
            true => self.objects[id].unprotected()?,
            false => self.objects[id].mutable()?,
        }
        let object = if let Some(size) = set.size {
            let object = self.file(id)?;
            object.data.resize(size as usize, 0);
            object.mtime = now;
            object
        } else {
            &mut self.objects[id]
        };
        if set.kill_privileges || set.uid.is_some() || set.gid.is_some() {
            Self::kill(object);
        }
        object.uid = set.uid.unwrap_or(object.uid);
        object.gid = set.gid.unwrap_or(object.gid);
        object.mode = set.mode.unwrap_or(object.mode);
        object.atime = set.atime.map_or(object.atime, time);
        object.mtime = set.mtime.map_or(object.mtime, time);
        object.ctime = set.ctime.map_or(now, time);
        Ok(())
    }

    pub(crate) fn setxattr(
        &mut self,
        id: Id,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Answer<()> {
        let now = self.now;
        let object = &mut self.objects[id];
        object.unprotected()?;
        let exists = object.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if exists => return Err(Kind::Exists),
            XattrMode::Replace if !exists => return Err(Kind::NoData),
            _ => {}
        }
        match value {
            Some(value) => object.xattrs.insert(name.to_vec(), value.to_vec()),
            None => object.xattrs.remove(name),
        };
        object.ctime = now;
        Ok(())
    }

    /// Names in the order of a listing.
    pub(crate) fn listing(&self, id: Id) -> Vec<(Vec<u8>, Id)> {
        let mut all: Vec<_> = self.objects[id].entries.iter().map(|(n, id)| (n.clone(), *id)).collect();
        all.sort_by_key(|(name, id)| (self.objects[*id].is_dir(), name.clone()));
        all
    }
}
