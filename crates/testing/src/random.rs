//! Numbers by which tests decide.

/// A stream of numbers that is the same in each run (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Another stream for each seed.
    pub fn new(seed: u64) -> Self {
        // The only state that is its own successor is 0.
        Self((0x9e37_79b9_7f4a_7c15 ^ seed).max(1))
    }

    /// The next number, below `limit`.
    ///
    /// # Panics
    /// Where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
