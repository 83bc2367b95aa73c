//! All tests of this crate by what it offers to others, compiled and linked once.

mod chain;
mod merging;
mod prediction;
