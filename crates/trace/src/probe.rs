//! What to observe.

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

/// What to report of the page cache (root).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCacheEvents {
    /// Nothing.
    #[default]
    None,
    /// Pages that the observed threads bring in.
    Added,
    /// Those, the pages they ask for by read(), the pages that a fault nearby maps for them, and those they write to.
    All,
}

/// Whom to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// These processes, with all their threads and all that they start. At least one.
    Processes(Vec<u32>),
    /// Every process of the machine but this one (root).
    System,
}

/// What a [`crate::Stream`] observes. Mappings, names, forks and exits it always reports.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Page faults.
    pub faults: FaultEvents,
    /// Context switches.
    pub switches: bool,
    /// The page cache.
    pub page_cache: PageCacheEvents,
    /// The calls that led to each fault, as part of [`crate::EventKind::FaultBegin`]. Only with
    /// [`FaultEvents::Costs`].
    pub stacks: bool,
    /// Largest ring a CPU, a power of two. An ordinary user's limit may allow less; see
    /// [`crate::Stream::ring_bytes`].
    pub ring_bytes: usize,
    /// How much of a ring may fill before [`crate::Stream::wait`] returns; `None` for a quarter.
    pub wakeup_bytes: Option<u32>,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            faults: FaultEvents::default(),
            switches: false,
            page_cache: PageCacheEvents::None,
            stacks: false,
            // 300 000 faults a second on two CPUs write 15 MB a second into each ring, which the reader empties
            // when a quarter is full: this leaves it 400 ms to be scheduled. Ordinary users get what their limit
            // allows.
            ring_bytes: 8 << 20,
            wakeup_bytes: None,
        }
    }
}
