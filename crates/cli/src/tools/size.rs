//! Sizes as arguments.

use prepage_residency::parse_size;

/// `4k`, `100M`; a number without a unit is bytes.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// The same of something that takes room: not 0.
pub fn size_above_zero(text: &str) -> Result<u64, String> {
    size(text)
        .and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("0 bytes are nothing to measure".into()) })
}
