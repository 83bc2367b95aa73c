//! What commands say on standard error. Nobody may read it, or its disk may be full: they go on all the same.

use std::fmt;
use std::io::{self, Write};

/// Says a line, formatted as by `println!`.
macro_rules! say {
    ($($what:tt)*) => { $crate::say::write(format_args!("{}\n", format_args!($($what)*))) };
}

/// Writes `what` and no end of line.
pub fn write(what: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(what);
}
