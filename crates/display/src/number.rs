//! Times, sizes and shares as people read them. In tables the unit stands in the column's heading.

use prepage_core::PAGE_SIZE;

/// Nanoseconds as milliseconds, exact to 10 µs.
pub fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// Nanoseconds as microseconds: two digits below 10 µs, one from there on.
pub fn us(ns: f64) -> String {
    let us = ns / 1e3;
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// What share of `whole` is `part`, in percent; `None` of nothing.
pub fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

/// Pages as a size, see [`size`].
pub fn pages_as_size(pages: u64) -> String {
    size(pages.saturating_mul(PAGE_SIZE))
}

/// Bytes with their unit: `1.5M`, units of 1024 as in arguments.
pub fn size(bytes: u64) -> String {
    let units = [("T", 1u64 << 40), ("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)];
    // Less than a unit that would be rounded to 1024 of the next smaller one is that unit.
    let is_one =
        |unit: u64| bytes >= unit || (unit > 1 << 10 && bytes as f64 / (unit >> 10) as f64 >= 1023.95);
    match units.into_iter().find(|(_, unit)| is_one(*unit)) {
        Some((name, unit)) if bytes.is_multiple_of(unit) => format!("{}{name}", bytes / unit),
        Some((name, unit)) => format!("{:.1}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}"),
    }
}

/// How long ago something was, with its unit.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `value` as tables print it, `-` where it is not known.
pub fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_arguments_are() {
        let shown: Vec<String> = [0, 1, 256, 384, 1 << 20].into_iter().map(pages_as_size).collect();
        assert_eq!(shown, ["0", "4k", "1M", "1.5M", "4G"]);
        // What is nearly the next unit is that.
        let nearly =
            [1023, (1 << 20) - 1, (1 << 30) - (51 << 10), (1 << 30) - (52 << 10), (1 << 30) - (1 << 20)];
        assert_eq!(nearly.map(size), ["1023", "1.0M", "1.0G", "1023.9M", "1023M"]);
        assert_eq!(pages_as_size(262_143), "1.0G");
    }

    #[test]
    fn of_nothing_there_is_no_percentage() {
        assert_eq!([percent(1, 4), percent(0, 0)], [Some(25.0), None]);
    }

    #[test]
    fn ages_are_in_units_that_people_would_use() {
        assert_eq!([119, 120, 7200, 200_000].map(age), ["119 s", "2 min", "2 h", "2 days"]);
    }
}
