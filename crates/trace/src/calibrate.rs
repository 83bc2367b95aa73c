//! What observing a fault costs.

use std::time::Duration;

use prepage_sys::fresh_pages;
use prepage_sys::perf::PerfError;

use crate::probe::{FaultEvents, Probe};
use crate::stream::Stream;

/// Faults of one round: some 40 µs, in which others seldom want the processor.
const ROUND_FAULTS: usize = 16;
/// Rounds with and without observation, in turns: some 2,000 faults, 5 ms.
const ROUNDS: usize = 72;
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
    /// Measures it for `probe`, which must be one of [`FaultEvents::Costs`]. On fresh pages, that no event of the page cache is about, and with a reader
    /// that is not woken up: where these are asked for, a fault takes longer by more.
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

/// By how much a fault of this process takes longer under `probe`.
fn added_ns(probe: &Probe) -> Result<u64, PerfError> {
    let probe = Probe { ring_bytes: RING_BYTES, ..probe.clone() };
    let mut stream = Stream::attach(std::process::id(), &probe)?;
    added_in_rounds(|observed| {
        stream.set_enabled(observed)?;
        let took = fresh_pages::touch(ROUND_FAULTS)
            .map_err(|source| PerfError::Other { action: "mapping memory to measure with", source })?;
        stream.finish().for_each(drop);
        Ok(took)
    })
}

/// By how much a fault takes longer when it is observed: the difference of the shortest rounds. `round` says how long
/// [`ROUND_FAULTS`] faults took, observed or not. What else the machine does only makes rounds longer, and were it taken off,
/// short faults would seem to cost nothing.
fn added_in_rounds(mut round: impl FnMut(bool) -> Result<Duration, PerfError>) -> Result<u64, PerfError> {
    let mut shortest = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (observed, shortest) in shortest.iter_mut().enumerate() {
            *shortest = round(observed == 1)?.min(*shortest);
        }
    }
    let [alone, observed] = shortest;
    Ok((observed.saturating_sub(alone).as_nanos() / ROUND_FAULTS as u128) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of the processor now and then does not pass for what the probe takes.
    #[test]
    fn a_processor_that_is_ours_for_moments_makes_the_probe_no_dearer() {
        const OURS_NS: u64 = 200_000;
        const OTHERS_NS: u64 = 3_000_000;
        const ALONE_NS: u64 = 1_000;
        const OBSERVED_NS: u64 = 3_000;
        // What was worked until now.
        let mut worked_ns = 0;
        let added = added_in_rounds(|observed| {
            let work_ns = ROUND_FAULTS as u64 * if observed { OBSERVED_NS } else { ALONE_NS };
            let interrupted = (worked_ns + work_ns) / OURS_NS - worked_ns / OURS_NS;
            worked_ns += work_ns;
            Ok(Duration::from_nanos(work_ns + interrupted * OTHERS_NS))
        });
        assert_eq!(added.expect("no error"), OBSERVED_NS - ALONE_NS);
    }
}
