//! `espalier chown` and `espalier chmod`: owners and modes of whole trees, in one step each.

use crate::args::{Chmod, Chown};
use crate::control;
use crate::place::{self, CALLER, Inside};
use crate::ui::say;
use crate::watchers;
use anyhow::{Context, Result, anyhow, bail};
use espalier_fs::{FileSystem, ModeChange, NodeId, OwnerChange};
use espalier_fuse::control::{CHMOD_TREE, CHOWN_TREE};
use serde_json::json;
use std::path::Path;

/// Runs `espalier chown`.
pub(crate) fn chown(args: &Chown) -> Result<()> {
    need_recursive(args.recursive, "chown")?;
    let (uid, gid) = parse_owner(&args.owner)?;
    let argument = [uid.unwrap_or(u32::MAX).to_ne_bytes(), gid.unwrap_or(u32::MAX).to_ne_bytes()].concat();
    for path in &args.paths {
        match place::inside(path) {
            Some(inside) => {
                change_inside(&inside, |fs, node| fs.chown_tree(node, OwnerChange { uid, gid }, &CALLER))?
            }
            None => change_mounted(path, CHOWN_TREE, argument.clone())?,
        }
        if args.json {
            say!("{}", json!({"path": path.to_string_lossy(), "uid": uid, "gid": gid}));
        }
    }
    Ok(())
}

/// Runs `espalier chmod`.
pub(crate) fn chmod(args: &Chmod) -> Result<()> {
    need_recursive(args.recursive, "chmod")?;
    let change = parse_mode(&args.mode)?;
    let argument: Vec<u8> = change.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    let [keep_directories, add_directories, keep_files, add_files, add_executables] = change;
    let bits = ModeChange { keep_directories, add_directories, keep_files, add_files, add_executables };
    for path in &args.paths {
        match place::inside(path) {
            Some(inside) => change_inside(&inside, |fs, node| fs.chmod_tree(node, bits, &CALLER))?,
            None => change_mounted(path, CHMOD_TREE, argument.clone())?,
        }
        if args.json {
            say!("{}", json!({"path": path.to_string_lossy(), "mode": args.mode}));
        }
    }
    Ok(())
}

/// Changes a tree of a mount, by an ioctl.
fn change_mounted(path: &Path, command: u32, mut argument: Vec<u8>) -> Result<()> {
    let open = control::open(path)?;
    control::ask(&open, command, &mut argument).map_err(|error| control::explain(error, path))?;
    watchers::announce_attributes(&open);
    Ok(())
}

/// Changes a tree of an image that is not mounted.
fn change_inside(
    inside: &Inside,
    change: impl FnOnce(&FileSystem, NodeId) -> espalier_fs::Result<()>,
) -> Result<()> {
    place::open(&inside.image, false, |image| {
        let found = image.find_live(inside)?;
        change(&image.fs, found.node).map_err(|error| place::explain(error, inside))
    })
}

/// Without -R the ordinary commands do the same.
fn need_recursive(recursive: bool, command: &str) -> Result<()> {
    if !recursive {
        bail!("this is for whole trees: say -R (for a single file use {command}(1))");
    }
    Ok(())
}

/// `OWNER`, `OWNER:GROUP`, `:GROUP`; names or numbers.
fn parse_owner(text: &str) -> Result<(Option<u32>, Option<u32>)> {
    let (owner, group) = text.split_once(':').map_or((text, ""), |(owner, group)| (owner, group));
    let id = |name: &str, table: &str| match name {
        "" => Ok(None),
        _ => find_id(name, Path::new(table)).map(Some),
    };
    let both = (id(owner, "/etc/passwd")?, id(group, "/etc/group")?);
    if both == (None, None) {
        bail!("'{text}' names neither owner nor group");
    }
    Ok(both)
}

/// The number of a user or group: the third field of its line in a table.
pub(crate) fn find_id(name: &str, table: &Path) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return if number == u32::MAX { Err(anyhow!("{number} is no id")) } else { Ok(number) };
    }
    let text =
        std::fs::read_to_string(table).with_context(|| format!("{} cannot be read", table.display()))?;
    let line = text.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name);
    let number = line.and_then(|fields| fields.get(2).and_then(|n| n.parse().ok()));
    number.ok_or_else(|| anyhow!("{} has no '{name}'; give the number", table.display()))
}

