//! `prepage bench clusters`: clustering policies in time.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use prepage_bench::Subject;
use prepage_bench::clusters::{Served, Touched, Way};
use prepage_bench::statistics::{median, median_ratio};
use prepage_core::PAGE_SIZE;
use prepage_core::policy::Policy;
use prepage_core::policy::choice::PolicyError;
use prepage_simulate::Input;
use prepage_simulate::model::Model;
use serde_json::json;

use crate::output::print_json;
use crate::table::table;

/// Options of `prepage bench clusters`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace of `prepage record --exact`, whose touches are repeated [default: the model code:1]
    #[arg(conflicts_with = "model")]
    trace: Option<PathBuf>,
    /// Generated touches, as for `prepage simulate`
    #[arg(long, value_name = "MODEL", default_value = "code:1")]
    model: Model,
    /// Policies; all are compared with the first
    #[arg(short, long, value_name = "POLICIES", value_parser = policies, default_value = "around:8:7,aligned:16")]
    policy: Vec<Policies>,
    /// Runs of each policy, interleaved
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
    /// Directory for the file that is read, on the disk to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Policies of one list.
type Policies = Vec<Policy>;

fn policies(list: &str) -> Result<Policies, String> {
    let policy = |name: &String| match name.parse() {
        Ok(Policy::Linux(_) | Policy::Predicted(_)) => {
            Err(format!("`{name}` reads in the background, which is not measured here"))
        }
        other => other.map_err(|error: PolicyError| error.to_string()),
    };
    crate::simulate::arguments::policies(list).iter().map(policy).collect()
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let policies = args.policy.concat();
    let input = match &args.trace {
        Some(path) => Input::read_trace(path)?,
        None => Input::model(args.model),
    };
    let touched = Touched::of(&input)?;
    let file = Subject::create(&args.directory, touched.pages() * PAGE_SIZE)?;
    let mut runs: Vec<Vec<Served>> = vec![Vec::new(); policies.len() * Way::ALL.len()];
    for round in 0..=args.rounds {
        // In turns, and every other round backwards, so that what drifts meets all alike. The first round is thrown away.
        let mut order: Vec<usize> = (0..runs.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (policy, way) = (&policies[at / Way::ALL.len()], Way::ALL[at % Way::ALL.len()]);
            let served = touched
                .serve(file.path(), policy, way)
                .with_context(|| format!("{policy}, {}", way.name()))?;
            if round > 0 {
                runs[at].push(served);
            }
        }
    }
    print(args, &policies, &input, &runs)
}

fn print(args: &Args, policies: &[Policy], input: &Input, runs: &[Vec<Served>]) -> Result<ExitCode> {
    let ms = |at: usize| runs[at].iter().map(|run| run.ms).collect::<Vec<_>>();
    let mut rows = Vec::new();
    for (of, way) in Way::ALL.iter().enumerate() {
        for (number, policy) in policies.iter().enumerate() {
            let at = number * Way::ALL.len() + of;
            let (hard, read) = (runs[at][0].hard, runs[at][0].read);
            rows.push((way.name(), policy, hard, read, median(&ms(at)), median_ratio(&ms(at), &ms(of))));
        }
    }
    let mut out = crate::output::text();
    if args.json {
        let row = |(way, policy, hard, read, ms, ratio): &(
            _,
            &Policy,
            _,
            _,
            _,
            prepage_bench::statistics::Estimate,
        )| {
            let (way, hard, read, ms): (&&str, &u64, &u64, &f64) = (way, hard, read, ms);
            json!({ "way": way, "policy": policy.to_string(), "hard": hard, "pages_read": read, "median_ms": ms,
                "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let report =
            json!({ "schema_version": 1, "touches": input.count, "rounds": args.rounds, "runs": rows });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{} touches of a cold file by direct reads, {} runs each in turns; times of faults and reads alone\n",
        input.count, args.rounds
    )?;
    let mut table =
        table(&["way", "policy", "hard", "pages read", "median ms", "ratio", "95 %"], &[2, 3, 4, 5]);
    for (way, policy, hard, read, ms, ratio) in rows {
        table.add_row([
            way.to_owned(),
            policy.to_string(),
            hard.to_string(),
            read.to_string(),
            format!("{ms:.1}"),
            format!("{:.3}", ratio.value),
            ratio.interval(3),
        ]);
    }
    writeln!(out, "{}", table.lines(crate::output::width()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: super::Args,
    }

    #[test]
    fn commas_stand_between_policies_and_within_them() {
        let parsed =
            |list| Line::try_parse_from(["clusters", "-p", list]).map(|line| line.args.policy.concat());
        let texts =
            |list| parsed(list).expect("policies").iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts("none,adaptive:max=31,cluster=8,obl").len(), 3);
        assert!(parsed("nonsense").is_err());
        let background = parsed("none,linux").unwrap_err().to_string();
        assert!(background.contains("`linux` reads in the background"), "{background}");
    }
}
