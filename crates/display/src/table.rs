//! Tables as all commands show them: on a terminal without lines and with numbers to the right, and in pages.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use crate::terminal::{printable, shortened};

/// Text keeps this many columns of a terminal, so that classes of faults and names of threads are always whole.
const TEXT_WIDTH_MIN: usize = 16;

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
    /// How a user of the terminal gets to see them: `--top N`. Empty where nothing is known to help.
    pub shown_by: String,
    /// Columns that lines which are too narrow for all do without, the first of these first.
    pub spare: Vec<usize>,
}

/// A table with these headings and no rows; the columns `numbers` (from 0) are aligned to the right.
pub fn table(headings: &[impl AsRef<str>], numbers: &[usize]) -> Table {
    let headings = headings.iter().enumerate().map(|(at, text)| match numbers.contains(&at) {
        true => Heading::number(text.as_ref()),
        false => Heading::text(text.as_ref()),
    });
    Table { headings: headings.collect(), ..Table::default() }
}

impl Table {
    /// The table with the text of `column` (from 0) always whole.
    pub fn whole(mut self, column: usize) -> Self {
        self.headings[column].is_whole = true;
        self
    }

    /// The table, of which lines that are too narrow do without `columns` (from 0), the first of these first.
    pub fn spare(mut self, columns: &[usize]) -> Self {
        self.spare = columns.to_vec();
        self
    }

    /// Adds a row of these cells.
    pub fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines of the table for a terminal of `width` columns ([`crate::terminal::width`]), [`printable`] and without spaces at
    /// their ends. The longest texts are [`shortened`] until the lines fit, as far as they can be; numbers never are, but
    /// [spare](Self::spare()) columns are left out. Last lines say how many rows are not shown, and which columns.
    pub fn lines(&self, width: Option<usize>) -> String {
        let left_out = width.map_or(&[][..], |width| self.too_many_in(width));
        let mut lines = self.without(left_out).rows_in(width);
        if self.left_out > 0 {
            lines += &format!("\n and {} more", self.left_out);
            if !self.shown_by.is_empty() {
                lines += &format!(" ({})", self.shown_by);
            }
        }
        if !left_out.is_empty() {
            let names: Vec<Cow<'_, str>> =
                left_out.iter().map(|&at| printable(&self.headings[at].text)).collect();
            lines += &format!("\n too narrow for: {} (COLUMNS=0)", names.join(", "));
        }
        lines
    }

    /// The spare columns that lines of `width` have no room for.
    fn too_many_in(&self, width: usize) -> &[usize] {
        let fits = |count: &usize| self.without(&self.spare[..*count]).rows_width(Some(width)) <= width;
        let count = (0..self.spare.len()).find(fits).unwrap_or(self.spare.len());
        &self.spare[..count]
    }

