//! Which device a path lies on.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use prepage_sys::disk_stat::DiskStat;

/// File systems that read from no device, by `f_type` (linux/magic.h).
const WITHOUT_DEVICE: [(u64, &str); 10] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x1cd1, "devpts"),
    (0x2765_6b6a, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x9584_58f6, "hugetlbfs"),
];

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
        let mut identity = format!("{system} on {source}");
        let block = DiskStat::directory(number);
        if let Some(sectors) = word(&block.join("size")) {
            identity += &format!(", {sectors} sectors");
        }
        // A partition's model is that of the disk above it; a mapped device has a UUID instead.
        let model =
            ["device/model", "../device/model", "dm/uuid"].iter().find_map(|file| word(&block.join(file)));
        if let Some(model) = model {
            identity += &format!(", {model}");
        }
        Ok(Self { number, identity })
    }

    /// `major:minor`.
    pub fn name(&self) -> String {
        format!("{}:{}", rustix::fs::major(self.number), rustix::fs::minor(self.number))
    }
}

/// The name of the file system of `path` where that one reads from no device.
pub(super) fn without_device(path: &Path) -> io::Result<Option<&'static str>> {
    let kind = rustix::fs::statfs(path)?.f_type as u64 & 0xffff_ffff;
    Ok(WITHOUT_DEVICE.iter().find(|(magic, _)| *magic == kind).map(|&(_, name)| name))
}

/// A file's only line.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_an_identity_of_one_line_and_memory_has_no_device() {
        let device = Device::under(Path::new("/")).unwrap();
        assert!(device.identity.contains(" on ") && !device.identity.contains('\n'), "{}", device.identity);
        assert_eq!(without_device(Path::new("/proc")).unwrap(), Some("proc"));
        assert!(Device::under(Path::new("/no/such/path")).is_err());
    }
}
