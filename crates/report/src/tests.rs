use prepage_core::{Fault, FaultClass, ThreadIndex};

/// A fault of which only class and cost matter.
pub(crate) fn fault(class: FaultClass, cost_ns: Option<u64>) -> Fault {
    Fault { cost_ns, ..Fault::new(0, ThreadIndex(0), 0, class) }
}
