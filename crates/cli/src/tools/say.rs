//! What commands say on standard error. Nobody may read it, or its disk may be full: they go on all the same.

use std::fmt;
use std::io::{self, Write};

use prepage_display::table::Table;
use prepage_display::terminal::{self, printable};

/// Says a line, formatted as by `println!`. It stays one, whatever names are in it.
macro_rules! say {
    ($($what:tt)*) => { $crate::say::line(&format!($($what)*)) };
}

/// Writes `text`, and an end of line.
pub fn line(text: &str) {
    write(format_args!("{}\n", printable(text)));
}

/// Writes the lines of a table, and an empty one.
pub fn table(table: &Table) {
    write(format_args!("{}\n\n", table.lines(width())));
}

/// How wide tables on standard error may be.
pub fn width() -> Option<usize> {
    terminal::width(io::stderr())
}

/// Writes `what` and no end of line.
pub fn write(what: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(what);
}
