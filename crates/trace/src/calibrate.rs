//! What observing a fault costs.

use std::time::Duration;

use prepage_sys::fresh_pages;
use prepage_sys::perf::PerfError;

use crate::probe::{FaultEvents, Probe};
use crate::stream::Stream;

/// Faults of one round.
const ROUND_FAULTS: usize = 128;
/// Rounds with and without observation, in turns: some 2,000 faults, 5 ms.
const ROUNDS: usize = 9;
/// Holds the records of a round with long chains, and is within every user's limit.
const RING_BYTES: usize = 128 << 10;

/// What observation adds to a fault, measured on faults of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCost {
    /// All that it adds, so much longer the program runs for each fault.
    pub total_ns: u64,
    /// What lies between the time stamps of a fault's beginning and end, and so would count as the fault's cost.
    pub inside_ns: u64,
}

impl ProbeCost {
    /// Measures it for `probe`, which must be one of [`FaultEvents::Costs`].
    ///
    /// The kernel takes a sample's time first, then writes it. What lies between the two time stamps of a fault is
    /// therefore the writing of the first sample, with its chain of calls, and the time-taking of the second: as much
    /// as one sample without the chain costs, and the chain.
    pub fn measure(probe: &Probe) -> Result<Self, PerfError> {
        assert_eq!(probe.faults, FaultEvents::Costs, "both ends of a fault are observed");
        let plain_ns = added_ns(&Probe { stacks: false, ..probe.clone() })?;
        let total_ns = if probe.stacks { added_ns(probe)?.max(plain_ns) } else { plain_ns };
        Ok(Self { total_ns, inside_ns: total_ns - plain_ns / 2 })
    }
}

/// By how much a fault of this process takes longer under `probe`: the difference of the shortest rounds. What else the
/// machine does only makes rounds longer, and were it taken off, short faults would seem to cost nothing.
fn added_ns(probe: &Probe) -> Result<u64, PerfError> {
    let probe = Probe { ring_bytes: RING_BYTES, wakeup_bytes: None, ..probe.clone() };
    let mut stream = Stream::attach(std::process::id(), &probe)?;
    let touch = || {
        fresh_pages::touch(ROUND_FAULTS)
            .map_err(|source| PerfError::Other { action: "mapping memory to measure with", source })
    };
    let mut shortest = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (observed, shortest) in shortest.iter_mut().enumerate() {
            stream.set_enabled(observed == 1)?;
            *shortest = touch()?.min(*shortest);
        }
        stream.finish().for_each(drop);
    }
    let [alone, observed] = shortest;
    Ok((observed.saturating_sub(alone).as_nanos() / ROUND_FAULTS as u128) as u64)
}
