//! One recorded run: the file is read by a child process, and the faults of its mapping are kept.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;

use prepage_core::{Fault, FaultClass, Object, ObjectId, PageIndex, TraceFacts};
use prepage_sys::spawn::HowEnded;
use prepage_trace::{RecordError, RecordOptions, Recorder};

use crate::pattern::Pattern;
use crate::subject::{Cache, Subject, SubjectError};

/// What is read how, from which state of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// The order.
    pub pattern: Pattern,
    /// The state when it begins.
    pub cache: Cache,
}

/// The study's classes. The kernel folds its third, the short fault right after a disk fault, into the disk fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The page had to be read.
    Disk,
    /// The page was in memory: the study's "long non-disk".
    Cached,
}

/// A fault of the file's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The page touched.
    pub page: PageIndex,
    /// What it had to do.
    pub class: Class,
    /// How long it took; `None` where its begin or end was not seen.
    pub cost_ns: Option<u64>,
}

/// Faults of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Of how many the cost is known.
    pub timed: u64,
    /// The cost of those together.
    pub cost_ns: u64,
}

impl Tally {
    /// The mean cost of those whose cost is known.
    pub fn mean_us(self) -> Option<f64> {
        (self.timed > 0).then(|| self.cost_ns as f64 / self.timed as f64 / 1e3)
    }

    /// The cost of all.
    pub fn total_ms(self) -> f64 {
        self.cost_ns as f64 / 1e6
    }
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
    pub fn tally(&self, class: Option<Class>) -> Tally {
        let of_class = self.faults.iter().filter(|fault| class.is_none_or(|class| fault.class == class));
        of_class.fold(Tally::default(), |tally, fault| Tally {
            count: tally.count + 1,
            timed: tally.timed + u64::from(fault.cost_ns.is_some()),
            cost_ns: tally.cost_ns + fault.cost_ns.unwrap_or(0),
        })
    }
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file is not in the state it should be in.
    #[error("the file cannot be prepared")]
    Subject(#[from] SubjectError),
    /// Faults cannot be recorded.
    #[error("the run cannot be recorded")]
    Record(#[from] RecordError),
    /// This program cannot start itself.
    #[error("this program cannot start itself")]
    Start(#[source] io::Error),
    /// The reading process did not end as it should.
    #[error("the process that reads the file ended with {how}")]
    Access {
        /// Exit code or signal.
        how: String,
    },
}

impl Experiment {
    /// Prepares the file and runs `program`, which is to read it: `program bench access --pattern P --seed S
    /// --expect-sum SUM FILE`.
    pub fn run(self, subject: &Subject, program: &[OsString], seed: u64) -> Result<Run, ExperimentError> {
        let inode = subject.inode().map_err(ExperimentError::Start)?;
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
        let options = RecordOptions::default();
        let mut recorder = Recorder::start(&prepage_trace::Subject::Command(command), &options)?;
        let mut faults = Vec::new();
        while recorder.next_faults(&mut faults)? {}
        let recorded = recorder.finish();
        if let Some(failure) = recorded.failure {
            return Err(failure.into());
        }
        match recorded.how_ended {
            None | Some(HowEnded::Exited(0)) => {}
            Some(HowEnded::Exited(code)) => {
                return Err(ExperimentError::Access { how: format!("exit code {code}") });
            }
            Some(HowEnded::Killed(signal)) => {
                return Err(ExperimentError::Access { how: format!("signal {signal}") });
            }
            Some(HowEnded::NotExecuted(error)) => return Err(ExperimentError::Start(error)),
        }
        let all = faults.len();
        faults.sort_by_key(|fault| fault.start_ns);
        let faults = of_file(&faults, &recorded.objects, inode);
        let other_faults = (all - faults.len()) as u64;
        Ok(Run { experiment: self, faults, other_faults, facts: recorded.facts })
    }
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
    let file_fault = |fault: &Fault| {
        let class = if fault.class == FaultClass::Disk { Class::Disk } else { Class::Cached };
        Some(FileFault { page: fault.page?, class, cost_ns: fault.cost_ns })
    };
    faults.iter().filter(of_it).filter_map(file_fault).collect()
}

/// The least and the greatest number of disk faults among `runs`; zeros for none.
pub fn spread(runs: &[Run]) -> (u64, u64) {
    let counts = runs.iter().map(|run| run.tally(Some(Class::Disk)).count);
    (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
}