/// Bits that directories keep and get, that other files keep and get, and that executables get.
type Change = [u32; 5];

/// An octal mode, or clauses like `u+rwX,go-w,a=r` as chmod(1) has them.
fn parse_mode(text: &str) -> Result<Change> {
    if text.bytes().all(|b| (b'0'..=b'7').contains(&b)) && !text.is_empty() {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
        let mode = mode.ok_or_else(|| anyhow!("'{text}' is no mode"))?;
        // As with chmod(1), directories keep set-id bits that are not named with five digits.
        let keep = if text.len() >= 5 { 0 } else { 0o6000 };
        return Ok([keep, mode, 0, mode, 0]);
    }
    let mut change = [0o7777, 0, 0o7777, 0, 0];
    for clause in text.split(',') {
        apply(clause, &mut change).ok_or_else(|| {
            anyhow!("'{clause}' is no change of modes; write 755, or u+rwX, go-w, a=r (copies like g=u are not possible)")
        })?;
    }
    Ok(change)
}

fn apply(clause: &str, change: &mut Change) -> Option<()> {
    let at = clause.find(['+', '-', '='])?;
    let (who, rest) = clause.split_at(at);
    let mut classes = 0;
    for class in who.chars() {
        classes |= match class {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if who.is_empty() {
        classes = 0o7777;
    }
    let (operator, permissions) = rest.split_at(1);
    let (mut bits, mut executables) = (0, false);
    for permission in permissions.chars() {
        bits |= match permission {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            's' => 0o6000,
            't' => 0o1000,
            'X' => {
                executables = true;
                0
            }
            _ => return None,
        };
    }
    let bits = bits & classes;
    let execute = if executables { 0o111 & classes } else { 0 };
    let [keep_directories, add_directories, keep_files, add_files, add_executables] = change;
    match operator {
        "+" => {
            *add_directories |= bits | execute;
            *add_files |= bits;
            *add_executables |= execute & !*add_files;
        }
        // What is taken away can be neither kept nor have been added.
        "-" => {
            for mask in [keep_directories, add_directories, keep_files, add_files, add_executables] {
                *mask &= !(bits | execute);
            }
        }
        _ => {
            let cleared = classes & 0o777 | bits;
            *keep_directories &= !cleared;
            *keep_files &= !cleared;
            *add_directories = *add_directories & !cleared | bits | execute;
            *add_files = *add_files & !cleared | bits;
            *add_executables = *add_executables & !cleared | execute;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of the mode of a directory and of a file.
    fn changed(text: &str, directory: u32, file: u32) -> (u32, u32) {
        let [keep_directories, add_directories, keep_files, add_files, add_executables] =
            parse_mode(text).unwrap();
        let executable = if file & 0o111 != 0 { add_executables } else { 0 };
        (directory & keep_directories | add_directories, file & keep_files | add_files | executable)
    }

    #[test]
    fn modes_change_as_with_chmod() {
        for (text, expected) in [
            ("755", (0o2755, 0o755)),
            ("00755", (0o755, 0o755)),
            ("u+w", (0o2770, 0o640)),
            ("a+X", (0o2771, 0o640)),
            ("go-rwx", (0o2700, 0o600)),
            ("u=rwX,go=rX", (0o2755, 0o644)),
            ("+x,o-x", (0o2770, 0o750)),
            ("a=r", (0o2444, 0o444)),
            ("u+s", (0o6770, 0o4640)),
            ("+t", (0o3770, 0o1640)),
        ] {
            assert_eq!(changed(text, 0o2770, 0o640), expected, "{text}");
        }
        assert_eq!(changed("a+X", 0o700, 0o100).1, 0o111);
        for text in ["", "8", "17777", "u", "u+q", "g=u", "z+x", "+x,,+r"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn owners_are_numbers_or_names() {
        assert_eq!(parse_owner("0:7").unwrap(), (Some(0), Some(7)));
        assert_eq!(parse_owner("root").unwrap(), (Some(0), None));
        assert_eq!(parse_owner(":root").unwrap(), (None, Some(0)));
        for text in ["", ":", "nobody-has-this-name", "4294967295"] {
            assert!(parse_owner(text).is_err(), "{text}");
        }
    }
}
