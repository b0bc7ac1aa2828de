//! Access control lists as text, as archives have them, and in the form of the kernel.

use anyhow::{Context, Result, bail};

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// The list of a text like `user::rwx,user:lisa:r--:1000,group::r-x,mask::r-x,other::---`; entries
/// end with commas or lines. Names without a number are looked up by `find_id`, which is told
/// whether a group is meant.
///
/// # Errors
/// If it is none, or a name is not known.
pub(super) fn parse(text: &[u8], find_id: &dyn Fn(&str, bool) -> Option<u32>) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(text).context("an access control list is no text")?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']).map(|entry| entry.split('#').next().unwrap_or("").trim()) {
        if !entry.is_empty() {
            entries.push(
                parse_entry(entry, find_id)
                    .with_context(|| format!("'{entry}' is no entry of an access control list"))?,
            );
        }
    }
    entries.sort_unstable_by_key(|(tag, _, id)| (*tag, *id));
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Ok(bytes)
}

fn parse_entry(entry: &str, find_id: &dyn Fn(&str, bool) -> Option<u32>) -> Result<(u16, u16, u32)> {
    let fields: Vec<&str> = entry.split(':').collect();
    // Other and mask may have no field for a name.
    let (kind, name, permissions, number) = match fields[..] {
        [kind @ ("other" | "mask" | "o" | "m"), permissions] => (kind, "", permissions, None),
        [kind, name, permissions] => (kind, name, permissions, None),
        [kind, name, permissions, number] => (kind, name, permissions, Some(number)),
        _ => bail!("it has {} fields", fields.len()),
    };
    let id = |is_group| {
        let number = number.and_then(|number| number.parse().ok()).or_else(|| name.parse().ok());
        number.or_else(|| find_id(name, is_group)).with_context(|| format!("there is no '{name}' here"))
    };
    let (tag, id) = match (kind, name.is_empty() && number.is_none_or(str::is_empty)) {
        ("user" | "u", true) => (USER_OBJ, NO_ID),
        ("user" | "u", false) => (USER, id(false)?),
        ("group" | "g", true) => (GROUP_OBJ, NO_ID),
        ("group" | "g", false) => (GROUP, id(true)?),
        ("mask" | "m", true) => (MASK, NO_ID),
        ("other" | "o", true) => (OTHER, NO_ID),
        _ => bail!("'{kind}' is not known"),
    };
    let mut bits = 0;
    for permission in permissions.chars() {
        bits |= match permission {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => bail!("'{permission}' is no permission"),
        };
    }
    Ok((tag, bits, id))
}

/// The text of a list in the form of the kernel; `None` if it is none.
pub(super) fn text(list: &[u8]) -> Option<String> {
    let (version, rest) = list.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(8) {
        return None;
    }
    let mut entries = Vec::new();
    for entry in rest.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let bits = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let name = match tag {
            USER_OBJ => "user:".to_owned(),
            USER => format!("user:{id}"),
            GROUP_OBJ => "group:".to_owned(),
            GROUP => format!("group:{id}"),
            MASK => "mask:".to_owned(),
            OTHER => "other:".to_owned(),
            _ => return None,
        };
        let letter = |bit, letter| if bits & bit != 0 { letter } else { '-' };
        entries.push(format!("{name}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(entries.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        let find = |name: &str, is_group: bool| (name == "lisa" && !is_group).then_some(1000);
        let texts = [
            "user::rwx,user:1000:r--,group::r-x,group:7:-w-,mask::rwx,other::---",
            "user::rw-,group::r--,other::r--",
        ];
        for list in texts {
            let parsed = parse(list.as_bytes(), &find).unwrap();
            assert_eq!(text(&parsed).unwrap(), list);
        }
        for list in [
            "user::rwx\nuser:lisa:r--\ngroup::r-x\ngroup:7:-w-\nmask::rwx\nother::---\n",
            "u::rwx,u:lisa:r:1000,g::rx,g:seven:w:7,m:rwx,o:-",
            "other::---,mask::rwx,group:7:-w-,group::r-x,user:1000:r--,user::rwx #effective:r",
        ] {
            assert_eq!(text(&parse(list.as_bytes(), &find).unwrap()).unwrap(), texts[0], "{list}");
        }
        for list in
            ["user", "user:nobody-here:rwx", "group:lisa:r", "user::rwz", "who::r", "mask:7:r", "\u{ff}"]
        {
            assert!(parse(list.as_bytes(), &find).is_err(), "{list}");
        }
        assert_eq!(text(b"\x02\0\0\0x"), None);
        assert_eq!(text(b""), None);
    }
}
