//! What a process reports of its pools, and the text format of the report.
//!
//! ```text
//! prepage-vm 1
//! process pid=4242 command=qemu
//! pool number=1 limit_pages=4096 resident_pages=4000 … vms=1 maps=2 hard=81234 …     one for each pool
//! object pages=65536 resident_pages=4000 unwired_pages=800 dirty_pages=3 name=/a%20file    of the pool above it
//! end
//! ```
//!
//! Lines and fields that a reader does not know are passed over, and those that it misses are 0: the number in the first line changes only
//! where that would mislead. A text without its last line was cut off.

use std::fmt::Write;

use crate::pool::{PoolFigures, PoolObject};
use crate::statistics::Counted;

const MAGIC: &str = "prepage-vm";
const VERSION: &str = "1";

/// The pools of one process that its VMs use, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct View {
    /// The process id, as the process itself sees it.
    pub pid: u32,
    /// The name of the process's program.
    pub command: String,
    /// The pools, in the order in which they were made.
    pub pools: Vec<PoolView>,
}

/// One pool, and what the VMs did that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolView {
    /// This pool's number in its process, counted from 1 in the order in which they were made.
    pub number: u64,
    /// What the pool holds.
    pub figures: PoolFigures,
    /// What its VMs did since they were made, together.
    pub counted: Counted,
    /// How many VMs use it.
    pub vms: u64,
    /// How many maps they have.
    pub maps: u64,
    /// How many objects there are that may hold frames.
    pub objects: u64,
    /// The objects that hold the most frames, [`PoolView::LARGEST`] at most, the largest first.
    pub largest: Vec<PoolObject>,
}

/// Why a text is not a [`View`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The text ends before its last line.
    #[error("its answer was cut off")]
    CutOff,
    /// The text does not begin as a view does.
    #[error("its answer is not in prepage's format")]
    Foreign,
    /// The text has another version.
    #[error("its answer has version {0}, and this prepage knows version 1")]
    Version(String),
    /// A line of the text is not a line of this format.
    #[error("line {0} of its answer is malformed")]
    Malformed(usize),
}

impl PoolView {
    /// The most objects that are reported.
    pub const LARGEST: usize = 1000;

    /// All numbers of the pool, and what they are called.
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        let mut copy = Self { largest: Vec::new(), ..self.clone() };
        copy.numbers_mut().into_iter().map(|(name, number)| (name, *number)).collect()
    }

    fn numbers_mut(&mut self) -> Vec<(&'static str, &mut u64)> {
        let own = [
            ("number", &mut self.number),
            ("vms", &mut self.vms),
            ("maps", &mut self.maps),
            ("objects", &mut self.objects),
        ];
        self.figures.fields_mut().into_iter().chain(own).chain(self.counted.fields_mut()).collect()
    }
}

impl View {
    /// As text.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{MAGIC} {VERSION}\nprocess pid={} command=", self.pid);
        escape(&self.command, &mut text);
        text.push('\n');
        for pool in &self.pools {
            text.push_str("pool");
            pool.numbers().iter().for_each(|(name, number)| put(&mut text, name, *number));
            text.push('\n');
            for object in &pool.largest {
                text.push_str("object");
                put(&mut text, "pages", object.pages);
                put(&mut text, "resident_pages", object.resident_pages);
                put(&mut text, "unwired_pages", object.unwired_pages);
                put(&mut text, "dirty_pages", object.dirty_pages);
                text.push_str(" name=");
                escape(&object.name, &mut text);
                text.push('\n');
            }
        }
        text.push_str("end\n");
        text
    }

    /// Decodes the text that a process answers.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn decode(text: &str) -> Result<Self, ViewError> {
        let Some((first, rest)) = text.split_once('\n') else { return Err(ViewError::CutOff) };
        match first.split_once(' ') {
            Some((MAGIC, VERSION)) => {}
            Some((MAGIC, other)) => return Err(ViewError::Version(other.chars().take(20).collect())),
            _ => return Err(ViewError::Foreign),
        }
        let mut view = Self::default();
        for (line, number) in rest.split_inclusive('\n').zip(2..) {
            let line = line.strip_suffix('\n').ok_or(ViewError::CutOff)?;
            let malformed = || ViewError::Malformed(number);
            let (tag, fields) = line.split_once(' ').unwrap_or((line, ""));
            let fields = fields.split_ascii_whitespace().map(|field| field.split_once('='));
            let fields: Vec<(&str, &str)> = fields.collect::<Option<_>>().ok_or_else(malformed)?;
            match tag {
                "end" => return Ok(view),
                "process" => {
                    view.pid = numbered(&fields, "pid").ok_or_else(malformed)?.try_into().unwrap_or(0);
                    view.command = named(&fields, "command").ok_or_else(malformed)?;
                }
                "pool" => {
                    let mut pool = PoolView::default();
                    for (name, into) in pool.numbers_mut() {
                        *into = numbered(&fields, name).ok_or_else(malformed)?;
                    }
                    view.pools.push(pool);
                }
                "object" => {
                    let number = |name| numbered(&fields, name).ok_or_else(malformed);
                    let object = PoolObject {
                        name: named(&fields, "name").ok_or_else(malformed)?,
                        pages: number("pages")?,
                        resident_pages: number("resident_pages")?,
                        unwired_pages: number("unwired_pages")?,
                        dirty_pages: number("dirty_pages")?,
                    };
                    view.pools.last_mut().ok_or_else(malformed)?.largest.push(object);
                }
                _ => {}
            }
        }
        Err(ViewError::CutOff)
    }
}

