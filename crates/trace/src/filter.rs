//! Which faults to keep.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use prepage_core::{Fault, Object, ObjectId};

/// Which faults to keep: those that pass every kind of filter given, and one is enough of each kind.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// As traces name them: what is not UTF-8 is replaced.
    files: Vec<String>,
    addresses: Vec<Range<u64>>,
    comms: Vec<String>,
    /// As they were given.
    texts: Vec<String>,
    /// For each object that was met, whether it is one of `files`.
    is_wanted: Vec<Option<bool>>,
}

/// The text cannot be parsed as a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text}: not a range of addresses such as 7f0000000000-7f0000100000 (hexadecimal, the end not included)"
)]
pub struct NotARange {
    text: String,
}

impl Filters {
    /// Keeps faults on the file `path`.
    pub fn file(&mut self, path: &Path) {
        self.texts.push(format!("--file {}", path.display()));
        // The kernel names files by their resolved path; one that does not exist yet will get this one.
        let path = path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into());
        self.files.push(path.to_string_lossy().into_owned());
    }

    /// Keeps faults at the addresses `text`, `A-B` in hexadecimal.
    pub fn address(&mut self, text: &str) -> Result<(), NotARange> {
        let hex = |digits: &str| {
            let digits = digits.strip_prefix("0x").unwrap_or(digits);
            u64::from_str_radix(digits, 16).ok()
        };
        let range = text.split_once('-').and_then(|(start, end)| Some(hex(start)?..hex(end)?));
        let range = range.filter(|range| range.start < range.end);
        self.addresses.push(range.ok_or_else(|| NotARange { text: text.into() })?);
        self.texts.push(format!("--address {text}"));
        Ok(())
    }

    /// Keeps faults of threads called `name`, of which the kernel keeps 15 bytes.
    pub fn comm(&mut self, name: &str) {
        self.texts.push(format!("--comm {name}"));
        self.comms.push(kept_comm(name).into_owned());
    }

    /// Whether all faults are kept.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The filters as a command line has them.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether `fault`, by a thread called `comm`, is kept.
    pub(crate) fn keep(&mut self, fault: &Fault, comm: &str, objects: &[Object]) -> bool {
        let any = |empty: bool, found: bool| empty || found;
        any(self.addresses.is_empty(), self.addresses.iter().any(|range| range.contains(&fault.address)))
            && any(self.comms.is_empty(), self.comms.iter().any(|wanted| wanted == comm))
            && any(self.files.is_empty(), fault.object.is_some_and(|id| self.wants(id, objects)))
    }

    fn wants(&mut self, id: ObjectId, objects: &[Object]) -> bool {
        let files = &self.files;
        remembered(&mut self.is_wanted, id.0, || files.contains(&objects[id.0 as usize].path))
    }
}

/// What the kernel keeps of a thread's name, as traces have it: of a letter that was cut, U+FFFD is left.
pub fn kept_comm(name: &str) -> Cow<'_, str> {
    const COMM_BYTES: usize = 15;
    String::from_utf8_lossy(&name.as_bytes()[..name.len().min(COMM_BYTES)])
}

/// What was decided of `number` before, or is decided now.
pub fn remembered(known: &mut Vec<Option<bool>>, number: u32, decide: impl FnOnce() -> bool) -> bool {
    let at = number as usize;
    if at >= known.len() {
        known.resize(at + 1, None);
    }
    *known[at].get_or_insert_with(decide)
}

#[cfg(test)]
mod tests {
    use prepage_core::{FaultClass, ThreadIndex};

    use super::*;

    #[test]
    fn every_kind_given_must_be_passed() {
        let objects = [Object::new("/nonexistent/a", Some((1, 2))), Object::new("[heap]", None)];
        let fault = |address, object: Option<u32>| Fault {
            object: object.map(ObjectId),
            ..Fault::new(0, ThreadIndex(0), address, FaultClass::Cached)
        };
        let mut filters = Filters::default();
        assert!(filters.is_empty() && filters.keep(&fault(0, None), "x", &objects));
        filters.address("0x1000-2000").expect("a range");
        filters.address("5000-6000").expect("a range");
        assert!(filters.keep(&fault(0x1fff, None), "x", &objects));
        assert!(filters.keep(&fault(0x5000, None), "x", &objects));
        assert!(!filters.keep(&fault(0x2000, None), "x", &objects));
        filters.file("/nonexistent/a".as_ref());
        assert!(filters.keep(&fault(0x1000, Some(0)), "x", &objects));
        assert!(!filters.keep(&fault(0x1000, Some(1)), "x", &objects));
        filters.comm("a name of more than fifteen bytes");
        assert!(!filters.keep(&fault(0x1000, Some(0)), "x", &objects));
        assert!(filters.keep(&fault(0x1000, Some(0)), "a name of more ", &objects));
        filters.comm("ääääääää");
        assert!(filters.keep(&fault(0x1000, Some(0)), "äääääää\u{fffd}", &objects), "cut inside a letter");
        assert_eq!(filters.texts().len(), 5);
    }

    #[test]
    fn a_path_that_is_not_utf8_is_that_of_its_object() {
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"/nonexistent/\xff");
        let objects = [Object::new(path.to_string_lossy(), Some((1, 2)))];
        let fault =
            Fault { object: Some(ObjectId(0)), ..Fault::new(0, ThreadIndex(0), 0x1000, FaultClass::Cached) };
        let mut filters = Filters::default();
        filters.file(path.as_ref());
        assert!(filters.keep(&fault, "x", &objects));
    }

    #[test]
    fn what_is_no_range_is_named() {
        for text in ["", "1000", "2000-1000", "1000-1000", "x-y", "-1-2"] {
            assert!(Filters::default().address(text).is_err(), "{text}");
        }
    }
}
