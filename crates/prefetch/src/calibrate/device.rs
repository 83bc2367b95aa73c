//! Which device a path lies on.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use prepage_sys::device_number;
use prepage_sys::disk_stat::DiskStat;

/// A device, and what tells it from another that has its number later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `st_dev` of the files on it.
    pub number: u64,
    /// On one line: file system, its source, and of a block device size and model.
    pub identity: String,
}

impl Device {
    /// The device under `path`.
    ///
    /// # Errors
    /// Where `path` cannot be looked up.
    pub fn under(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let number = fs::metadata(&path)?.dev();
        let mount = prepage_sys::mounts::mount_of(&path).map(|mount| (mount.kind, mount.source));
        let (system, source) = mount.unwrap_or_else(|| ("unknown".into(), "unknown".into()));
        let identity = format!("{system} on {source}{}", block(number));
        Ok(Self { number, identity })
    }

    /// Whether a device with the number of this one is there that is another.
    pub fn is_replaced(&self) -> bool {
        DiskStat::directory(self.number).exists() && !self.identity.ends_with(&block(self.number))
    }

    /// Whether `other` is this device by another number. Those of file systems without a device of their own (overlay, Btrfs) tell nothing: each
    /// mount or subvolume has one, on the same device.
    pub fn is_renumbered(&self, other: &Self) -> bool {
        let has_own = |device: &Self| rustix::fs::major(device.number) != 0;
        self.number != other.number && self.identity == other.identity && has_own(self) && has_own(other)
    }

    /// `major:minor`.
    pub fn name(&self) -> String {
        device_number::name(self.number)
    }
}

/// Size and model of the block device with this number, behind a comma each; empty where there is none.
fn block(number: u64) -> String {
    let mut told = String::new();
    let block = DiskStat::directory(number);
    if let Some(sectors) = word(&block.join("size")) {
        told += &format!(", {sectors} sectors");
    }
    // A partition's model is that of the disk above it; a mapped device has a UUID instead.
    let model =
        ["device/model", "../device/model", "dm/uuid"].iter().find_map(|file| word(&block.join(file)));
    if let Some(model) = model {
        told += &format!(", {model}");
    }
    told
}

/// A file's only line.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use prepage_sys::file_system::{kind_of, without_device};

    use super::*;

    #[test]
    fn the_root_has_an_identity_of_one_line_and_memory_has_no_device() {
        let device = Device::under(Path::new("/")).unwrap();
        assert!(device.identity.contains(" on ") && !device.identity.contains('\n'), "{}", device.identity);
        assert_eq!(without_device(kind_of(fs::File::open("/proc/version").unwrap()).unwrap()), Some("proc"));
        assert!(Device::under(Path::new("/no/such/path")).is_err());
    }
}
