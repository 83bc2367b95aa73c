//! Sizes, times and numbers of things as people write them.

/// Times from here on are refused: 36 years, so that sums of times stay in range.
const TIME_NS_MAX: u64 = 1 << 60;

/// Bytes: `4096`, `4k`, `1.5M`, `2GiB`; units are powers of 1024, in either case. `None` for anything else.
///
/// ```
/// use prepage_core::quantity::parse_size;
/// assert_eq!(parse_size("1.5k"), Some(1536));
/// assert_eq!(parse_size("many"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_lowercase();
    let prefix = unit.strip_suffix("ib").or(unit.strip_suffix('b').filter(|prefix| prefix.is_empty()));
    let shift = match prefix.unwrap_or(&unit) {
        "" if unit != "ib" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    scaled(number, 1 << shift)
}

/// Nanoseconds: `80us`, `0.5ms`, `2s`, `10m`, `1h`; a number without a unit counts in `unit`. `None` for anything else, and
/// from 36 years on.
///
/// ```
/// use prepage_core::quantity::parse_ns;
/// assert_eq!(parse_ns("1.5ms", "ns"), Some(1_500_000));
/// assert_eq!(parse_ns("2", "s"), Some(2_000_000_000));
/// ```
pub fn parse_ns(text: &str, unit: &str) -> Option<u64> {
    let (number, written) = split(text);
    let unit_ns = match if written.is_empty() { unit } else { written } {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    scaled(number, unit_ns).filter(|&ns| ns < TIME_NS_MAX)
}

/// So many things.
///
/// ```
/// use prepage_core::quantity::counted;
/// assert_eq!(counted(1, "file"), "1 file");
/// assert_eq!(counted(2, "file"), "2 files");
/// assert_eq!(counted(2, "process"), "2 processes");
/// assert_eq!(counted(2, "touch"), "2 touches");
/// ```
pub fn counted(count: usize, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(*end)) => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

/// A number, and the unit behind it.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// `number` times `unit`, fractions rounded down.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // More digits than these are below the smallest unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let (whole, part) = (whole.parse::<u64>().ok()?, fraction.parse::<u64>().ok()?);
    let unit = u128::from(unit);
    let scaled = u128::from(whole) * unit + u128::from(part) * unit / 10_u128.pow(fraction.len() as u32);
    u64::try_from(scaled).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("100 M", 100 << 20),
            ("2GiB", 2 << 30),
            ("0.5T", 1 << 39),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "-1", "+1", "4x", "4ib", "99999999999T", "4kk", "1.2.3", ".", "4é", "1e3"] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }

    #[test]
    fn things_are_counted_as_they_are_spelt() {
        let twos = ["page", "path", "length", "match", "hash", "class", "index"].map(|noun| counted(2, noun));
        let spelt = ["2 pages", "2 paths", "2 lengths", "2 matches", "2 hashes", "2 classes", "2 indexes"];
        assert_eq!(twos, spelt);
        assert_eq!((counted(0, "path"), counted(1, "match")), ("0 paths".to_owned(), "1 match".to_owned()));
    }

    #[test]
    fn times_have_a_unit_or_take_the_callers() {
        for (text, ns) in [("80us", 80_000), ("0.5ms", 500_000), ("2s", 2_000_000_000), ("7", 7)] {
            assert_eq!(parse_ns(text, "ns"), Some(ns), "{text}");
        }
        assert_eq!(parse_ns("1.5", "h"), Some(5_400_000_000_000));
        for text in ["", "ms", "-1s", "1d", "0x1s", "1152921504606846976ns"] {
            assert_eq!(parse_ns(text, "ns"), None, "{text:?}");
        }
    }
}
