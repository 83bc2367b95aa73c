//! Policies and devices side by side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, ScopedJoinHandle};

use prepage_core::policy::predicted::Predicted;
use prepage_core::policy::{Policy, PolicyError};
use prepage_core::profile::Extent;

use crate::device::DeviceModel;
use crate::input::{Input, InputError};
use crate::layout::ObjectLayout;
use crate::outcome::Outcome;
use crate::pages::MOST_AT_ONCE;
use crate::replay::{Progress, Replay, Touch};
use crate::timeline::Timeline;

/// Parts of the touches that may wait for a thread that is behind.
const PARTS_WAITING: usize = 4;

/// About how many samples of a replay are kept.
const SAMPLES: u64 = 256;

/// A policy, and the device it is tried on.
#[derive(Clone, Debug)]
pub struct Contender {
    /// The policy, as it was given.
    pub name: String,
    /// The policy.
    pub policy: Policy,
    /// Where times are estimated.
    pub device: Option<DeviceModel>,
}

impl Contender {
    /// The policy `text` without a device.
    ///
    /// # Errors
    /// When there is no such policy.
    pub fn new(text: &str) -> Result<Self, PolicyError> {
        Ok(Self { name: text.to_owned(), policy: text.parse()?, device: None })
    }
}

/// What holds for all contenders.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often the touches are replayed: runs of a program that find in memory what the runs before left there.
    pub runs: u32,
    /// What `predicted` knows, by object, whether it is compared or advised.
    pub profile: HashMap<String, Vec<Extent>>,
    /// What a fault costs the program besides waiting, without a read, in nanoseconds.
    pub soft_fault_ns: u64,
    /// The same with a read.
    pub hard_fault_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { runs: 1, profile: HashMap::new(), soft_fault_ns: 700, hard_fault_ns: 2000 }
    }
}

/// One contender's result.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// What happened.
    pub outcome: Outcome,
    /// How it went on, evenly spaced over the touches.
    pub samples: Vec<Progress>,
}

/// One policy's results: without a device, and on each.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The policy, as it was given.
    pub name: &'a str,
    /// Without a device.
    pub plain: &'a Simulated,
    /// On each device.
    pub timed: Vec<(&'a DeviceModel, &'a Simulated)>,
}

/// The `results` of contenders that came policy by policy: first without a device, then on each of `devices`.
pub fn rows<'a>(names: &'a [String], devices: &'a [DeviceModel], results: &'a [Simulated]) -> Vec<Row<'a>> {
    let each = results.chunks(1 + devices.len()).zip(names);
    each.map(|(of, name)| Row { name, plain: &of[0], timed: devices.iter().zip(&of[1..]).collect() })
        .collect()
}

