//! Touches that are generated.

/// Pages of the modelled code section.
pub const CODE_PAGES: u64 = 11_264;

/// A compiler's code section (44 MiB), as pages in the order they are first touched.
///
/// The section is cut into runs of 1 to 11 pages, 64 % of them are used, in random order, each from its start to its end.
/// The random numbers are those of a 64-bit linear congruential generator that starts at `seed`, so the same seed gives
/// the same touches everywhere.
pub fn code_section(seed: u64) -> Vec<u64> {
    const USED: f64 = 0.64;
    let mut random = Random(seed);
    let mut runs = Vec::new();
    let mut start = 0;
    while start < CODE_PAGES {
        let end = CODE_PAGES.min(start + 1 + random.next() % 11);
        runs.push(start..end);
        start = end;
    }
    runs.retain(|_| random.share() < USED);
    for last in (1..runs.len()).rev() {
        runs.swap(last, random.next() as usize % (last + 1));
    }
    runs.into_iter().flatten().collect()
}

/// The generator of [`code_section`] (Knuth's MMIX constants, upper 31 bits).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number below 2³¹.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// The next number in [0, 1).
    pub fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 31) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_section_is_the_published_one() {
        let touches = code_section(1);
        assert_eq!((touches.len(), touches[0], touches[1]), (7351, 7643, 7644));
    }
}