    /// The headings and rows but for these `columns`.
    fn without(&self, columns: &[usize]) -> Cow<'_, Self> {
        if columns.is_empty() {
            return Cow::Borrowed(self);
        }
        fn kept<T: Clone>(cells: &[T], columns: &[usize]) -> Vec<T> {
            let kept = cells.iter().enumerate().filter(|(at, _)| !columns.contains(at));
            kept.map(|(_, cell)| cell.clone()).collect()
        }
        Cow::Owned(Self {
            headings: kept(&self.headings, columns),
            rows: self.rows.iter().map(|row| kept(row, columns)).collect(),
            total: self.total.as_ref().map(|row| kept(row, columns)),
            ..Self::default()
        })
    }

    /// The rows in lines of `width`.
    fn rows_in(&self, width: Option<usize>) -> String {
        let headings = self.headings.iter().map(|heading| printable(&heading.text)).collect();
        let rows = self.rows.iter().chain(&self.total);
        let rows = rows.map(|row| row.iter().map(|cell| printable(&cell.text)).collect());
        let rows: Vec<Vec<Cow<'_, str>>> = std::iter::once(headings).chain(rows).collect();
        let widest = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max();
        let mut widths: Vec<usize> = (0..self.headings.len()).filter_map(widest).collect();
        if let Some(width) = width {
            widths = self.narrowed(&widths, width);
        }
        let cell = |((text, heading), width): ((&Cow<'_, str>, &Heading), &usize)| {
            let text = shortened(text, *width);
            let spaces = " ".repeat(width.saturating_sub(text.width()));
            if heading.is_number { format!(" {spaces}{text} ") } else { format!(" {text}{spaces} ") }
        };
        let line = |row: &Vec<Cow<'_, str>>| {
            let line: String = row.iter().zip(&self.headings).zip(&widths).map(cell).collect();
            line.trim_end().to_owned()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// How wide its lines are where all is shown.
    pub fn width(&self) -> usize {
        self.rows_width(None)
    }

    fn rows_width(&self, width: Option<usize>) -> usize {
        self.rows_in(width).lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
    }

    /// The widths of the columns in lines of `width`, where `widths` show all.
    fn narrowed(&self, widths: &[usize], width: usize) -> Vec<usize> {
        let limited = |most: usize| -> Vec<usize> {
            let limit = |(heading, width): (&Heading, &usize)| match heading.is_whole {
                true => *width,
                false => *width.min(&most.max(heading.text.width())),
            };
            self.headings.iter().zip(widths).map(limit).collect()
        };
        // A space stands on both sides of each cell, but not at the end of the line.
        let fits = |widths: &Vec<usize>| widths.iter().map(|width| width + 2).sum::<usize>() <= width + 1;
        let widest = widths.iter().copied().max().unwrap_or(0);
        let fitting = (TEXT_WIDTH_MIN..=widest).rev().map(limited).find(fits);
        fitting.unwrap_or_else(|| limited(TEXT_WIDTH_MIN))
    }
}

/// The heading of a column.
#[derive(Clone, Debug)]
pub struct Heading {
    pub(crate) text: String,
    pub(crate) is_number: bool,
    /// Whether its cells are never shortened.
    is_whole: bool,
}

impl Heading {
    /// A column of names.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_number: false, is_whole: false }
    }

    /// A column of numbers, aligned to the right.
    pub fn number(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_number: true, is_whole: true }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_way_to_the_terminal_s_width_and_numbers_do_not() {
        let mut files = table(&["faults", "comm", "kept", "file"], &[0]).whole(2);
        files.add_row([
            "1234567",
            "a-thread-of-cc1",
            "a-name-that-is-copied",
            "/usr/lib/gcc/x86_64-linux-gnu/12/cc1",
        ]);
        files.add_row(["8", "日本語", "b", "a function(with, its, arguments, and more)"]);
        let lines = |ends: [&str; 3]| {
            let [file, path, function] = ends;
            format!(
                "  faults  comm             kept                   {file}\n 1234567  a-thread-of-cc1  a-name-that-is-copied  {path}\n\
                 {:8}  日本語           b                      {function}",
                8
            )
        };
        let whole = lines([
            "file",
            "/usr/lib/gcc/x86_64-linux-gnu/12/cc1",
            "a function(with, its, arguments, and more)",
        ]);
        assert_eq!([None, Some(100)].map(|width| files.lines(width)), [whole.clone(), whole]);
        let narrow = files.lines(Some(80));
        assert_eq!(
            narrow,
            lines(["file", "…b/gcc/x86_64-linux-gnu/12/cc1", "a function(with, its, argumen…"])
        );
        assert!(
            narrow.lines().all(|line| line.width() <= 80) && narrow.lines().any(|line| line.width() == 80)
        );
        // No narrower than so.
        assert_eq!(files.lines(Some(1)), files.lines(Some(66)));
        assert!(files.lines(Some(1)).contains("  …inux-gnu/12/cc1\n"));
    }

    #[test]
    fn spare_columns_give_way_in_their_order_and_are_named() {
        let mut table = table(&["name", "count", "mean", "most"], &[1, 2, 3]).spare(&[3, 1]);
        table.add_row(["a", "12", "34", "56"]);
        let all = " name  count  mean  most\n a        12    34    56";
        assert_eq!([None, Some(24)].map(|width| table.lines(width)), [all, all]);
        assert_eq!(
            table.lines(Some(23)),
            " name  count  mean\n a        12    34\n too narrow for: most (COLUMNS=0)"
        );
        // No narrower than so.
        assert_eq!(
            table.lines(Some(1)),
            " name  mean\n a       34\n too narrow for: most, count (COLUMNS=0)"
        );
    }

    #[test]
    fn rows_that_are_left_out_are_said_to_be() {
        let mut files = table(&["a"], &[]);
        files.add_row(["b"]);
        assert_eq!(files.lines(None), " a\n b");
        files.left_out = 3;
        assert_eq!(files.lines(None), " a\n b\n and 3 more");
        files.shown_by = "--top N".into();
        assert_eq!((files.lines(None), files.width()), (" a\n b\n and 3 more (--top N)".into(), 2));
    }
}
