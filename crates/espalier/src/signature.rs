//! What already lies on a file or device, by the marks that file systems and the like leave there.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// (what it is, byte offset, the mark). The first match counts: specific marks come first.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("an Espalier file system", 0, b"ESPALIER"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("a bcachefs file system", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("a bcachefs file system", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9]),
    ("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS file system", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a FAT file system", 0x52, b"FAT32"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a NILFS2 file system", 0x406, &[0x34, 0x34]),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x200, b"LABELONE"),
    ("a RAID member", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a QCOW image", 0, b"QFI\xfb"),
    ("a partition table", 0x200, b"EFI PART"),
    ("a partition table or boot sector", 0x1fe, &[0x55, 0xaa]),
];

/// Where the marks of our own superblocks are.
const OWN_SIGNATURE_OFFSETS: [u64; 2] = [0, 65536];

/// How much of the beginning of a file must be zeros for it to count as empty.
const INSPECTED_BYTES: usize = 1 << 20;

/// Says what is at `path`, or `None` if nothing is recognized: for a file that means zeros, for a
/// device that neither we nor blkid(8) know what it is.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn find(path: &Path) -> Result<Option<String>> {
    let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    let mut head = vec![0; INSPECTED_BYTES];
    let length =
        read_up_to(&file, &mut head).with_context(|| format!("{} cannot be read", path.display()))?;
    head.truncate(length);
    if let Some(what) = known(&head) {
        return Ok(Some(what.to_owned()));
    }
    if let Some(what) = ask_blkid(path) {
        return Ok(Some(what));
    }
    let is_device = file.metadata().is_ok_and(|m| m.file_type().is_block_device());
    if !is_device && head.iter().any(|&b| b != 0) {
        return Ok(Some("data of an unknown kind".into()));
    }
    Ok(None)
}

/// Says what is at `path` if neither of the first two superblocks is ours, and the mark of
/// something else is there.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn of_another(path: &Path) -> Result<Option<String>> {
    let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    for offset in OWN_SIGNATURE_OFFSETS {
        let mut mark = [0; 8];
        // What cannot be read is no mark.
        if file.read_exact_at(&mut mark, offset).is_ok() && mark == *b"ESPALIER" {
            return Ok(None);
        }
    }
    let mut head = vec![0; INSPECTED_BYTES];
    let length = read_up_to(&file, &mut head).unwrap_or(0);
    Ok(known(&head[..length]).map(str::to_owned).or_else(|| ask_blkid(path)))
}

/// What the first bytes of a device are the mark of.
fn known(head: &[u8]) -> Option<&'static str> {
    let matching = SIGNATURES
        .iter()
        .find(|(_, offset, mark)| head.get(*offset as usize..).is_some_and(|rest| rest.starts_with(mark)));
    matching.map(|(what, _, _)| *what)
}

/// blkid(8) knows many more; without it, the table above has to do.
fn ask_blkid(path: &Path) -> Option<String> {
    let out = Command::new("blkid")
        .args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let kind = text.lines().next()?.trim();
    (!kind.is_empty()).then(|| format!("something of type '{kind}'"))
}

fn read_up_to(file: &File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn marks_are_found_where_they_belong() {
        for (what, offset, mark) in SIGNATURES {
            let mut head = vec![0; 1 << 17];
            head[*offset as usize..][..mark.len()].copy_from_slice(mark);
            assert_eq!(known(&head), Some(*what));
        }
        assert_eq!(known(&[0; 4096]), None);
        assert_eq!(known(b"short"), None);
    }

    #[test]
    fn any_data_in_a_file_counts_and_zeros_do_not() -> Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        assert_eq!(find(file.path())?, None);
        file.as_file().set_len(1 << 16)?;
        assert_eq!(find(file.path())?, None);
        file.write_all(b"the only copy of a thesis")?;
        assert_eq!(find(file.path())?.as_deref(), Some("data of an unknown kind"));
        Ok(())
    }
}
