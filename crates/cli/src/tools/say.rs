//! What commands say on standard error. Nobody may read it, or its disk may be full: they go on all the same.

use std::fmt;
use std::io::{self, Write};

use prepage_display::terminal::{self, printable};

/// Says a line, formatted as by `println!`, or several.
macro_rules! say {
    ($($what:tt)*) => { $crate::say::lines(&format!($($what)*)) };
}

/// Writes `text`, whatever names are in it, and an end of line.
pub fn lines(text: &str) {
    text.split('\n').for_each(|line| write(format_args!("{}\n", printable(line))));
}

/// How wide tables on standard error may be.
pub fn width() -> Option<usize> {
    terminal::width(io::stderr())
}

/// Writes `what` and no end of line.
pub fn write(what: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(what);
}
