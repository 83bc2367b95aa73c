//! `prepage bench workload`: work like that of compilers under three ways to manage memory, beside what a change of FreeBSD's buffer
//! cache was measured by.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::Subject;
use prepage_bench::statistics::median;
use prepage_bench::workload::{JOBS, Management, PUBLISHED, Published, Share, Took, build, file_bytes};
use serde_json::json;

use super::{Setting, hand_over, result_of, worker};
use crate::output::print_json;
use crate::size::size;
use crate::table::table;

/// Options of `prepage bench workload`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Memory for frames, 8M at least
    #[arg(short, long, value_name = "SIZE", value_parser = memory, default_value = "64M")]
    memory: u64,
    /// Shares of memory that file data has for itself in the fixed division, 1/16 to 15/16; the first is the one that dont-need is compared with
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "3/8")]
    static_share: Vec<Share>,
    #[command(flatten)]
    setting: Setting,
}

/// One run, as [`run`] starts it.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The file
    file: PathBuf,
    /// Where swap files go
    swap: PathBuf,
    management: Management,
    workers: u64,
    /// Bytes for frames
    memory: u64,
}

fn memory(text: &str) -> Result<u64, String> {
    size(text)
        .and_then(|bytes| if bytes >= 8 << 20 { Ok(bytes) } else { Err("8M are needed at least".into()) })
}

/// Does the work in this process.
pub fn work(args: &WorkerArgs) -> Result<ExitCode> {
    hand_over(&build(&args.file, &args.swap, args.management, args.workers, JOBS, args.memory)?)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = Subject::create(&args.setting.directory, file_bytes(args.memory, JOBS))?;
    let managements = managements(&args.static_share);
    let mut runs = [(); PUBLISHED.len()].map(|()| vec![Vec::new(); managements.len()]);
    for round in 0..args.setting.rounds {
        for (level, runs) in PUBLISHED.iter().zip(&mut runs) {
            let mut turns: Vec<usize> = (0..managements.len()).collect();
            // In turns, so that what drifts meets all alike.
            turns.rotate_left(round as usize % managements.len());
            for at in turns {
                runs[at].push(one(args, &file, managements[at], level.workers)?);
            }
        }
    }
    let mut out = crate::output::text();
    if args.setting.json {
        let level = |(level, runs): (&Published, &Vec<Vec<Took>>)| {
            let rows = managements.iter().zip(runs);
            let rows: Vec<_> = rows
                .map(|(management, runs)| {
                    let (name, share) = name_and_share(*management);
                    json!({ "management": name, "static_share": share, "runs": runs })
                })
                .collect();
            json!({ "workers": level.workers, "managements": rows })
        };
        let levels: Vec<_> = PUBLISHED.iter().zip(&runs).map(level).collect();
        let report = json!({ "schema_version": 1, "memory_bytes": args.memory, "levels": levels });
        print_json(&report)?;
    } else {
        let medians = runs.each_ref().map(|runs| runs.iter().map(|runs| typical(runs)).collect());
        print(&managements, &medians, &mut out)?;
        writeln!(out, "\n{} MiB for frames; medians of {}", args.memory >> 20, args.setting.rounds)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is compared: a fixed division of each share, and the others.
fn managements(shares: &[Share]) -> Vec<Management> {
    let of_shares = shares.iter().copied().map(Management::Static);
    of_shares.chain([Management::DontNeed, Management::Classes]).collect()
}

/// For programs to read: the name of a management, and of a fixed division the share that file data has for itself.
fn name_and_share(management: Management) -> (String, Option<String>) {
    match management {
        Management::Static(share) => ("static".to_owned(), Some(share.to_string())),
        Management::DontNeed | Management::Classes => (management.to_string(), None),
    }
}

fn one(args: &Args, file: &Subject, management: Management, workers: u64) -> Result<Took> {
    let mut command = worker("workload-worker")?;
    command.args([file.path(), &args.setting.directory]);
    command.args([management.to_string(), workers.to_string(), args.memory.to_string()]);
    result_of(&mut command, &format!("{management} with {workers} workers"))
}

fn typical(runs: &[Took]) -> Took {
    let of = |what: fn(&Took) -> f64| median(&runs.iter().map(what).collect::<Vec<_>>());
    Took {
        real_s: of(|took| took.real_s),
        user_s: of(|took| took.user_s),
        system_s: of(|took| took.system_s),
        swaps: of(|took| took.swaps as f64) as u64,
        hit_ratio: of(|took| took.hit_ratio),
    }
}

fn print(managements: &[Management], medians: &[Vec<Took>; 4], out: &mut impl Write) -> Result<()> {
    let mut shown =
        table(&["workers", "memory", "real s", "user s", "sys s", "swaps", "hits %"], &[0, 2, 3, 4, 5, 6]);
    let mut row = |workers: u64, name: &str, took: &Took| {
        let seconds = [took.real_s, took.user_s, took.system_s].map(|seconds| format!("{seconds:.2}"));
        let hits =
            if took.hit_ratio.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * took.hit_ratio) };
        let ends = [took.swaps.to_string(), hits];
        let cells = [workers.to_string(), name.to_owned()].into_iter().chain(seconds).chain(ends);
        shown.add_row(cells);
    };
    for (level, medians) in PUBLISHED.iter().zip(medians) {
        for (management, took) in managements.iter().zip(medians) {
            row(level.workers, &management.to_string(), took);
        }
        row(level.workers, "published: baseline", &level.baseline);
        row(level.workers, "published: patch", &level.patch);
    }
    writeln!(
        out,
        "{}\n\ndont-need to {}, as the source's patch to its baseline; `sys of it` is the system's share of the time saved:\n",
        shown.lines(crate::output::width()),
        managements[0]
    )?;
    let mut signs = table(&["workers", "of", "published", "here", "sign"], &[0, 2, 3]);
    for (level, medians) in PUBLISHED.iter().zip(medians) {
        let (fixed, dont_need) = (&medians[0], &medians[managements.len() - 2]);
        let figures: [(&str, Figure); 3] = [
            ("real", |took| took.real_s),
            ("sys", |took| took.system_s),
            ("swaps", |took| took.swaps as f64),
        ];
        for (name, of) in figures {
            let [published, here] = [(&level.baseline, &level.patch), (fixed, dont_need)]
                .map(|(old, new)| Change::of(of(old), of(new)));
            let is_same = if published.sign() == here.sign() { "same" } else { "other" };
            signs.add_row([
                level.workers.to_string(),
                name.into(),
                published.text(),
                here.text(),
                is_same.into(),
            ]);
        }
        let [published, here] = [(&level.baseline, &level.patch), (fixed, dont_need)].map(|(old, new)| {
            let share = new.system_share_of_gain(old);
            share.map_or_else(|| "no gain".to_owned(), |share| format!("{:.0} %", 100.0 * share))
        });
        signs.add_row([level.workers.to_string(), "sys of it".into(), published, here, String::new()]);
    }
    writeln!(out, "{}", signs.lines(crate::output::width()))?;
    Ok(())
}

