//! What the numbers in faults mean.

use prepage_core::{Object, Stack, Thread, Trace};

/// The tables that faults point into.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tables<'a> {
    /// Indexed by [`prepage_core::ObjectId`].
    pub objects: &'a [Object],
    /// Indexed by [`prepage_core::ThreadIndex`].
    pub threads: &'a [Thread],
    /// Indexed by [`prepage_core::StackId`].
    pub stacks: &'a [Stack],
}

impl<'a> From<&'a Trace> for Tables<'a> {
    fn from(trace: &'a Trace) -> Self {
        Self { objects: &trace.objects, threads: &trace.threads, stacks: &trace.stacks }
    }
}
