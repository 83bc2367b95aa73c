//! Times and shares as tables print them. The unit stands in the column's heading.

/// Nanoseconds as milliseconds, exact to 10 µs.
pub fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// Nanoseconds as microseconds: two digits below 10 µs, one from there on.
pub fn us(ns: f64) -> String {
    let us = ns / 1e3;
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// What share of `whole` is `part`, in percent; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / whole.max(1) as f64)
}

/// `value` as tables print it, `-` where it is not known.
pub fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
