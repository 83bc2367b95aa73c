//! Numbers that look random and are the same in every run.

/// SplitMix64 (Steele, Lea, Flood 2014): shuffling and resampling need nothing better.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        let state = self.0;
        self.0 = state.wrapping_add(STEP);
        mix(state)
    }

    /// The next number, below `end`, which is far smaller than 2^64 and not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// The numbers from 0 to `count` in a random order (Fisher and Yates).
    pub fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at as u64 + 1) as usize);
        }
        order
    }
}

/// What [`SplitMix`] makes of the state `value`: every bit depends on every bit of `value`, and no two values give the same.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the authors' own program for the seed 0.
    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = SplitMix::new(0);
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
        let mut order = random.shuffled(100);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..100));
    }
}