fn put(text: &mut String, name: &str, number: u64) {
    write!(text, " {name}={number}").expect("to memory");
}

/// 0 where there is none; `None` where it is no number.
fn numbered(fields: &[(&str, &str)], name: &str) -> Option<u64> {
    fields.iter().find(|field| field.0 == name).map_or(Some(0), |field| field.1.parse().ok())
}

/// Nothing where there is none; `None` where it is not escaped as [`escape`] does.
fn named(fields: &[(&str, &str)], name: &str) -> Option<String> {
    let escaped = fields.iter().find(|field| field.0 == name).map_or("", |field| field.1);
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(byte);
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            *bytes.last_mut()? = u8::from_str_radix(digits, 16).ok()?;
            rest = &rest[2..];
        }
    }
    String::from_utf8(bytes).ok()
}

/// As in a URL: what is not printable ASCII, and `%`, as two hexadecimal digits.
fn escape(text: &str, into: &mut String) {
    for &byte in text.as_bytes() {
        match byte {
            b'%' => into.push_str("%25"),
            b'!'..=b'~' => into.push(byte.into()),
            _ => write!(into, "%{byte:02x}").expect("to memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view() -> View {
        let object = |name: &str, pages| PoolObject {
            name: name.to_owned(),
            pages,
            resident_pages: pages / 2,
            unwired_pages: 1,
            dirty_pages: pages / 3,
        };
        let mut pool = PoolView {
            largest: vec![object("/a file\n100%", 40), object("", 0), object("größe", 1 << 40)],
            ..PoolView::default()
        };
        // Each number another, so that none is taken for another one.
        pool.numbers_mut().into_iter().zip(1..).for_each(|((_, number), nth)| *number = nth);
        View { pid: 7, command: "two words".into(), pools: vec![pool, PoolView::default()] }
    }

    #[test]
    fn what_is_told_is_read_and_what_is_not_known_is_passed_over() {
        let text = view().encode();
        assert_eq!(View::decode(&text), Ok(view()));
        let newer = text.replace("\npool ", "\nweather sky=blue\npool rain=none ");
        assert_eq!(View::decode(&newer), Ok(view()));
        // What is missing is 0.
        let older = View::decode("prepage-vm 1\nprocess pid=7\npool maps=3\nend\n").unwrap();
        assert_eq!((older.pid, older.pools[0].maps, older.pools[0].counted.hard), (7, 3, 0));
    }

    #[test]
    fn names_of_numbers_are_unique() {
        let mut names: Vec<&str> = PoolView::default().numbers().iter().map(|number| number.0).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }

    #[test]
    fn what_is_cut_off_foreign_or_malformed_is_refused() {
        let text = view().encode();
        (0..text.len()).filter(|&at| text.is_char_boundary(at)).for_each(|at| {
            assert_eq!(View::decode(&text[..at]).unwrap_err(), ViewError::CutOff, "{at}");
        });
        let refused = |text: &str| View::decode(text).unwrap_err();
        assert_eq!(refused("HTTP/1.0 200 OK\n"), ViewError::Foreign);
        assert_eq!(refused("prepage-vm 2\nend\n"), ViewError::Version("2".into()));
        assert_eq!(refused("prepage-vm 1\npool maps=many\nend\n"), ViewError::Malformed(2));
        assert_eq!(refused("prepage-vm 1\nobject name=x\nend\n"), ViewError::Malformed(2));
        assert_eq!(refused("prepage-vm 1\nprocess command=%f\nend\n"), ViewError::Malformed(2));
        assert_eq!(refused("prepage-vm 1\npool maps\nend\n"), ViewError::Malformed(2));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(prepage-vm 1\n)?((pool|object|process|end|x)( (name|maps|pid)=[0-9%a-fg]{0,4})*\n?){0,6}") {
            let _ = View::decode(&text);
        }

        #[test]
        fn any_name_comes_back(name in any::<String>()) {
            let view = View { command: name, ..View::default() };
            prop_assert_eq!(View::decode(&view.encode()), Ok(view));
        }
    }
}
