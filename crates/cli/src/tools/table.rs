//! Tables as all commands print them: no lines, numbers to the right.

use comfy_table::{CellAlignment, Table, presets};

/// A table with these headings; the `numbers` columns (from 0) are aligned to the right.
pub fn table(headings: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
