//! What a policy costs in one number.

use std::str::FromStr;

use prepage_core::quantity::parse_ns;

use crate::description::DescriptionError;
use crate::outcome::Outcome;

/// Hard faults, reads and pages read, each weighed with a time: whether fewer of the first two outweigh more of the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostModel {
    /// Of a hard fault, in nanoseconds.
    pub fault_ns: u64,
    /// Of a read, whatever its size, in nanoseconds.
    pub io_ns: u64,
    /// Of a page read, in nanoseconds.
    pub page_ns: u64,
}

impl CostModel {
    /// `faults · fault_ns + reads · io_ns + pages · page_ns`, in nanoseconds.
    pub fn of(&self, outcome: &Outcome) -> u64 {
        let parts = [(outcome.hard, self.fault_ns), (outcome.io, self.io_ns), (outcome.read, self.page_ns)];
        parts.iter().fold(0, |sum, &(count, ns)| sum.saturating_add(count.saturating_mul(ns)))
    }
}

impl FromStr for CostModel {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let error = || {
            let form = "write fault=2us,io=100us,page=4us, any of them, each once";
            DescriptionError(format!("`{text}` is not a cost; {form}"))
        };
        let mut weights = [None; 3];
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(error)?;
            let at = ["fault", "io", "page"].iter().position(|name| *name == key).ok_or_else(error)?;
            let ns = parse_ns(value, "ns").ok_or_else(error)?;
            if weights[at].replace(ns).is_some() {
                return Err(error());
            }
        }
        let [fault_ns, io_ns, page_ns] = weights.map(Option::unwrap_or_default);
        Ok(Self { fault_ns, io_ns, page_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_are_multiplied_and_added() {
        let cost: CostModel = "fault=2us,io=100us,page=4us".parse().unwrap();
        let outcome = Outcome { hard: 3, io: 5, read: 32, ..Outcome::default() };
        assert_eq!(cost.of(&outcome), 3 * 2000 + 5 * 100_000 + 32 * 4000);
        assert_eq!("io=1us".parse(), Ok(CostModel { io_ns: 1000, ..CostModel::default() }));
        for text in ["", "2us", "fault", "fault=x", "faults=1us", "io=1us,io=2us", "io=-1us"] {
            assert!(text.parse::<CostModel>().is_err(), "{text}");
        }
    }
}
