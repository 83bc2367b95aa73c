//! What clustering policies are worth in time: the same touches of a real cold file under each of them, through the
//! user-space VM and by reads as a kernel would make them.
//!
//! Every read is a direct one, so that no page cache helps. The program computes nothing between touches: the times are of
//! faults and reads alone, and the gain of a whole program is smaller by what it computes.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use prepage_core::policy::{FaultAt, Policy, Residency};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_simulate::Input;
use prepage_vm::{MapOptions, Vm, VmOptions};

use crate::direct::DirectFile;
use crate::error::BenchError;

/// Objects begin at multiples of this many pages of the file, as they would in files of their own.
const OBJECT_ALIGNMENT: u64 = 512;

/// Pages that one system call reads at most.
const READ_PAGES: u64 = 512;

prepage_core::named! {
    /// How the faults are served.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Way {
        /// By the user-space VM, in the thread that touches.
        Vm = "vm",
        /// By a loop that asks the policy and reads, without mapping: what is left is the reading.
        Reads = "reads",
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// From the first touch to the end of the last, in milliseconds.
    pub ms: f64,
    /// Touches that waited for a read.
    pub hard: u64,
    /// Pages read.
    pub read: u64,
}

/// Touches of objects that lie one after the other in one file.
#[derive(Clone, Debug)]
pub struct Touched {
    objects: Vec<PageRange>,
    /// By object, the page of the file.
    touches: Vec<(usize, PageIndex)>,
}

impl Touched {
    /// The touches of `input`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of(input: &Input) -> Result<Self, BenchError> {
        let mut objects = Vec::new();
        let mut next = 0;
        for object in &input.layout.objects {
            objects.push(PageRange::new(PageIndex(next), PageIndex(next + object.pages)));
            next = (next + object.pages).next_multiple_of(OBJECT_ALIGNMENT);
        }
        let place =
            |(object, page): (usize, PageIndex)| (object, PageIndex(objects[object].start().0 + page.0));
        let touches = input.pages()?.into_iter().map(place).collect();
        Ok(Self { objects, touches })
    }

    /// How long the file has to be.
    pub fn pages(&self) -> u64 {
        self.objects.iter().map(|object| object.end().0).max().unwrap_or(0)
    }

    /// How many touches there are.
    pub fn count(&self) -> u64 {
        self.touches.len() as u64
    }

    /// Makes all touches of the file in `path` under `policy`.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn serve(&self, path: &Path, policy: &Policy, way: Way) -> Result<Served, BenchError> {
        match way {
            Way::Vm => self.by_vm(path, policy),
            Way::Reads => self.by_reads(path, policy),
        }
    }

    fn by_vm(&self, path: &Path, policy: &Policy) -> Result<Served, BenchError> {
        let vm = Vm::new(VmOptions::default())?;
        let object = vm.file_direct(path)?;
        let options = |window: &PageRange| MapOptions::shared().policy(policy.clone()).window(*window);
        let maps: Vec<_> =
            self.objects.iter().map(|window| vm.map(&object, &options(window))).collect::<Result<_, _>>()?;
        let begun = Instant::now();
        let mut sum = 0_u64;
        for &(object, page) in &self.touches {
            let offset = (page.0 - self.objects[object].start().0) * PAGE_SIZE;
            sum += u64::from(maps[object].as_slice()[offset as usize]);
        }
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        std::hint::black_box(sum);
        let counted = vm.statistics().counted;
        Ok(Served { ms, hard: counted.hard, read: counted.pages_read })
    }

    fn by_reads(&self, path: &Path, policy: &Policy) -> Result<Served, BenchError> {
        let mut file = DirectFile::open(path, READ_PAGES)?;
        let mut memory = Memory(HashSet::new());
        let mut states: Vec<_> = self.objects.iter().map(|window| policy.entry(*window)).collect();
        let mut hard = 0;
        let begun = Instant::now();
        for &(object, page) in &self.touches {
            if memory.is_resident(page) {
                continue;
            }
            hard += 1;
            let at = FaultAt { page, window: self.objects[object] };
            let cluster = policy.hard(&mut states[object], &at, &memory);
            let run = cluster.clip(&at, &memory);
            file.read(run)?;
            memory.0.extend(run.iter());
            policy.read(&mut states[object], run);
        }
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        Ok(Served { ms, hard, read: memory.0.len() as u64 })
    }
}

/// The pages that were read.
struct Memory(HashSet<PageIndex>);

impl Residency for Memory {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.0.contains(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;

    /// Both ways count what the simulator counts.
    #[test]
    fn touches_fault_as_simulated() {
        let input = Input::model("code:1".parse().unwrap());
        let touched = Touched::of(&input).unwrap();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.to_owned())) {
            return;
        }
        let file = Subject::create(directory, touched.pages() * PAGE_SIZE).unwrap();
        for (policy, hard) in [("around:8:7", 919), ("aligned:16", 679)] {
            let policy = policy.parse().unwrap();
            let served = touched.serve(file.path(), &policy, Way::Reads).unwrap();
            assert_eq!(served.hard, hard, "{policy}");
            match touched.serve(file.path(), &policy, Way::Vm) {
                Ok(by_vm) => assert_eq!((by_vm.hard, by_vm.read), (hard, served.read), "{policy}"),
                Err(BenchError::Map(error)) => prepage_testing::skip(
                    prepage_testing::Need::Doctor(prepage_testing::Doctor::ServedFaults),
                    error,
                ),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
