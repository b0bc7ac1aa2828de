//! Calls on attributes, flags and extended attributes.

use crate::run::Run;
use crate::tree::Id;
use crate::world::Random;
use espalier_fs::{FileFlags, NodeId, SetAttr, SetTime, XattrMode};

impl Run {
    pub(crate) fn setattr(&mut self) {
        let (id, node) = self.any();
        let random = &mut self.random;
        let time = |random: &mut Random| match random.below(4) {
            0 => Some(SetTime::Now),
            1 => Some(SetTime::At(random.next() as i64 / 2)),
            _ => None,
        };
        let set = SetAttr {
            mode: random.chance(2).then(|| random.below(0o10000) as u32),
            uid: random.chance(4).then(|| random.below(5) as u32),
            gid: random.chance(4).then(|| random.below(5) as u32),
            size: None,
            atime: time(random),
            mtime: time(random),
            ctime: time(random),
            kill_privileges: random.chance(4),
        };
        self.set(id, node, &set);
    }

    /// Mostly takes protection away again, so that there is something to do.
    pub(crate) fn set_flags(&mut self) {
        let protected: Vec<_> =
            self.open.iter().filter(|(id, ..)| self.tree.objects[*id].flags.protect()).collect();
        let (id, node) = match protected[..] {
            [] => self.any(),
            [(id, node, _), ..] if self.random.chance(2) => (*id, *node),
            _ => self.any(),
        };
        let mut rest = self.random.next() as u32 & FileFlags::ALL.0 & !FileFlags::PROTECTION.0;
        if self.gives_up {
            // Such calls wait after their change, until it is durable.
            rest &= !(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0);
        }
        let protection = *self.random.pick(&[0, 0, 0x10, 0x20, 0x30]);
        let flags = FileFlags(if self.tree.objects[id].flags.protect() { rest } else { rest | protection });
        let caller = self.tree_caller();
        self.last = format!("flags {:#x} of {id} by {}", flags.0, caller.uid);
        let expected = self.tree.set_flags(id, flags, &caller);
        let got = self.ask(|fs| fs.set_flags(node, flags, &caller));
        self.same("set_flags", got, expected);
    }

    pub(crate) fn set(&mut self, id: Id, node: NodeId, set: &SetAttr) {
        self.last = format!("setattr {set:?} of {id}");
        let expected = self.tree.setattr(id, set);
        let got = self.ask(|fs| fs.setattr(node, set));
        self.same("setattr", got.as_ref().map(|_| ()).map_err(Clone::clone), expected);
        if let Ok(attr) = got {
            self.check_attr(id, &attr);
        }
    }

    pub(crate) fn xattr(&mut self) {
        let (id, node) = self.any();
        let names: [&[u8]; 5] =
            [b"user.a", b"user.\x01\x02", b"trusted.b", b"security.capability", b"user.long"];
        let name = *self.random.pick(&names);
        let mode =
            *self.random.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        if self.random.chance(4) {
            self.last = format!("removexattr {name:?} of {id}");
            let expected = self.tree.setxattr(id, name, None, XattrMode::Replace);
            let got = self.ask(|fs| fs.removexattr(node, name));
            self.same("removexattr", got, expected);
        } else {
            let lengths = if name == b"security.capability" { 4 } else { 6 };
            let len = *self.random.pick(&[0, 5, 500, 700, 5000, 65536][..lengths]);
            let value = vec![self.random.next() as u8; len];
            self.last = format!("setxattr {name:?} of {id} to {len} bytes, {mode:?}");
            let expected = self.tree.setxattr(id, name, Some(&value), mode);
            let got = self.ask(|fs| fs.setxattr(node, name, &value, mode, false));
            self.same("setxattr", got, expected);
        }
        self.compare_xattrs(id, node);
    }
}
