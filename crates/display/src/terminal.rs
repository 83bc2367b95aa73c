//! Tables as all commands print them: no lines, numbers to the right.

use std::borrow::Cow;
use std::fmt::Display;

use comfy_table::{CellAlignment, presets};

/// Longer paths lose their beginning, so that lines fit a terminal.
const PATH_CHARS: usize = 56;

/// A table whose cells are [`printable`].
#[derive(Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Adds a row of these cells.
    pub fn add_row<C: Display>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.add_row(cells.into_iter().map(|cell| printable(&cell.to_string()).into_owned()));
    }

    /// The lines of the table, without spaces at their ends.
    pub fn trim_fmt(&self) -> String {
        self.0.trim_fmt()
    }
}

/// A table with these headings; the columns `numbers` (from 0) are aligned to the right.
pub fn table(headings: &[impl AsRef<str>], numbers: &[usize]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(headings.iter().map(AsRef::as_ref));
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Table(table)
}

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

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(printable("\x1b[31mRED\x07\n\u{9b}é"), r"\x1b[31mRED\x07\x0a\x9bé");
        let mut table = table(&["name"], &[]);
        table.add_row(["a\nb"]);
        assert_eq!(table.trim_fmt(), " name\n a\\x0ab");
    }
}
