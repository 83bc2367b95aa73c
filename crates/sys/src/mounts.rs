//! The mounted file systems, as /proc/self/mountinfo lists them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::proc_file;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number, which another mount may have once this one is gone.
    pub id: u64,
    /// The file system's device, `major << 20 | minor`.
    pub device: u64,
    /// The directory of the file system that is seen at `point`: `/` but for bind mounts and in containers.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of file system.
    pub kind: String,
    /// What is mounted: a device, or a name the file system chose.
    pub source: String,
    /// Options of the file system itself, separated by commas: a control group's controllers, for example.
    pub options: String,
}

/// All mounts that this process sees, in the order they were made.
///
/// # Errors
/// When /proc is not mounted.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&proc_file::read("/proc/self/mountinfo")?))
}

/// The mounts of a file such as /proc/self/mountinfo. Lines that are not understood are left out.
pub fn parse_mounts(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// The mount that `path`, which has no links in it, lies on.
pub fn mount_of(path: &Path) -> Option<Mount> {
    mount_among(&mounts().ok()?, path).cloned()
}

/// The same of these `mounts`, in the order they were made.
pub fn mount_among<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // Of mounts at the same place, the last one hides the others.
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    holding.max_by_key(|mount| mount.point.as_os_str().len())
}

/// One line: `36 35 98:0 /root /mount/point options … - type source options` (proc_pid_mountinfo(5)).
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mut path = || Some(PathBuf::from(OsString::from_vec(unescaped(fields.next()?))));
    let (root, point) = (path()?, path()?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || Some(String::from_utf8_lossy(&unescaped(after.next()?)).into_owned());
    let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
    let (kind, source) = (text()?, text()?);
    Some(Mount { id, device, root, point, kind, source, options: text().unwrap_or_default() })
}

/// Spaces, tabs, line ends and backslashes are written `\040` and so on.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_optional_fields_and_names_that_are_not_text_are_understood() {
        let line = b"36 35 98:5 / /mnt/a\\040b\\134\\xff\xff rw,noatime shared:1 master:2 - ext4 /dev/my\\040disk rw";
        let mount = parse(line).expect("a mount");
        assert_eq!(
            (mount.device, mount.kind.as_str(), mount.source.as_str()),
            (98 << 20 | 5, "ext4", "/dev/my disk")
        );
        assert_eq!(mount.id, 36);
        assert_eq!((mount.root.to_str(), mount.options.as_str()), (Some("/"), "rw"));
        assert_eq!(mount.point.into_os_string().into_vec(), b"/mnt/a b\\\\xff\xff");
        assert_eq!(parse(b"36 35 98:0"), None);
        assert_eq!(unescaped("/ä\\04\\".as_bytes()), "/ä\\04\\".as_bytes());
    }

    #[test]
    fn the_root_is_mounted() {
        assert_eq!(mount_of(Path::new("/no/such/path")).expect("a mount").point, Path::new("/"));
        assert_eq!(mount_of(Path::new("/proc/self")).expect("a mount").kind, "proc");
    }
}
