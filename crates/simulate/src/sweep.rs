//! One policy with a row of sizes.

use prepage_core::policy::Policy;

use crate::description::DescriptionError;

/// The policies of `text`: `aligned:4..512` is aligned:4, aligned:8, aligned:16 … aligned:512, each twice the last.
///
/// # Errors
/// Text without two ends, ends that are no numbers or in the wrong order, names of no policy.
pub fn sweep(text: &str) -> Result<Vec<String>, DescriptionError> {
    let form = || DescriptionError(format!("`{text}` is not a sweep; it is written aligned:4..512"));
    let (before, last) = text.split_once("..").ok_or_else(form)?;
    let digits = before.len() - before.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, first) = before.split_at(digits);
    let (first, last): (u64, u64) = (first.parse().map_err(|_| form())?, last.parse().map_err(|_| form())?);
    if first == 0 || first > last {
        return Err(form());
    }
    let sizes = std::iter::successors(Some(first), |size| size.checked_mul(2).filter(|&size| size <= last));
    sizes
        .map(|size| {
            let policy = format!("{stem}{size}");
            match policy.parse::<Policy>() {
                Ok(_) => Ok(policy),
                Err(error) => Err(DescriptionError(error.to_string())),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_between_the_ends() {
        assert_eq!(sweep("aligned:4..16").unwrap(), ["aligned:4", "aligned:8", "aligned:16"]);
        assert_eq!(sweep("adaptive:max=15..40").unwrap(), ["adaptive:max=15", "adaptive:max=30"]);
        for text in
            ["aligned:4", "aligned:8..4", "aligned:0..4", "aligned:..4", "alined:4..8", "aligned:4..x"]
        {
            assert!(sweep(text).is_err(), "{text}");
        }
    }
}
