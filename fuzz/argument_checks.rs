//! What must hold of any text given as an option's value: each function panics where it does not.

use prepage_bench::Pattern;
use prepage_core::policy::Policy;
use prepage_core::quantity::parse_ns;
use prepage_residency::{ByteRange, parse_size};
use prepage_simulate::device::DeviceModel;

#[path = "../crates/cli/src/tools/simulate/arguments.rs"]
#[allow(dead_code, reason = "the fields are for the command")]
mod arguments;

/// The text as each kind of value: sizes, ranges, durations, lists, policies, devices and patterns.
pub fn argument(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&size.to_string()).ok(), Some(size));
    }
    if let Ok(range) = text.parse::<ByteRange>() {
        assert!(range.end.is_none_or(|end| end > range.start), "{range:?}");
        let size_bytes = 10 << 20;
        assert!(range.pages(size_bytes).bytes() <= size_bytes);
    }
    if let Ok(time) = arguments::time(text) {
        assert_eq!(parse_ns(&format!("{time}ns"), "s"), Some(time));
    }
    if let Ok(pages) = arguments::pages(text) {
        assert!(pages.0.iter().all(|range| !range.is_empty()));
    }
    if let Ok(sizes) = arguments::sizes(text) {
        assert!(sizes.0.len() <= 10_000);
    }
    let names = arguments::policies(text);
    for policy in names.iter().filter_map(|name| name.parse::<Policy>().ok()) {
        let written = policy.to_string();
        let again = written.parse::<Policy>().unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(again.to_string(), written);
    }
    if let Ok(device) = text.parse::<DeviceModel>() {
        assert_eq!(device.to_string().parse::<DeviceModel>().as_ref(), Ok(&device));
    }
    if let Ok(pattern) = text.parse::<Pattern>() {
        assert_eq!(pattern.to_string().parse::<Pattern>().ok(), Some(pattern));
    }
}
