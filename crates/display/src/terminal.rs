//! Tables as all commands print them: no lines, numbers to the right.

use comfy_table::{CellAlignment, Table, presets};

/// Longer paths lose their beginning, so that lines fit a terminal.
const PATH_CHARS: usize = 56;

/// A table with these headings; the columns `numbers` (from 0) are aligned to the right.
pub fn table(headings: &[impl AsRef<str>], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings.iter().map(AsRef::as_ref));
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
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
