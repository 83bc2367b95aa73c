//! What an event is to report: the safe face of `perf_event_attr`.

use perf_event_open_sys::bindings::{self as abi, perf_event_attr};

/// What makes an event count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A page fault begins.
    PageFaults,
    /// A page fault ended without reading from a device.
    MinorFaults,
    /// A page fault ended after reading from a device.
    MajorFaults,
    /// Nothing: the event only carries the records of [`Setup::tracking`].
    Dummy,
    /// The tracepoint of this id (see [`super::Tracefs`]).
    Tracepoint(u64),
}

/// One event to open.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What it counts; every count is a [`super::Sample`].
    pub source: Source,
    /// Report mappings, names, forks and exits too.
    pub tracking: bool,
    /// Report context switches too.
    pub switches: bool,
    /// Samples of [`Source::PageFaults`] tell the calls that led there, followed by frame pointers through the program's own code.
    pub callchain: bool,
    /// Leave out what happens in system calls, all that an ordinary user may see at `perf_event_paranoid` 2.
    pub exclude_kernel: bool,
    /// Wake the reader when this many bytes of the ring are unread.
    pub wakeup_bytes: u32,
}

impl Setup {
    /// Samples of `source` and no other records, from now on.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            tracking: false,
            switches: false,
            callchain: false,
            exclude_kernel: false,
            wakeup_bytes: 0,
        }
    }

    /// The kernel's form. `count_lost` asks for lost records in [`super::PerfEvent::counted`] (Linux 6.0), `inherit`
    /// for what the observed thread starts.
    pub(super) fn attr(&self, count_lost: bool, inherit: bool) -> perf_event_attr {
        let (type_, config) = match self.source {
            Source::PageFaults => (abi::PERF_TYPE_SOFTWARE, u64::from(abi::PERF_COUNT_SW_PAGE_FAULTS)),
            Source::MinorFaults => (abi::PERF_TYPE_SOFTWARE, u64::from(abi::PERF_COUNT_SW_PAGE_FAULTS_MIN)),
            Source::MajorFaults => (abi::PERF_TYPE_SOFTWARE, u64::from(abi::PERF_COUNT_SW_PAGE_FAULTS_MAJ)),
            Source::Dummy => (abi::PERF_TYPE_SOFTWARE, u64::from(abi::PERF_COUNT_SW_DUMMY)),
            Source::Tracepoint(id) => (abi::PERF_TYPE_TRACEPOINT, id),
        };
        // All samples begin alike. What follows in those of faults tells by its length which event wrote them
        // ([`super::Sample::fault`]): their id may be wrong. None of these words is part of other records' trailers.
        let more = match self.source {
            Source::Tracepoint(_) => abi::PERF_SAMPLE_RAW,
            Source::MinorFaults => abi::PERF_SAMPLE_PERIOD,
            Source::MajorFaults => abi::PERF_SAMPLE_PERIOD | abi::PERF_SAMPLE_WEIGHT,
            Source::PageFaults if self.callchain => {
                abi::PERF_SAMPLE_CALLCHAIN
                    | abi::PERF_SAMPLE_WEIGHT
                    | abi::PERF_SAMPLE_DATA_SRC
                    | abi::PERF_SAMPLE_TRANSACTION
            }
            Source::PageFaults | Source::Dummy => 0,
        };
        let mut attr = perf_event_attr::default();
        attr.type_ = type_;
        attr.size = size_of::<perf_event_attr>() as u32;
        attr.config = config;
        attr.sample_type = u64::from(
            abi::PERF_SAMPLE_IDENTIFIER
                | abi::PERF_SAMPLE_IP
                | abi::PERF_SAMPLE_TID
                | abi::PERF_SAMPLE_TIME
                | abi::PERF_SAMPLE_ADDR
                | more,
        );
        let lost = if count_lost { abi::PERF_FORMAT_LOST } else { 0 };
        attr.read_format = u64::from(abi::PERF_FORMAT_TOTAL_TIME_ENABLED | lost);
        attr.clockid = libc::CLOCK_MONOTONIC;
        attr.sample_period = 1;
        attr.wakeup_watermark = self.wakeup_bytes;
        attr.set_watermark(1);
        attr.set_use_clockid(1);
        attr.set_sample_id_all(1);
        attr.set_inherit(u64::from(inherit));
        attr.set_exclude_kernel(u64::from(self.exclude_kernel));
        attr.set_exclude_hv(1);
        attr.set_exclude_callchain_kernel(1);
        let tracking = u64::from(self.tracking);
        attr.set_mmap(tracking);
        attr.set_mmap_data(tracking);
        attr.set_mmap2(tracking);
        attr.set_comm(tracking);
        attr.set_comm_exec(tracking);
        attr.set_task(tracking);
        attr.set_context_switch(u64::from(self.switches));
        attr
    }
}