/// One of what a run took.
type Figure = fn(&Took) -> f64;

/// From a figure to another.
struct Change {
    old: f64,
    new: f64,
}

impl Change {
    const fn of(old: f64, new: f64) -> Self {
        Self { old, new }
    }

    fn sign(&self) -> std::cmp::Ordering {
        self.new.total_cmp(&self.old)
    }

    fn text(&self) -> String {
        match self.old {
            0.0 if self.new == 0.0 => "none".into(),
            0.0 => format!("0 to {:.0}", self.new),
            old => format!("{:+.1} %", 100.0 * (self.new - old) / old),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_the_signs_of_the_source() {
        let texts =
            PUBLISHED.map(|level| Change::of(level.baseline.swaps as f64, level.patch.swaps as f64).text());
        assert_eq!(texts, ["none", "none", "-45.4 %", "-12.3 %"]);
        assert_eq!(Change::of(0.0, 3.0).text(), "0 to 3");
        assert!(
            PUBLISHED
                .iter()
                .all(|level| Change::of(level.baseline.real_s, level.patch.real_s).sign().is_lt())
        );
    }

    #[test]
    fn programs_find_a_share_beside_the_name() {
        let names: Vec<_> = managements(&["3/8".parse().unwrap()]).into_iter().map(name_and_share).collect();
        let expected = [("static", Some("3/8")), ("dont-need", None), ("classes", None)];
        assert_eq!(names, expected.map(|(name, share)| (name.to_owned(), share.map(str::to_owned))));
    }

    #[test]
    fn tables_have_a_row_of_each() {
        let mut out = Vec::new();
        let managements = managements(&["3/8", "1/8"].map(|share| share.parse().unwrap()));
        let medians = PUBLISHED.map(|level| vec![level.baseline, level.patch, level.patch, level.baseline]);
        print(&managements, &medians, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert_eq!(["published: patch", "static:1/8", "dont-need  ", "classes"].map(count), [4; 4], "{text}");
        assert!(text.contains("dont-need to static:3/8"), "{text}");
        assert_eq!(["83 %", "66 %", "49 %", "72 %"].map(count), [2; 4], "{text}");
        assert_eq!((text.matches(" same").count(), text.matches(" other").count()), (12, 0), "{text}");
    }
}
