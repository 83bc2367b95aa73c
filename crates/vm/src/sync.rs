//! The only door to what threads share in the fault path: std's primitives, or shuttle's or loom's under test.

pub(crate) use prepage_sys::sync::*;
