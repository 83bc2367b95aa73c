//! Touches in lines of text: `page`, or `object,page`.
//!
//! A file keeps to one of the two forms. Empty lines and lines that begin with `#` are skipped. A page is a decimal number,
//! counted from the start of the map entry.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use crate::pages::MOST_PAGES;

/// Longer lines are no touches: names of objects are paths at most.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What is shown of text that is no page index: a binary file's first line may be long.
const SHOWN_BYTES_MAX: usize = 60;

/// A line that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// This line, counted from 1, has such text for a page index.
    #[error("line {0}: `{1}` is not a page index")]
    NotAPage(u64, String),
    /// This line has a number beyond what can be mapped.
    #[error("line {0}: page {1} is beyond what can be mapped ({MOST_PAGES} pages)")]
    TooFar(u64, String),
    /// This line is far longer than a touch.
    #[error("line {0}: longer than {LINE_BYTES_MAX} bytes, which no touch is")]
    TooLong(u64),
    /// Some lines name an object and some do not, of which this is the first that differs.
    #[error("line {0}: lines with and without an object are mixed; write `object,page` in all of them")]
    Mixed(u64),
    /// This line could not be read.
    #[error("line {0}: reading failed")]
    Read(u64, #[source] io::Error),
}

/// Objects by name, in the order they were first named. Text without names has one, called ``.
#[derive(Debug, Default)]
pub struct Names {
    /// The names.
    pub names: Vec<String>,
    by_name: HashMap<Vec<u8>, u32>,
    /// The object of the line before, which most lines name again.
    last: Option<(Vec<u8>, u32)>,
    named: Option<bool>,
}

impl Names {
    fn index(&mut self, name: Option<&[u8]>, line: u64) -> Result<u32, TextError> {
        if *self.named.get_or_insert(name.is_some()) != name.is_some() {
            return Err(TextError::Mixed(line));
        }
        let name = name.unwrap_or_default();
        // Without names memcmp is not asked: of no bytes at no address, its masked loads take a hundred nanoseconds.
        if let Some((last, index)) = &self.last
            && last.len() == name.len()
            && (name.is_empty() || last == name)
        {
            return Ok(*index);
        }
        let next = self.names.len() as u32;
        let index = *self.by_name.entry(name.to_vec()).or_insert(next);
        if index == next {
            self.names.push(String::from_utf8_lossy(name).into_owned());
        }
        self.last = Some((name.to_vec(), index));
        Ok(index)
    }
}

/// Calls `touch(object, page, line)` for each touch.
///
/// # Errors
/// The first line that is not a touch, as `wrong` has it, or what `touch` returns.
pub fn read_touches<E>(
    mut text: impl BufRead,
    names: &mut Names,
    wrong: impl Fn(TextError) -> E,
    mut touch: impl FnMut(u32, u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut touched = |content: &[u8], line| {
        let found = read_line(content, line, names).map_err(&wrong)?;
        found.map_or(Ok(()), |(object, page)| touch(object, page, line))
    };
    let (mut line, mut across) = (1, Vec::new());
    loop {
        let failed = |source| wrong(TextError::Read(line, source));
        let read = text.fill_buf().map_err(failed)?;
        if let Some(end) = read.iter().rposition(|&byte| byte == b'\n') {
            for content in read[..end].split(|&byte| byte == b'\n') {
                touched(content, line)?;
                line += 1;
            }
            text.consume(end + 1);
        } else {
            // A line that goes on beyond what has been read, or the last.
            across.clear();
            let mut line_of_text = text.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            if line_of_text.read_until(b'\n', &mut across).map_err(failed)? == 0 {
                return Ok(());
            }
            touched(&across, line)?;
            line += 1;
        }
    }
}

/// Object and page of a line that is a touch.
fn read_line(content: &[u8], line: u64, names: &mut Names) -> Result<Option<(u32, u64)>, TextError> {
    if content.len() > LINE_BYTES_MAX {
        return Err(TextError::TooLong(line));
    }
    let content = content.trim_ascii();
    if content.is_empty() || content[0] == b'#' {
        return Ok(None);
    }
    // Names may hold commas; the page stands after the last.
    let (name, digits) = match content.iter().rposition(|&byte| byte == b',') {
        Some(comma) => (Some(content[..comma].trim_ascii()), content[comma + 1..].trim_ascii()),
        None => (None, content),
    };
    let page = page(digits, line)?;
    Ok(Some((names.index(name, line)?, page)))
}

fn page(digits: &[u8], line: u64) -> Result<u64, TextError> {
    let text = || match digits.get(..SHOWN_BYTES_MAX) {
        Some(first) => format!("{}…", String::from_utf8_lossy(first)),
        None => String::from_utf8_lossy(digits).into_owned(),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(TextError::NotAPage(line, text()));
    }
    let add = |page: u64, &digit: &u8| page.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let page = digits.iter().try_fold(0, add).filter(|&page| page < MOST_PAGES);
    page.ok_or_else(|| TextError::TooFar(line, text()))
}

#[cfg(test)]
mod tests {
    use std::convert::identity;

    use super::*;

    fn touches(text: &str) -> Result<Vec<(u32, u64)>, TextError> {
        let mut all = Vec::new();
        read_touches(text.as_bytes(), &mut Names::default(), identity, |object, page, _| {
            all.push((object, page));
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn both_forms_are_read() {
        assert_eq!(touches("# first\n4\n\n 28 \n16").unwrap(), [(0, 4), (0, 28), (0, 16)]);
        assert_eq!(touches("a,1\nb,c,2\na,3\n").unwrap(), [(0, 1), (1, 2), (0, 3)]);
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut_by_reads() {
        let text = "a,10\n\n# twelve\nb,200\nlong name,30\na,4";
        for capacity in 1..=text.len() {
            let (mut names, mut all) = (Names::default(), Vec::new());
            let cut = io::BufReader::with_capacity(capacity, text.as_bytes());
            read_touches(cut, &mut names, identity, |object, page, line| {
                all.push((object, page, line));
                Ok(())
            })
            .unwrap();
            assert_eq!(all, [(0, 10, 1), (1, 200, 4), (2, 30, 5), (0, 4, 6)], "{capacity}");
            assert_eq!(names.names, ["a", "b", "long name"]);
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let error = |text: &str| touches(text).unwrap_err().to_string();
        assert_eq!(error("1\nx\n"), "line 2: `x` is not a page index");
        assert_eq!(error("-1\n"), "line 1: `-1` is not a page index");
        assert_eq!(error(&"x".repeat(999)), format!("line 1: `{}…` is not a page index", "x".repeat(60)));
        assert!(
            error("1\n99999999999999999999999\n")
                .starts_with("line 2: page 99999999999999999999999 is beyond")
        );
        assert!(error("68719476736\n").starts_with("line 1: page 68719476736 is beyond"));
        assert_eq!(error(&"1".repeat(1 << 20)), "line 1: longer than 65536 bytes, which no touch is");
        let endless = io::BufReader::new(io::repeat(b'1'));
        let found = read_touches(endless, &mut Names::default(), identity, |_, _, _| Ok(()));
        assert!(matches!(found, Err(TextError::TooLong(1))));
        assert!(error("1\na,2\n").starts_with("line 2: lines with and without"));
        assert!(error("a,1\n\n2\n").starts_with("line 3: lines with and without"));
    }
}
