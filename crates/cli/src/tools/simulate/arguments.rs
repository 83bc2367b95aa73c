//! What the options of `prepage simulate` are written like.

use prepage_core::policy::{Policy, PolicyError};
use prepage_core::quantity::parse_ns;
use prepage_core::{DeviceFigures, PageIndex, PageRange};
use prepage_simulate::pages::MOST_PAGES;

/// Most memory sizes in a list.
const MOST_SIZES: u64 = 10_000;

/// Pages of an object.
#[derive(Clone, Debug)]
pub struct Pages(pub Vec<PageRange>);

/// Memory sizes; none stands for all.
#[derive(Clone, Debug)]
pub struct Sizes(pub Vec<u64>);

/// `700ns`, `2us`.
pub fn time(text: &str) -> Result<u64, String> {
    let ns = parse_ns(text, "ns").filter(|&ns| ns <= DeviceFigures::LATENCY_NS_MAX);
    ns.ok_or_else(|| format!("`{text}` is not the time of a fault, up to 10s; write 700ns, 2us or 1.5ms"))
}

/// `3,10,16-31`: pages 3, 10 and 16 to 31.
pub fn pages(text: &str) -> Result<Pages, String> {
    let ranges = list(text)?;
    if let Some((_, last)) = ranges.iter().find(|(_, last)| *last >= MOST_PAGES) {
        return Err(format!("page {last} is beyond what can be mapped ({MOST_PAGES} pages)"));
    }
    let range = |(first, last)| PageRange::new(PageIndex(first), PageIndex(last + 1));
    Ok(Pages(ranges.into_iter().map(range).collect()))
}

/// `1-5,100`, or `all`.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes(Vec::new()));
    }
    let ranges = list(text)?;
    if ranges.iter().map(|(first, last)| (last - first).saturating_add(1)).fold(0, u64::saturating_add)
        > MOST_SIZES
    {
        return Err(format!("these are more than {MOST_SIZES} sizes"));
    }
    Ok(Sizes(ranges.into_iter().flat_map(|(first, last)| first..=last).collect()))
}

/// Policies separated by commas. What follows a comma and is an option (`cluster=16`) belongs to the policy before.
pub fn policies(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        let option = part.split_once('=').is_some_and(|(key, _)| !key.contains(':'));
        match names.last_mut() {
            Some(last) if option => {
                last.push(',');
                last.push_str(part);
            }
            _ => names.push(part.trim().to_owned()),
        }
    }
    names
}

/// The same, each the name of a policy.
pub fn known_policies(text: &str) -> Result<Vec<String>, PolicyError> {
    let names = policies(text);
    names.iter().try_for_each(|name| name.parse::<Policy>().map(drop))?;
    Ok(names)
}

/// `NAME=POLICY`. A policy's own options are written with `=` too.
pub fn advice(text: &str) -> Result<(String, String), String> {
    let (name, policy) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not advice; write NAME=POLICY, as in libc.so.6=sequential"))?;
    policy.parse::<Policy>().map_err(|error| error.to_string())?;
    Ok((name.to_owned(), policy.to_owned()))
}

/// First and last of each part of `1,4-7`.
fn list(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let number = |digits: &str| {
        digits.trim().parse::<u64>().map_err(|_| format!("`{digits}` is not a number; write 3,10,16-31"))
    };
    let part = |part: &str| {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last { Err(format!("`{part}` ends before it starts")) } else { Ok((first, last)) }
    };
    text.split(',').map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stay_with_their_policy() {
        assert_eq!(
            policies("none,adaptive:max=31,cluster=16,around:8:7"),
            ["none", "adaptive:max=31,cluster=16", "around:8:7"]
        );
    }

    #[test]
    fn lists_of_pages_and_sizes_are_read() {
        assert_eq!(sizes("1-3,100").unwrap().0, [1, 2, 3, 100]);
        assert_eq!(pages("10,16-31").unwrap().0[1].len(), 16);
        for text in ["x", "5-3", "1-", "99999999999999999999"] {
            assert!(pages(text).is_err() && sizes(text).is_err(), "{text}");
        }
        assert!(sizes("0-18446744073709551615").is_err() && pages("0-18446744073709551615").is_err());
    }
}