/// Replays the touches of `input` under each of `contenders`, on all CPUs.
///
/// # Errors
/// When the touches cannot be read, or a policy reads more at once than can be simulated.
pub fn compare(
    input: &Input,
    contenders: &[Contender],
    options: &Options,
) -> Result<Vec<Simulated>, InputError> {
    for contender in contenders {
        if let Some((object, pages)) = input.layout.most_at_once(&contender.policy)
            && pages > MOST_AT_ONCE
        {
            return Err(InputError::TooMany { object: object.to_owned(), pages });
        }
    }
    let threads = thread::available_parallelism().map_or(1, usize::from).min(contenders.len()).max(1);
    thread::scope(|scope| {
        let begin = |_| {
            let (sender, receiver) = sync_channel(PARTS_WAITING);
            let handle = thread::Builder::new().spawn_scoped(scope, move || work(&receiver)).ok()?;
            Some((sender, handle))
        };
        // As many as this user may start.
        let workers: Vec<_> = (0..threads).map_while(begin).collect();
        let (senders, handles): (Vec<SyncSender<Message>>, Vec<_>) = workers.into_iter().unzip();
        let threads = senders.len().max(1);
        let part = |first| -> Vec<Runner> {
            let mine = contenders.iter().skip(first).step_by(threads);
            mine.map(|contender| Runner::new(input, contender, options)).collect()
        };
        // A thread that is gone has panicked: joining it passes the panic on.
        let send = |sender: &SyncSender<Message>, message| drop(sender.send(message));
        senders.iter().enumerate().for_each(|(at, sender)| send(sender, Message::Begin(part(at))));
        let mut here = if senders.is_empty() { part(0) } else { Vec::new() };
        let mut tell = |step: &Step| {
            senders.iter().for_each(|sender| send(sender, Message::Step(step.clone())));
            here.iter_mut().for_each(|runner| runner.step(step));
        };
        for run in 0..options.runs {
            if run > 0 {
                tell(&Step::NextRun);
            }
            input.each_part(|part| tell(&Step::Touches(part)))?;
            tell(&Step::Rest(input.rest_ns));
        }
        drop(senders);
        let mut results: Vec<Option<Simulated>> = vec![None; contenders.len()];
        let join = |handle: ScopedJoinHandle<'_, _>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let done = handles.into_iter().map(join).chain([finished(here)]);
        for (first, done) in done.enumerate() {
            for (at, simulated) in done.into_iter().enumerate() {
                results[first + at * threads] = Some(simulated);
            }
        }
        Ok(results.into_iter().flatten().collect())
    })
}

/// What a thread is told: first what it has to do.
enum Message {
    Begin(Vec<Runner>),
    Step(Step),
}

#[derive(Clone)]
enum Step {
    Touches(Arc<[Touch]>),
    /// The program computes so long after its last touch.
    Rest(u64),
    NextRun,
}

fn work(messages: &Receiver<Message>) -> Vec<Simulated> {
    let mut runners = Vec::new();
    for message in messages {
        match message {
            Message::Begin(all) => runners = all,
            Message::Step(step) => runners.iter_mut().for_each(|runner| runner.step(&step)),
        }
    }
    finished(runners)
}

fn finished(runners: Vec<Runner>) -> Vec<Simulated> {
    runners.into_iter().map(Runner::finish).collect()
}

/// One replay under way.
struct Runner {
    replay: Replay,
    samples: Vec<Progress>,
    /// Touches between samples, and until the next.
    spacing: usize,
    left: usize,
}

impl Runner {
    fn new(input: &Input, contender: &Contender, options: &Options) -> Self {
        let mut replay = Replay::new();
        if let Some(device) = &contender.device {
            let timeline = Timeline::new(device.clone(), options.soft_fault_ns, options.hard_fault_ns);
            replay = replay.with_timeline(timeline);
        }
        if options.runs > 1 {
            replay = replay.with_superpages();
        }
        let of_object = |policy: &Policy, object: &ObjectLayout| match policy {
            Policy::Predicted(predicted) => {
                let extents = options.profile.get(&object.name).map_or([].as_slice(), Vec::as_slice);
                Policy::Predicted(Predicted::new(extents, predicted.others))
            }
            policy => policy.clone(),
        };
        let replay = input.layout.build(replay, &contender.policy, of_object);
        let touches = input.count * u64::from(options.runs);
        let spacing = touches.div_ceil(SAMPLES).max(1) as usize;
        Self { replay, samples: Vec::new(), spacing, left: spacing }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Touches(part) => self.replay(part),
            Step::Rest(think_ns) => self.replay.think(*think_ns),
            Step::NextRun => self.replay.next_run(),
        }
    }

    fn replay(&mut self, touches: &[Touch]) {
        let mut rest = touches;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(self.left.min(rest.len()));
            self.replay.replay(part);
            self.left -= part.len();
            if self.left == 0 {
                self.samples.push(self.replay.progress());
                self.left = self.spacing;
            }
            rest = after;
        }
    }

    fn finish(mut self) -> Simulated {
        if self.left < self.spacing {
            self.samples.push(self.replay.progress());
        }
        Simulated { outcome: self.replay.outcome(), samples: self.samples }
    }
}
