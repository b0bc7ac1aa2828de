//! The mounts that a process sees, from `/proc/PID/mountinfo`: pure functions of its text.

/// A place where a file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountPlace {
    /// The number of the mount, and of the one on which it is mounted.
    id: u64,
    parent: u64,
    /// The directory of the file system that is shown.
    root: Vec<u8>,
    /// Where it is shown, as the process sees it.
    point: Vec<u8>,
    /// Options of the place, and of the file system.
    options: Vec<u8>,
    super_options: Vec<u8>,
}

impl MountPlace {
    /// From a line; `None` for what is none.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let _device = fields.next()?;
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let options = fields.next()?.to_vec();
        // Optional fields end with a dash; type and source follow.
        let mut fields = fields.skip_while(|field| *field != b"-").skip(3);
        Some(Self { id, parent, root, point, options, super_options: fields.next()?.to_vec() })
    }

    /// Nothing can be changed through this place.
    pub(super) fn is_read_only(&self) -> bool {
        has(&self.options, b"ro") || has(&self.super_options, b"ro")
    }

    /// An option by which paths or owners mean something else here than in the file system.
    pub(super) fn translation(&self) -> Option<&'static str> {
        let known: [(&str, &[u8]); 2] = [("idmapped", b"idmapped"), ("nosymfollow", b"nosymfollow")];
        known.into_iter().find(|(_, option)| has(&self.options, option)).map(|(name, _)| name)
    }

    /// Where in the file system something lies that is shown at `point`.
    fn place_of(&self, point: &[u8]) -> Option<Vec<u8>> {
        let below = point.strip_prefix(without_slash(&self.point))?;
        if !below.is_empty() && below[0] != b'/' {
            return None;
        }
        Some([without_slash(&self.root), below].concat())
    }
}

/// The mounts that a process sees, and what is mounted on one of them.
pub(super) struct MountTable(Vec<MountPlace>);

impl MountTable {
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(MountPlace::parse).collect())
    }

    /// The mount with this number, if the process can reach it from its root directory.
    pub(super) fn find(&self, id: u64) -> Option<&MountPlace> {
        self.0.iter().find(|place| place.id == id)
    }

    /// Something that is mounted below the directory at `path` of the file system of `on`, where it
    /// hides what lies there; or of which it cannot be told that it is not.
    pub(super) fn mounted_below(&self, on: &MountPlace, path: &[u8]) -> Option<&[u8]> {
        let top = [without_slash(path), b"/"].concat();
        let hides = |place: &&MountPlace| {
            place.parent == on.id
                && place.id != on.id
                && on.place_of(&place.point).is_none_or(|place| place.starts_with(&top) && place != top)
        };
        self.0.iter().find(hides).map(|place| &place.point[..])
    }
}

fn has(options: &[u8], option: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|one| one == option)
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

/// A path in which blanks and the like are written as `\` and three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((&first, rest)) = left.split_first() {
        let digits = rest.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                left = &rest[3..];
            }
            _ => {
                out.push(first);
                left = rest;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
