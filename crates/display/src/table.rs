//! Tables as all commands show them: on a terminal without lines and with numbers to the right, and in pages.

use comfy_table::{CellAlignment, presets};

use crate::terminal::printable;

/// A table; `Document::table` puts it into a page, with the colours of its cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What stands above the columns.
    pub headings: Vec<Heading>,
    /// The rows, each with one cell a column.
    pub rows: Vec<Vec<Cell>>,
    /// A last row, of all.
    pub total: Option<Vec<Cell>>,
    /// Rows that are not shown.
    pub left_out: usize,
}

/// A table with these headings and no rows; the columns `numbers` (from 0) are aligned to the right.
pub fn table(headings: &[impl AsRef<str>], numbers: &[usize]) -> Table {
    let texts = headings.iter().map(|text| text.as_ref().to_owned()).enumerate();
    let headings = texts.map(|(at, text)| Heading { text, number: numbers.contains(&at) });
    Table { headings: headings.collect(), ..Table::default() }
}

impl Table {
    /// Adds a row of these cells.
    pub fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines of the table for a terminal, [`printable`] and without spaces at their ends.
    pub fn trim_fmt(&self) -> String {
        let mut table = comfy_table::Table::new();
        let headings = self.headings.iter().map(|heading| &heading.text);
        table.load_style(presets::NOTHING).set_header(headings);
        for (column, heading) in table.column_iter_mut().zip(&self.headings) {
            if heading.number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in self.rows.iter().chain(&self.total) {
            table.add_row(row.iter().map(|cell| printable(&cell.text)));
        }
        table.trim_fmt()
    }
}

/// The heading of a column.
#[derive(Clone, Debug)]
pub struct Heading {
    pub(crate) text: String,
    pub(crate) number: bool,
}

impl Heading {
    /// A column of names.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: false }
    }

    /// A column of numbers, aligned to the right.
    pub fn number(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: true }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub(crate) text: String,
    /// `" less"` or `" more"` where the cell is coloured.
    pub(crate) class: &'static str,
    /// How strongly it is coloured, in percent.
    pub(crate) share: f64,
}

impl Cell {
    /// A count, coloured by how far it lies below or above `base`.
    pub fn compared(count: u64, base: u64) -> Self {
        let class = match count.cmp(&base) {
            std::cmp::Ordering::Less => " less",
            std::cmp::Ordering::Equal => "",
            std::cmp::Ordering::Greater => " more",
        };
        let share = 100.0 * count.abs_diff(base) as f64 / base.max(count).max(1) as f64;
        // A stronger colour would hide the number.
        Self { text: count.to_string(), class, share: share.min(60.0) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        number.to_string().into()
    }
}
