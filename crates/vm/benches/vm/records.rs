//! What it costs to keep every fault.

use prepage_core::policy::Neighbours;
use prepage_vm::{MapOptions, Vm, VmOptions};

use crate::resident::{Bytes, touch_all};
use crate::rounds::{Aim, compare, way};

const PAGES: u64 = 1 << 15;

pub fn measure() -> Option<Aim> {
    let with = [0, 1 << 17].map(|capacity| {
        let vm = Vm::new(VmOptions::default().record_faults(capacity)).unwrap();
        let object = vm.source("bytes", Bytes(PAGES * 4096)).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        (vm, object)
    });
    let run = |index: usize| {
        let (vm, object) = &with[index];
        let options =
            MapOptions::private().policy("none".parse().expect("a policy")).neighbours(Neighbours::Block(1));
        let map = vm.map(object, &options).unwrap();
        let rate = touch_all(map.as_slice(), 1);
        let trace = vm.take_trace();
        assert_eq!((trace.faults.len() as u64, trace.facts.unrecorded), (PAGES * index as u64, 0));
        rate
    };
    let ways = vec![way("not recorded", || run(0)), way("recorded", || run(1))];
    let scores = compare("every fault recorded, inline, cluster 1", "faults/s", ways);
    Aim::at_least("faults recorded: rate to that without", scores.ratio("recorded", "not recorded"), 0.95)
}
