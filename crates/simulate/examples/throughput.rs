//! How fast touches are replayed: 100 million of them on 10 million pages, and a terabyte-sized object.
//!
//! `make bench-simulate`, or `cargo run --release -p prepage-simulate --example throughput`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use prepage_simulate::input::TextOptions;
use prepage_simulate::model::Random;
use prepage_simulate::{Contender, Input, Layout, Options, compare};
use prepage_simulate::{EntryIndex, Replay, Touch};
use rustix::time::{ClockId, clock_gettime};

const PAGES: u64 = 10_000_000;
const TOUCHES: usize = 100_000_000;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{TOUCHES} touches of an object of {PAGES} pages; medians of {ROUNDS} runs\n");
    for (name, run) in [("runs of 1 to 64 pages", 64), ("single random pages", 1)] {
        let touches = touches(run);
        for policy in ["aligned:16", "context", "linux-data"] {
            one_core(name, policy, &touches)?;
        }
    }
    println!();
    parallel()?;
    terabyte()?;
    text()
}

/// Runs of up to `longest` pages from random places.
fn touches(longest: u64) -> Vec<u32> {
    let mut random = Random(1);
    let mut touches = Vec::with_capacity(TOUCHES);
    while touches.len() < TOUCHES {
        let start = random.next() % PAGES;
        let len = 1 + random.next() % longest;
        let left = TOUCHES - touches.len();
        touches.extend((start..(start + len).min(PAGES)).take(left).map(|page| page as u32));
    }
    touches
}

/// Seconds of a CPU that this thread took: what else the machine does is no part of it.
fn cpu_s() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn one_core(name: &str, policy: &str, touches: &[u32]) -> Result<(), Box<dyn std::error::Error>> {
    let mut seconds = Vec::new();
    let mut figures = (0, 0.0);
    for _ in 0..ROUNDS {
        let mut replay = Replay::new();
        let object = replay.add_object(PAGES);
        let entry = replay.add_entry(object, 0, PAGES, policy.parse()?);
        let begun_s = cpu_s();
        for &page in touches {
            replay.touch(Touch::new(entry, page.into()));
        }
        seconds.push(cpu_s() - begun_s);
        let bytes = replay.bytes();
        figures = (replay.outcome().hard, bytes as f64 / PAGES as f64);
    }
    seconds.sort_by(f64::total_cmp);
    println!(
        "{name:<22} {policy:<11} {:6.1} million touches/s on one core, {} hard faults, {:.2} bytes a page",
        TOUCHES as f64 / seconds[ROUNDS / 2] / 1e6,
        figures.0,
        figures.1
    );
    Ok(())
}

/// Eight policies on all CPUs against the same one after another.
fn parallel() -> Result<(), Box<dyn std::error::Error>> {
    let mut random = Random(2);
    let mut touches = Vec::new();
    while touches.len() < TOUCHES / 10 {
        let start = random.next() % (PAGES - 64);
        touches.extend((start..start + 32).map(|page| Touch::new(EntryIndex(0), page)));
    }
    let input = Input::from_touches(Layout::of_one("object", PAGES), touches);
    let names =
        ["none", "around:8:7", "aligned:16", "adaptive", "sequential", "linux-data", "linux-exec", "context"];
    let contenders: Vec<Contender> =
        names.iter().map(|name| Contender::new(name)).collect::<Result<_, _>>()?;
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        compare(&input, &contenders, &Options::default())?;
        together.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for contender in &contenders {
            compare(&input, std::slice::from_ref(contender), &Options::default())?;
        }
        alone.push(begun.elapsed().as_secs_f64());
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    };
    let (together, alone) = (median(together), median(alone));
    let cpus = std::thread::available_parallelism()?;
    println!(
        "8 policies at once on {cpus} CPUs: {together:.2} s, one after another {alone:.2} s, ratio {:.2}",
        alone / together
    );
    Ok(())
}

/// A page in every gigabyte of a terabyte.
fn terabyte() -> Result<(), Box<dyn std::error::Error>> {
    let pages = 1 << 28;
    let mut replay = Replay::new();
    let object = replay.add_object(pages);
    let entry = replay.add_entry(object, 0, pages, "aligned:16".parse()?);
    (0..1024).for_each(|gigabyte| replay.touch(Touch::new(entry, gigabyte << 18)));
    println!(
        "an object of 1 TiB with 1024 pages touched: {:.1} MiB of tables",
        replay.bytes() as f64 / (1 << 20) as f64
    );
    Ok(())
}

/// Touches read from a text file, with all that surrounds a replay.
fn text() -> Result<(), Box<dyn std::error::Error>> {
    let lines = TOUCHES / 10;
    let path = std::env::temp_dir().join(format!("prepage-touches-{}", std::process::id()));
    let mut random = Random(3);
    let mut file = BufWriter::new(File::create(&path)?);
    let written = (0..lines).try_for_each(|_| writeln!(file, "{}", random.next() % PAGES));
    drop(file);
    let measured = written.map_err(Box::from).and_then(|()| -> Result<f64, Box<dyn std::error::Error>> {
        let begun_s = seconds(ClockId::ProcessCPUTime);
        let input =
            Input::read_text(&path, &TextOptions { object_pages: Some(PAGES), ..TextOptions::default() })?;
        compare(&input, &[Contender::new("aligned:16")?], &Options::default())?;
        Ok(seconds(ClockId::ProcessCPUTime) - begun_s)
    });
    std::fs::remove_file(&path)?;
    println!(
        "touches as text, read twice and replayed: {:.1} million/s of processor time",
        lines as f64 / measured? / 1e6
    );
    Ok(())
}
