//! Text that a terminal shows as it is, in lines that fit it.

use std::borrow::Cow;

/// Longer paths lose their beginning, so that lines fit a terminal.
const PATH_CHARS: usize = 56;

/// `text` with each control character as `\xHH`: names of threads and files may hold what a terminal obeys.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let shown = |c: char| match c.is_control() {
        true => format!("\\x{:02x}", u32::from(c)),
        false => c.into(),
    };
    text.chars().map(shown).collect::<String>().into()
}

/// `path` without its beginning, where it would make a line of a table longer than a terminal.
pub fn shortened(path: &str) -> String {
    let chars = path.chars().count();
    if chars <= PATH_CHARS {
        return path.to_owned();
    }
    let end: String = path.chars().skip(chars - PATH_CHARS + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::table;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(printable("\x1b[31mRED\x07\n\u{9b}é"), r"\x1b[31mRED\x07\x0a\x9bé");
        let mut table = table(&["name"], &[]);
        table.add_row(["a\nb"]);
        assert_eq!(table.trim_fmt(), " name\n a\\x0ab");
    }
}
