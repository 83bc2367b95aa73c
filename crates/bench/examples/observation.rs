//! What observing a start of a program sees and costs, beside the yardstick (read-ahead 0, caches dropped, every call traced).
//!
//! ```text
//! observation ROUNDS COMMAND…      one line of JSON; as root
//! ```
//! AGENT: the agent's library. MISSES: a file for pages that were not seen. WITHOUT_PERF=1, WITHOUT_AGENT=1: as where these are not to be had.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::path;
use std::time::{Duration, Instant};

use prepage_bench::statistics::median;
use prepage_bench::yardstick::observe_exactly;
use prepage_core::profile::observation::Observation;
use prepage_observe::{ObserveOptions, Observer, Until};
use prepage_residency::cold::drop_caches;
use prepage_sys::maps::mappings;
use prepage_sys::processes::processes;
use prepage_sys::spawn::spawn_waiting;
use rustix::event::{PollFd, PollFlags, poll};

/// Pause between making the cache cold and the start: the kernel has freed memory to sort and to hand back to the host.
const SETTLING: Duration = Duration::from_millis(200);

type Pages = HashSet<(String, u64)>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let rounds: usize =
        args.next().and_then(|rounds| rounds.to_str()?.parse().ok()).ok_or("how many rounds?")?;
    let command: Vec<OsString> = args.collect();
    let (yardstick, ..) = observe_exactly(&command)?;
    let (mut mapped, mut read) = (Pages::new(), Pages::new());
    for file in &yardstick.files {
        for used in &file.pages {
            let pages = if used.by_read { &mut read } else { &mut mapped };
            pages.extend(used.range.iter().map(|page| (file.path.clone(), page.0)));
        }
    }
    let names: BTreeSet<&str> = yardstick.names.iter().map(|name| name.path.as_str()).collect();
    let held = mapped_by_others();

    let (mut cold, mut warm) = ([vec![], vec![]], [vec![], vec![]]);
    let mut last = None;
    for round in 0..rounds {
        for observed in in_turn(round) {
            drop_caches()?;
            std::thread::sleep(SETTLING);
            let (took, observation) = start(&command, observed)?;
            cold[usize::from(observed)].push(took);
            last = observation.or(last);
        }
    }
    for round in 0..rounds {
        for observed in in_turn(round) {
            let (took, observation) = start(&command, observed)?;
            warm[usize::from(observed)].push(took);
            last = observation.or(last);
        }
    }
    let observation = last.ok_or("no rounds")?;
    let (sure, near) = (pages(&observation, true, false), pages(&observation, false, false));
    let seen_read = pages(&observation, true, true);
    // A file whose pages are fetched is looked up.
    let looked_up = observation.names.iter().map(|name| &name.path);
    let seen_names: BTreeSet<&str> =
        looked_up.chain(observation.files.iter().map(|file| &file.path)).map(String::as_str).collect();
    let is_beyond =
        |page: &(String, u64)| !mapped.contains(page) && !read.contains(page) && !held.contains(&page.0);
    let beyond = sure.iter().filter(|page| is_beyond(page));
    // Whether ld.so maps its cache or reads it, its pages are brought in.
    let is_sure = |page: &&(String, u64)| sure.contains(page) || seen_read.contains(page);
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    let ratio = |times: [Vec<f64>; 2]| {
        let [plain, observed] = times.map(|times| median(&times));
        (plain, observed / plain)
    };
    let (cold_ms, cold_ratio) = ratio(cold);
    let (warm_ms, warm_ratio) = ratio(warm);
    println!(
        "{}",
        serde_json::json!({
            "yardstick_pages": mapped.len(),
            "share": share(mapped.iter().filter(is_sure).count(), mapped.len()),
            "share_with_near":
                share(mapped.iter().filter(|page| is_sure(page) || near.contains(page)).count(), mapped.len()),
            "beyond": share(beyond.count(), mapped.len()),
            "near": share(near.len(), mapped.len()),
            "read_share": share(read.iter().filter(is_sure).count(), read.len()),
            "read_pages": read.len(),
            "yardstick_names": names,
            "names": seen_names,
            "cold_ms": cold_ms, "cold_ratio": cold_ratio, "warm_ms": warm_ms, "warm_ratio": warm_ratio,
            "coverage": format!("{:?}", observation.coverage), "unseen": observation.unseen,
        })
    );
    if let Some(path) = std::env::var_os("MISSES") {
        // By file: pages of the yardstick's that are near, or missed, and pages that it does not have.
        let mut pages: BTreeMap<&str, [Vec<u64>; 3]> = BTreeMap::new();
        let not_sure =
            mapped.iter().filter(|page| !is_sure(page)).map(|page| (usize::from(!near.contains(page)), page));
        for (kind, (path, page)) in
            not_sure.chain(sure.iter().filter(|page| is_beyond(page)).map(|page| (2, page)))
        {
            pages.entry(path).or_default()[kind].push(*page);
        }
        let mut lines = Vec::new();
        for (path, kinds) in &mut pages {
            for (kind, pages) in
                ["near", "missed", "beyond"].iter().zip(kinds).filter(|(_, pages)| !pages.is_empty())
            {
                pages.sort_unstable();
                lines.push(format!("{kind} {} {path} {pages:?}", pages.len()));
            }
        }
        fs::write(path, lines.join("\n") + "\n")?;
    }
    Ok(())
}

