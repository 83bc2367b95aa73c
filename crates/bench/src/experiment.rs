//! One recorded run: the file is read by a child process, and the faults of its mapping are kept.

use std::collections::HashMap;
use std::ffi::OsString;

use prepage_core::{Fault, FaultClass, Object, ObjectId, PageIndex, Tally, TraceFacts};
use prepage_sys::spawn::HowEnded;
use prepage_trace::{RecordOptions, Recorded, Recorder, Scope};

use crate::error::{BenchError, failed};
use crate::statistics::quantile;
use crate::subject::{Cache, Subject};
use prepage_simulate::pattern::Pattern;

const START: &str = "this program cannot start itself";

/// What is read how, from which state of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// The order.
    pub pattern: Pattern,
    /// The state when it begins.
    pub cache: Cache,
}

/// A fault of the file's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The page touched.
    pub page: PageIndex,
    /// What it had to do. [`FaultClass::Cached`] is the study's "long non-disk".
    pub class: FaultClass,
    /// How long it took; `None` where its begin or end was not seen.
    pub cost_ns: Option<u64>,
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was run.
    pub experiment: Experiment,
    /// The faults of the file's mapping in the order they began.
    pub faults: Vec<FileFault>,
    /// Faults of other memory of the child, which do not count.
    pub other_faults: u64,
    /// Facts of the recording; its losses among them.
    pub facts: TraceFacts,
}

impl Run {
    /// The faults of `class`; of all for `None`.
    pub fn tally(&self, class: Option<FaultClass>) -> Tally {
        let of_class = self.faults.iter().filter(|fault| class.is_none_or(|class| fault.class == class));
        let mut tally = Tally::default();
        of_class.for_each(|fault| tally.merge(&Tally::one(fault.class, fault.cost_ns)));
        tally
    }

    /// The `q`-quantile of what the faults of `class` cost; of all for `None`. `None` where no cost is known.
    pub fn quantile_us(&self, class: Option<FaultClass>, q: f64) -> Option<f64> {
        let of_class = self.faults.iter().filter(|fault| class.is_none_or(|class| fault.class == class));
        let costs_us: Vec<f64> =
            of_class.filter_map(|fault| fault.cost_ns).map(|cost_ns| cost_ns as f64 / 1e3).collect();
        (!costs_us.is_empty()).then(|| quantile(&costs_us, q))
    }
}

impl Experiment {
    /// Prepares the file and runs `program`, which is to read it: `program bench access --pattern P --seed S
    /// --expect-sum SUM FILE`.
    pub fn run(self, subject: &Subject, program: &[OsString], seed: u64) -> Result<Run, BenchError> {
        let inode = subject.inode().map_err(failed(START))?;
        let mut command = program.to_vec();
        let arguments = [
            "--pattern".to_owned(),
            self.pattern.to_string(),
            "--seed".to_owned(),
            seed.to_string(),
            "--expect-sum".to_owned(),
            subject.byte_sum().to_string(),
        ];
        command.extend(arguments.map(OsString::from));
        command.push(subject.path().into());
        subject.prepare(self.cache)?;
        let (mut faults, recorded) = record(command)?;
        match recorded.how_ended {
            None | Some(HowEnded::Exited(0)) => {}
            Some(HowEnded::Exited(code)) => return Err(ended_with(&format!("exit code {code}"))),
            Some(HowEnded::Killed(signal)) => return Err(ended_with(&format!("signal {signal}"))),
            Some(HowEnded::NotExecuted(error)) => return Err(failed(START)(error)),
        }
        let all = faults.len();
        faults.sort_by_key(|fault| fault.start_ns);
        let faults = of_file(&faults, &recorded.objects, inode);
        let other_faults = (all - faults.len()) as u64;
        Ok(Run { experiment: self, faults, other_faults, facts: recorded.facts })
    }
}

/// Runs and records `command`.
pub(crate) fn record(command: Vec<OsString>) -> Result<(Vec<Fault>, Recorded), BenchError> {
    let mut recorder = Recorder::start(&Scope::Command(command), &RecordOptions::default())?;
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults)? {}
    let mut recorded = recorder.finish();
    recorded.failure.take().map_or(Ok((faults, recorded)), |failure| Err(failure.into()))
}

fn ended_with(how: &str) -> BenchError {
    BenchError::Void(format!("the process that reads the file ended with {how}"))
}

/// The faults of the file with this device and inode. File systems in layers show another device in mappings than to
/// stat(2): where no object has both, the inode alone decides.
fn of_file(faults: &[Fault], objects: &[Object], inode: (u64, u64)) -> Vec<FileFault> {
    let exact = objects.iter().any(|object| object.inode == Some(inode));
    let is_it = |object: &Object| {
        object.inode.is_some_and(|found| if exact { found == inode } else { found.1 == inode.1 })
    };
    let known: HashMap<ObjectId, bool> =
        objects.iter().enumerate().map(|(at, object)| (ObjectId(at as u32), is_it(object))).collect();
    let of_it = |fault: &&Fault| fault.object.is_some_and(|object| known.get(&object) == Some(&true));
    let file_fault =
        |fault: &Fault| Some(FileFault { page: fault.page?, class: fault.class, cost_ns: fault.cost_ns });
    faults.iter().filter(of_it).filter_map(file_fault).collect()
}

/// The least and the greatest number of disk faults among `runs`; zeros for none.
pub fn spread(runs: &[Run]) -> (u64, u64) {
    let counts = runs.iter().map(|run| run.tally(Some(FaultClass::Disk)).count);
    (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use prepage_core::ThreadIndex;

    use super::*;

    #[test]
    fn faults_of_the_file_keep_their_class() {
        let objects = [7, 8].map(|inode| Object::new("file", Some((1, inode))));
        let fault = |class, object| Fault {
            object: Some(ObjectId(object)),
            page: Some(PageIndex(3)),
            cost_ns: Some(5),
            ..Fault::new(0, ThreadIndex(0), 0, class)
        };
        let classes = [FaultClass::Disk, FaultClass::Short, FaultClass::Cached];
        let faults =
            [classes.map(|class| fault(class, 1)).to_vec(), vec![fault(FaultClass::Disk, 0)]].concat();
        let run = Run {
            experiment: Experiment { pattern: Pattern::Random, cache: Cache::Cold },
            faults: of_file(&faults, &objects, (1, 8)),
            other_faults: 1,
            facts: TraceFacts::default(),
        };
        assert_eq!(classes.map(|class| run.tally(Some(class)).count), [1, 1, 1]);
        assert_eq!((run.tally(None).count, run.tally(None).cost_ns), (3, 15));
    }
}
