//! Finding tracepoints.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::PerfError;

/// The kernel's tracing directory.
///
/// Where it is not mounted, it is mounted for this value alone, in no directory, and gone with it.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
}

/// A tracepoint: its number and where its fields lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// For [`super::Source::Tracepoint`].
    pub id: u64,
    fields: Vec<(String, FieldPlace)>,
}

/// Where a field lies in a sample's raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    offset: usize,
    len: usize,
}

impl Tracefs {
    /// Opens the directory.
    ///
    /// # Errors
    /// Needs root.
    pub fn open() -> io::Result<Self> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for mounted in ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"] {
            if let Ok(events) = open(mounted, directory, Mode::empty()) {
                return Ok(Self { root: openat(events, "..", directory, Mode::empty())? });
            }
        }
        let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&fs)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        Ok(Self { root: fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)? })
    }

    /// Looks up tracepoint `system:name`.
    pub fn tracepoint(&self, system: &str, name: &str) -> Result<Tracepoint, PerfError> {
        let read = |file: &str| self.read(&format!("events/{system}/{name}/{file}"));
        let found = || -> io::Result<Tracepoint> {
            let id = read("id")?;
            let id = id.trim().parse().map_err(|_| invalid(format!("not a tracepoint id: {id:?}")))?;
            let fields = read("format")?.lines().filter_map(parse_field).collect();
            Ok(Tracepoint { id, fields })
        };
        found().map_err(|source| PerfError::Tracefs { tracepoint: format!("{system}:{name}"), source })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let file = openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Tracepoint {
    /// Where field `name` lies.
    ///
    /// # Errors
    /// When this kernel's tracepoint has no such field, or none that fits a `u64`.
    pub fn field(&self, name: &str) -> Result<FieldPlace, PerfError> {
        let place = self.fields.iter().find(|(field, _)| field == name).map(|(_, place)| *place);
        place.filter(|place| place.len <= 8).ok_or_else(|| PerfError::Tracefs {
            tracepoint: format!("number {}", self.id),
            source: invalid(format!("it has no number called {name}")),
        })
    }
}

impl Tracepoint {
    /// Where the array `name` of characters lies, for [`FieldPlace::text`].
    ///
    /// # Errors
    /// When this kernel's tracepoint has no such field.
    pub fn text_field(&self, name: &str) -> Result<FieldPlace, PerfError> {
        let is_it = |field: &str| field.strip_prefix(name).is_some_and(|rest| rest.starts_with('['));
        let place = self.fields.iter().find(|(field, _)| is_it(field)).map(|(_, place)| *place);
        place.ok_or_else(|| PerfError::Tracefs {
            tracepoint: format!("number {}", self.id),
            source: invalid(format!("it has no text called {name}")),
        })
    }
}

impl FieldPlace {
    /// Bytes before it.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// The field's text in a sample's raw bytes, up to its first zero; `None` when they are too short.
    pub fn text(self, raw: &[u8]) -> Option<&[u8]> {
        let bytes = raw.get(self.offset..self.offset.checked_add(self.len)?)?;
        bytes.split(|&byte| byte == 0).next()
    }

    /// The field's value in a sample's raw bytes; `None` when they are too short.
    pub fn read(self, raw: &[u8]) -> Option<u64> {
        let bytes = raw.get(self.offset..self.offset.checked_add(self.len)?)?;
        let mut word = [0; 8];
        // Little-endian machines only, as everything here: the low bytes come first.
        word.get_mut(..self.len)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

/// One line of a `format` file: `field:unsigned long i_ino; offset:16; size:8; signed:0;`, with tabs between.
fn parse_field(line: &str) -> Option<(String, FieldPlace)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let name = declaration.rsplit(' ').next()?.trim_start_matches('*');
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let len = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    Some((name.to_owned(), FieldPlace { offset, len }))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_where_the_format_says() {
        let line = "\tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;";
        let (name, place) = parse_field(line).expect("a field");
        assert_eq!(name, "i_ino");
        let mut raw = [0u8; 24];
        raw[16] = 7;
        assert_eq!(place.read(&raw), Some(7));
        assert_eq!(place.read(&raw[..20]), None);
        let (name, place) = parse_field("\tfield:char rwbs[10];\toffset:2;\tsize:10;\tsigned:0;").unwrap();
        let tracepoint = Tracepoint { id: 1, fields: vec![(name, place)] };
        let place = tracepoint.text_field("rwbs").unwrap();
        assert_eq!(place.text(b"  RA\0\0\0\0\0\0\0\0"), Some(&b"RA"[..]));
        assert_eq!((place.text(b"  RA"), tracepoint.text_field("rw").is_err()), (None, true));
        assert_eq!(parse_field("print fmt: \"dev %d:%d\""), None);
    }

    #[test]
    fn impossible_places_read_nothing() {
        assert_eq!(FieldPlace { offset: usize::MAX, len: 8 }.read(&[0; 64]), None);
        assert_eq!(FieldPlace { offset: 0, len: 16 }.read(&[0; 64]), None);
    }
}
