//! Sources that take long: a whole range asked for at once, and touches while thousands of reads ahead wait.

use std::thread;
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use prepage_vm::{Advice, MapOptions, Source, SourceError, Vm, VmOptions};

use crate::rounds::{Aim, compare, seconds, way};

/// What a request takes.
const REQUEST: Duration = Duration::from_millis(100);

/// Takes its time for each read.
struct Far {
    len_bytes: u64,
    takes: Duration,
}

impl Source for Far {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        thread::sleep(self.takes);
        into.fill(7);
        Ok(())
    }
}

pub fn measure() -> Vec<Aim> {
    [populate(), demand()].into_iter().flatten().collect()
}

/// 256 MiB in requests of 1 MiB that take 100 ms each, 64 at once.
fn populate() -> Option<Aim> {
    const LEN_BYTES: u64 = 256 << 20;
    let ways = vec![
        way("one request", || {
            let source = Far { len_bytes: 4096, takes: REQUEST };
            1.0 / seconds(|| source.read(0, &mut [0; 4096]).expect("it never fails"))
        }),
        way("populate", || {
            let vm = Vm::new(VmOptions::default()).unwrap();
            let object = vm.source("far", Far { len_bytes: LEN_BYTES, takes: REQUEST }).unwrap();
            let map = vm.map(&object, &MapOptions::shared()).unwrap();
            1.0 / seconds(|| map.populate(map.window()).unwrap())
        }),
    ];
    let scores = compare("256 MiB, 256 requests of 100 ms, 64 at once", "times a second", ways);
    scores.aim_at_most("populate of 256 MiB: in times of one request", "one request", "populate", 5.0)
}

/// Touches of pages that take 20 ms to read, while 10,000 reads ahead of the same source wait.
fn demand() -> Option<Aim> {
    const TAKES: Duration = Duration::from_millis(20);
    const TOUCHES: u64 = 20;
    let pages = 1 << 22;
    let touches = |crowded: bool| {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.source("far", Far { len_bytes: pages * 4096, takes: TAKES }).unwrap();
        let options = MapOptions::shared().policy("none".parse().expect("a policy"));
        let map = vm.map(&object, &options).unwrap();
        if crowded {
            // Ranges of 1 MiB far from what is touched.
            for piece in 0..10_000 {
                let start = PageIndex(piece * 256);
                map.advise(Advice::WillNeed(PageRange::new(start, PageIndex(start.0 + 256)))).unwrap();
            }
        }
        let mut took: Vec<Duration> = Vec::new();
        for touch in 0..TOUCHES {
            let at = ((3 << 20) + touch * 1000) * 4096;
            let began = Instant::now();
            assert_eq!(std::hint::black_box(map.as_slice())[at as usize], 7);
            took.push(began.elapsed());
        }
        took.sort();
        1.0 / took[took.len() / 2].as_secs_f64()
    };
    let ways = vec![
        way("touches alone", move || touches(false)),
        way("touches while 10,000 wait", move || touches(true)),
    ];
    let scores = compare("demand faults of 20 ms each, median", "a second", ways);
    let what = "a demand fault while 10,000 reads ahead wait: to alone";
    scores.aim_at_most(what, "touches alone", "touches while 10,000 wait", 1.2)
}
