//! Text that a terminal shows as it is, in lines that fit it.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How many columns lines on `stream` may have: what COLUMNS says, as watch(1) sets it for the command whose output it shows,
/// else as many as the terminal has; `None` where `stream` is no terminal, for any number.
pub fn width(stream: impl AsFd) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(stream).ok().map(|size| size.ws_col.into());
    said.or_else(asked).filter(|&columns| columns > 0)
}

/// How many lines the terminal `stream` shows; `None` where it is no terminal, or does not say.
pub fn height(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(size.ws_row.into()).filter(|&lines| lines > 0)
}

/// `text` with each character that a terminal obeys as `\xHH`: names of threads and files may hold any.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let shown = |c: char| match is_obeyed(c) {
        true => format!("\\x{:02x}", u32::from(c)),
        false => c.into(),
    };
    text.chars().map(shown).collect::<String>().into()
}

/// JSON `text` that says the same with each character that a terminal obeys as `\uHHHH`. Line breaks, which in JSON stand between values
/// alone, stay.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| is_obeyed(c) && c != '\n';
    if !text.contains(is_shown) {
        return text.into();
    }
    // All of them have one unit of UTF-16.
    let shown = |c: char| if is_shown(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    text.chars().map(shown).collect::<String>().into()
}

/// Control characters, and those that end a line or turn the direction of what follows.
fn is_obeyed(c: char) -> bool {
    let turns = ['\u{61c}', '\u{200e}', '\u{200f}'];
    c.is_control() || turns.contains(&c) || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` in at most `width` columns: a path loses its beginning, other text its end.
pub fn shortened(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let fitting_bytes = |letters: &mut dyn Iterator<Item = char>| -> usize {
        let mut taken = 0;
        let fits = |letter: &char| {
            taken += letter.width().unwrap_or(0);
            // One column is the mark's.
            taken < width
        };
        letters.take_while(fits).map(char::len_utf8).sum()
    };
    if text.starts_with('/') || (text.contains('/') && !text.contains(' ')) {
        let end = &text[text.len() - fitting_bytes(&mut text.chars().rev())..];
        format!("…{end}").into()
    } else {
        let beginning = &text[..fitting_bytes(&mut text.chars())];
        format!("{beginning}…").into()
    }
}

/// Lines for people: each is [`printable`], whatever names are in it.
#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// Writes `bytes`, whole characters, as formatting gives them.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        for part in text.split_inclusive('\n') {
            let line = part.strip_suffix('\n');
            self.0.write_all(printable(line.unwrap_or(part)).as_bytes())?;
            if line.is_some() {
                self.0.write_all(b"\n")?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::table;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(printable_json("{\n\"\u{9b}é\u{202e}\"}"), "{\n\"\\u009bé\\u202e\"}");
        assert_eq!(printable("\x1b[31mRED\x07\n\u{9b}é\u{202e}"), r"\x1b[31mRED\x07\x0a\x9bé\x202e");
        let mut table = table(&["na\tme"], &[]);
        table.add_row(["a\nb"]);
        assert_eq!(table.lines(None), " na\\x09me\n a\\x0ab");
        let mut lines = Lines(Vec::new());
        let name = "\x1b[2J";
        write!(lines, "a {name}b\n\r\n").unwrap();
        assert_eq!(lines.0, b"a \\x1b[2Jb\n\\x0d\n");
    }
}