/// Whether a start is observed: plain and observed ones, in another order from round to round.
fn in_turn(round: usize) -> [bool; 2] {
    let observed_first = round % 2 == 1;
    [observed_first, !observed_first]
}

/// One start. Returns how long it took, in milliseconds, with what it waits for observing to begin.
fn start(command: &[OsString], observed: bool) -> Result<(f64, Option<Observation>), Box<dyn Error>> {
    let set = |name| std::env::var_os(name).is_some();
    let options = ObserveOptions {
        program: (!set("WITHOUT_AGENT")).then(|| command[0].clone().into()),
        // Children may be executed in other directories.
        agent: std::env::var_os("AGENT").map(path::absolute).transpose()?,
        without_perf: set("WITHOUT_PERF"),
        ..ObserveOptions::default()
    };
    let waiting = spawn_waiting(command)?;
    let pid = waiting.pid();
    let began = Instant::now();
    let observer = observed.then(|| Observer::attach(pid, &options)).transpose()?;
    let until = Until::ended_or(pid, Duration::from_secs(60))?;
    let variables = observer.as_ref().map(Observer::program_arguments).unwrap_or_default();
    let child = waiting.go_with(&variables)?;
    // Not waited for meanwhile: that would take away what a visit waits for.
    let pidfd = child.as_fd().try_clone_to_owned()?;
    let waiter = std::thread::spawn(move || {
        while !matches!(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None), Ok(1)) {}
        began.elapsed()
    });
    let observation = observer.map(|observer| observer.follow(&until));
    let took = waiter.join().map_err(|_| "the waiter panicked")?;
    child.wait()?;
    Ok((took.as_secs_f64() * 1e3, observation))
}

fn pages(observation: &Observation, is_sure: bool, by_read: bool) -> Pages {
    let mut pages = Pages::new();
    for file in &observation.files {
        let wanted = file.pages.iter().filter(|used| used.is_sure == is_sure && used.by_read == by_read);
        pages.extend(wanted.flat_map(|used| used.range.iter()).map(|page| (file.path.clone(), page.0)));
    }
    pages
}

/// Files of which running programs may hold pages that the yardstick therefore cannot see.
fn mapped_by_others() -> HashSet<String> {
    processes()
        .flat_map(|pid| mappings(pid).unwrap_or_default())
        .map(|mapped| mapped.path.to_string())
        .collect()
}
