//! Everything at once.

use super::{Cluster, ClusterPolicy, EntryState, FaultAt, Holes, Residency};

/// The first fault reads the whole window of the map entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slurp;

impl ClusterPolicy for Slurp {
    fn hard(&self, _: &mut EntryState, fault: &FaultAt, _: &impl Residency) -> Cluster {
        Cluster::new(fault.window, Holes::Skip)
    }
}
