//! What mkfs is about to write to, in a line for people.

use crate::units::Size;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Where the kernel describes block devices.
const BLOCK_DEVICES: &str = "/sys/dev/block";

/// Says what `path` is, how large it is or will be, and what is on it now. `size` is what was asked
/// for, 0 for all of a device.
pub(super) fn describe(path: &Path, before: Option<&Metadata>, size: u64, content: Option<&str>) -> String {
    let shown = path.display();
    let Some(before) = before else { return format!("{shown}: a new image file of {}", Size(size)) };
    let holds = content.map_or_else(|| "nothing that is known".to_owned(), str::to_owned);
    if !before.file_type().is_block_device() {
        return format!("{shown}: an image file of {}, which holds {holds}", Size(before.len()));
    }
    let number = (rustix::fs::major(before.rdev()), rustix::fs::minor(before.rdev()));
    let device = Path::new(BLOCK_DEVICES).join(format!("{}:{}", number.0, number.1));
    let size =
        device_size(&device).map_or_else(|| "unknown size".to_owned(), |bytes| Size(bytes).to_string());
    let model = model(&device).map(|model| format!(" ({model})")).unwrap_or_default();
    let partition = if device.join("partition").exists() { "a partition" } else { "a block device" };
    format!("{shown}: {partition} of {size}{model}, which holds {holds}")
}

/// The bytes of a device; the kernel counts in sectors of 512 whatever the device has.
fn device_size(device: &Path) -> Option<u64> {
    std::fs::read_to_string(device.join("size")).ok()?.trim().parse::<u64>().ok()?.checked_mul(512)
}

/// The maker's name for the device, for a loop device its file. A partition has that of its disk,
/// the directory above.
fn model(device: &Path) -> Option<String> {
    let real = device.canonicalize().ok()?;
    let dirs = [real.as_path(), real.parent()?];
    let files = ["device/model", "loop/backing_file", "dm/name"];
    let read = dirs.iter().flat_map(|dir| files.iter().map(|file| dir.join(file))).find_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    read.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_described_as_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.img");
        let said = describe(&path, None, 20 << 30, None);
        assert!(said.ends_with("x.img: a new image file of 20 GiB"), "{said}");
        std::fs::write(&path, [0; 2048]).unwrap();
        let before = path.metadata().unwrap();
        let said = describe(&path, Some(&before), 0, Some("an XFS file system"));
        assert!(said.ends_with("an image file of 2 KiB, which holds an XFS file system"), "{said}");
    }

    #[test]
    fn a_partition_has_the_model_of_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let partition = dir.path().join("disk/disk1");
        std::fs::create_dir_all(&partition).unwrap();
        std::fs::create_dir(dir.path().join("disk/device")).unwrap();
        std::fs::write(dir.path().join("disk/device/model"), "Fast  Disk 980   \n").unwrap();
        std::fs::write(partition.join("size"), "2048\n").unwrap();
        assert_eq!(model(&partition).as_deref(), Some("Fast Disk 980"));
        assert_eq!(device_size(&partition), Some(1 << 20));
    }
}
