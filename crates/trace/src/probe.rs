//! What to observe.

pub use prepage_sys::perf::Start;

/// Which page-fault events to ask the kernel for. Each more costs the observed program time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultEvents {
    /// None.
    None,
    /// The ends of faults that read from a device.
    DiskOnly,
    /// The ends of all faults.
    Ends,
    /// Beginnings and ends, which together give each fault's cost.
    #[default]
    Costs,
}

/// What a [`crate::Stream`] observes. Mappings, names, forks and exits it always reports.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Page faults.
    pub faults: FaultEvents,
    /// Context switches.
    pub switches: bool,
    /// Pages added to the page cache by the observed threads (root).
    pub page_cache: bool,
    /// When to begin.
    pub start: Start,
    /// Largest ring a CPU, a power of two. An ordinary user's limit may allow less; see
    /// [`crate::Stream::ring_bytes`].
    pub ring_bytes: usize,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            faults: FaultEvents::default(),
            switches: false,
            page_cache: false,
            start: Start::Now,
            // 300 000 faults a second on two CPUs write 15 MB a second into each ring, which the reader empties
            // when a quarter is full: this leaves it 400 ms to be scheduled. Ordinary users get what their limit
            // allows.
            ring_bytes: 8 << 20,
        }
    }
}
