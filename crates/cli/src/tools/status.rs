//! `prepage status`: what the service knows, does and gains.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::gain::STARTS_MIN;
use prepage_core::quantity::counted;
use prepage_display::terminal::printable;
use prepage_profiles::StartContextPaths;
use prepage_service::period::PeriodReport;
use prepage_service::socket;
use prepage_service::subject::Subject;
use serde_json::Value;

use crate::output::print_json;
use crate::remedy::Remedied;
use crate::service;
use crate::table::table;

/// Options of `prepage status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the service answers
    #[arg(long, value_name = "PATH", default_value = socket::USUAL)]
    socket: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let socket = args.socket.display();
    let mut out = crate::output::text();
    let answer = socket::ask(&args.socket);
    if answer.is_err() && !args.json {
        // It needs no service, and everybody may read what there is of it.
        let stores = Subject::Boot.stores(StartContextPaths::of_environment().layers);
        let boot = stores.ok().and_then(|stores| PeriodReport::of_last_boot(&stores));
        print_boot(&serde_json::to_value(boot)?, &mut out)?;
    }
    let status = answer.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let what = format!("no service answers at {socket}");
            match &*args.socket == Path::new(socket::USUAL) {
                true if service::is_installed() => {
                    Remedied::new(what, "sudo systemctl start prepage").because(error)
                }
                true => Remedied::new(what, "sudo prepage service install").because(error),
                false => anyhow!(error).context(what),
            }
        }
        io::ErrorKind::TimedOut => anyhow!("the service at {socket} did not answer in time"),
        _ => anyhow!(error).context(format!("the service at {socket} cannot be asked")),
    })?;
    if args.json {
        print_json(&status)?;
    } else {
        print(&status, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(status: &Value, out: &mut impl Write) -> Result<()> {
    let number = |name: &str| status[name].as_f64().unwrap_or(0.0);
    let count = |name: &str| status["counts"][name].as_u64().unwrap_or(0);
    let uptime_s = number("uptime_s").max(1e-9);
    writeln!(out, "prepaged, process {}, running for {}", status["pid"], duration(uptime_s))?;
    let share = 100.0 * number("processor_s") / uptime_s;
    let megabytes = |bytes: f64| bytes / 1e6;
    writeln!(
        out,
        "processor time: {:.2} s ({share:.3} % of one processor), at most {:.2} s of it for learning; memory: {:.1} MB",
        number("processor_s"),
        number("learning_processor_s"),
        megabytes(number("resident_bytes")),
    )?;
    print_budget(status, out)?;
    writeln!(
        out,
        "profiles in memory: {} of the machine, {} of users, {} of containers, {:.1} MB",
        status["machine_profiles"],
        status["user_profiles"],
        status["container_profiles"],
        megabytes(number("profile_bytes")),
    )?;
    writeln!(
        out,
        "starts: {} looked at, {} fetched ({:.1} MB, guesses included), {} in memory already, {} unknown ({} of them guessed), {} elsewhere, {} left alone; {} more passed over; {} of those looked at in containers",
        count("starts"),
        count("fetched"),
        megabytes(count("fetched_bytes") as f64),
        count("warm"),
        count("unknown"),
        count("guessed"),
        count("elsewhere"),
        count("left_alone"),
        count("passed"),
        count("in_containers"),
    )?;
    let (observed, learned) = (count("observed"), count("learned"));
    writeln!(
        out,
        "learning: {} observed, {learned} of them stored, {} not",
        counted(observed as usize, "start"),
        count("not_kept")
    )?;
    print_gains(&status["gains"], out)?;
    if status["idle"].is_object() {
        print_idle(status, out)?;
    }
    print_boot(&status["boot"], out)?;
    for (name, text) in [
        (
            "lost",
            "times that the kernel had no room for more events (each time the service looked at all processes)",
        ),
        ("log_not_written", "times that the launch log could not be written"),
        ("elsewhere_mount", "starts elsewhere of programs that lie on another mount than their root"),
        ("elsewhere_hidden", "starts elsewhere below roots that cannot be opened"),
        ("elsewhere_missed", "starts in containers whose exec was missed"),
        ("crowded", "starts skipped because there were too many at once"),
        ("hung", "prefetches given up because a file system did not answer"),
    ] {
        if count(name) > 0 {
            writeln!(out, "{text}: {}", count(name))?;
        }
    }
    let confined = &status["confined"];
    for (name, text) in [
        ("capabilities", "capabilities were not given up"),
        ("system_calls", "system calls are not filtered"),
        ("readers", "reading threads may write too"),
    ] {
        if let Some(why) = confined[name].as_str() {
            writeln!(out, "{text}: {why}")?;
        }
    }
    if let Some(why) = status["names_unseen"].as_str() {
        writeln!(out, "names that starts look up and never open are not learned: {why}")?;
    }
    for system in status["file_systems"].as_array().into_iter().flatten() {
        if system["is_watched"] != true {
            let text = |name: &str| printable(system[name].as_str().unwrap_or_default());
            writeln!(out, "not watched: {} ({}): {}", text("point"), text("kind"), text("reason"))?;
        }
    }
    let starts = status["last_starts"].as_array().map_or(&[][..], Vec::as_slice);
    if !starts.is_empty() {
        let columns = ["user", "last starts", "what was done", "MB", "from disk", "after ms", "took ms"];
        let mut table = table(&columns, &[0, 3, 4, 5, 6]);
        for start in starts.iter().rev().take(20) {
            let text = |name: &str| start[name].as_str().unwrap_or_default().to_owned();
            let number = |name: &str, unit: f64| {
                start[name].as_f64().map_or_else(String::new, |number| format!("{:.1}", number / unit))
            };
            let [all, from_disk] = ["fetched_bytes", "read_bytes"].map(|name| number(name, 1e6));
            let [after, took] = ["fetch_after_ms", "fetch_ms"].map(|name| number(name, 1.0));
            table.add_row([
                start["uid"].to_string(),
                text("role"),
                text("done"),
                all,
                from_disk,
                after,
                took,
            ]);
        }
        writeln!(out, "\n{}", table.lines(crate::output::width()))?;
    }
    Ok(())
}

/// What may still be taken.
fn print_budget(status: &Value, out: &mut impl Write) -> Result<()> {
    let waits =
        if status["learning_waits"] == true { ", which is for programs that nobody knows yet" } else { "" };
    let megabytes = |bytes: &Value| bytes.as_f64().unwrap_or(0.0) / 1e6;
    write!(
        out,
        "budget: {:.2} s of processor time left for learning{waits}; {:.1} MB taken by names",
        status["learning_left_s"].as_f64().unwrap_or(0.0),
        megabytes(&status["names_bytes"])
    )?;
    if status["idle"].is_object() {
        write!(
            out,
            "; at most {:.1} MB for expected programs",
            megabytes(&status["idle"]["predicted_bytes_max"])
        )?;
    }
    Ok(writeln!(out)?)
}

/// What fetching gains, as far as it is known, and in which programs.
fn print_gains(gains: &Value, out: &mut impl Write) -> Result<()> {
    let count = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
    let counts = |of: &Value| (count(of, "prefetched_starts"), count(of, "held_out_starts"));
    let (prefetched, held_out) = counts(gains);
    let Some(ratio) = gains["ratio"].as_f64() else {
        let why = if gains["is_on"] == true {
            ""
        } else {
            "; starts are neither held out nor kept, by the configuration"
        };
        writeln!(
            out,
            "gain: not known yet: {held_out} held-out and {prefetched} fetched cold starts \
             ({STARTS_MIN} of each are needed of a program){why}"
        )?;
        return Ok(());
    };
    let programs = match count(gains, "compared_programs") {
        1 => "1 program".into(),
        number => format!("geometric mean of {number} programs"),
    };
    writeln!(
        out,
        "gain: cold starts take {ratio:.2} of the time without fetching ({programs}; all programs: {prefetched} cold starts \
         fetched, {held_out} held out)"
    )?;
    let mut table =
        table(&["user", "gain", "fetched", "held out", "of the time", "starts"], &[0, 2, 3, 4, 5]);
    let programs = gains["programs"].as_array().map_or(&[][..], Vec::as_slice);
    for one in programs.iter().filter(|one| one["ratio"].is_f64()).take(10) {
        let role = one["role"].as_str().unwrap_or_default().to_owned();
        let ms = |name: &str| format!("{:.0} ms", one[name].as_f64().unwrap_or(0.0) / 1000.0);
        let off = if one["is_off"] == true { ", off" } else { "" };
        let ratio = format!("{:.2}{off}", one["ratio"].as_f64().unwrap_or(0.0));
        let (prefetched, held_out) = counts(one);
        let starts = format!("{prefetched} and {held_out}");
        table.add_row([one["uid"].to_string(), role, ms("prefetched_us"), ms("held_out_us"), ratio, starts]);
    }
    writeln!(out, "\n{}\n", table.lines(crate::output::width()))?;
    Ok(())
}

fn print_boot(boot: &Value, out: &mut impl Write) -> Result<()> {
    if !boot.is_object() {
        return Ok(writeln!(
            out,
            "last boot: no report (not followed, followed by an earlier version, or not over yet)"
        )?);
    }
    let number = |name: &str| boot[name].as_f64().unwrap_or(0.0);
    let megabytes = |pages: f64| pages * PAGE_SIZE as f64 / 1e6;
    write!(
        out,
        "last boot: {:.1} MB fetched in {:.1} s",
        megabytes(number("fetched_pages")),
        number("fetched_s")
    )?;
    if number("fetched_blocks") > 0.0 {
        write!(out, " and {:.1} MB of inodes and directories", megabytes(number("fetched_blocks")))?;
    }
    if number("began_s") > 0.0 {
        write!(out, ", beginning {:.1} s after the kernel's start", number("began_s"))?;
    }
    if boot["used_pages"].is_u64() {
        write!(out, ", {:.1} MB of known pages used", megabytes(number("used_pages")))?;
    }
    match boot["seen_pages"].as_f64() {
        Some(pages) => {
            write!(out, "; {:.1} MB seen in use", megabytes(pages))?;
            if boot["is_exact"] == false {
                write!(out, " or mapped beside that")?;
            }
        }
        None if boot["is_observed"] == false => write!(out, "; not observed")?,
        None => write!(out, "; nothing could be learned")?,
    }
    let end = if boot["is_quiet"] == true { "quiet after" } else { "not quiet within" };
    writeln!(out, ", {end} {:.0} s", number("quiet_s"))?;
    Ok(())
}

fn print_idle(status: &Value, out: &mut impl Write) -> Result<()> {
    let idle = &status["idle"];
    let count = |name: &str| status["counts"][name].as_u64().unwrap_or(0);
    let megabytes = |name: &str| count(name) as f64 / 1e6;
    writeln!(
        out,
        "expected programs: {} brought in ({:.1} MB), {} of them started; {:.1} MB used, {:.1} MB not; {} in memory now",
        count("predicted"),
        megabytes("predicted_bytes"),
        count("predicted_starts"),
        megabytes("predicted_used_bytes"),
        megabytes("predicted_unused_bytes"),
        idle["brought_programs"],
    )?;
    let machine = match idle["machine"].as_str().unwrap_or_default() {
        "idle" | "" => "is idle".into(),
        busy => format!("is busy ({busy})"),
    };
    let pause =
        if idle["is_paused"] == true { "; nothing more today: too little of it was used" } else { "" };
    writeln!(
        out,
        "{} in the launch log; the machine {machine}{pause}",
        counted(idle["remembered_programs"].as_u64().unwrap_or(0) as usize, "program")
    )?;
    let expected = idle["expected"].as_array().map_or(&[][..], Vec::as_slice);
    if !expected.is_empty() {
        let mut table = table(&["user", "expected", "probability", "brought in"], &[0, 2]);
        for one in expected.iter().take(10) {
            let role = one["role"].as_str().unwrap_or_default().to_owned();
            let share = format!("{:.0} %", 100.0 * one["probability"].as_f64().unwrap_or(0.0));
            let is_brought = if one["is_brought"] == true { "yes" } else { "no" };
            table.add_row([one["uid"].to_string(), role, share, is_brought.into()]);
        }
        writeln!(out, "\n{}\n", table.lines(crate::output::width()))?;
    }
    Ok(())
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gain_is_told_with_the_starts_that_it_rests_on_and_not_before_it_is_known() {
        let said = |gains: Value| {
            let mut said = Vec::new();
            print_gains(&gains, &mut said).unwrap();
            String::from_utf8(said).unwrap()
        };
        let gains = json!({ "is_on": true, "prefetched_starts": 5, "held_out_starts": 2, "ratio": null });
        assert_eq!(
            said(gains),
            "gain: not known yet: 2 held-out and 5 fetched cold starts (3 of each are needed of a program)\n"
        );
        let off = json!({ "is_on": false, "ratio": null });
        assert!(said(off).ends_with("; starts are neither held out nor kept, by the configuration\n"));
        let program = json!({
            "uid": 7, "role": "gdb", "prefetched_starts": 9, "held_out_starts": 3, "prefetched_us": 61500,
            "held_out_us": 123000, "ratio": 0.5, "is_off": false,
        });
        let unknown =
            json!({ "uid": 7, "role": "vim", "prefetched_starts": 2, "held_out_starts": 0, "ratio": null });
        let gains = json!({
            "is_on": true, "prefetched_starts": 11, "held_out_starts": 3, "compared_programs": 1, "ratio": 0.5,
            "programs": [program, unknown],
        });
        let said = said(gains);
        assert!(
            said.starts_with(
                "gain: cold starts take 0.50 of the time without fetching (1 program; all programs: 11 cold starts fetched, 3 held out)\n"
            ),
            "{said}"
        );
        let row = said.lines().find(|line| line.contains("gdb")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>().join(" "), "7 gdb 62 ms 123 ms 0.50 9 and 3");
        assert!(!said.contains("vim"), "{said}");
    }

    #[test]
    fn what_is_left_to_learn_with_is_told_and_whether_known_programs_wait() {
        let said = |status: Value| {
            let mut said = Vec::new();
            print_budget(&status, &mut said).unwrap();
            String::from_utf8(said).unwrap()
        };
        let mut status = json!({
            "learning_left_s": 3.6, "learning_waits": false, "names_bytes": 1_300_000, "idle": { "predicted_bytes_max": 512_000_000 },
        });
        assert_eq!(
            said(status.clone()),
            "budget: 3.60 s of processor time left for learning; 1.3 MB taken by names; at most 512.0 MB for expected programs\n"
        );
        (status["learning_waits"], status["idle"]) = (true.into(), Value::Null);
        assert_eq!(
            said(status),
            "budget: 3.60 s of processor time left for learning, which is for programs that nobody knows yet; 1.3 MB taken by names\n"
        );
    }

    #[test]
    fn a_minute_has_no_60_seconds_left() {
        let said = [0.4, 59.6, 119.7, 3599.7, 7199.9].map(duration);
        assert_eq!(said, ["0 min 0 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "2 h 0 min"]);
    }

    #[test]
    fn of_a_boot_without_a_report_or_where_nothing_could_be_learned_nothing_is_said_to_be_seen() {
        let said = |boot: Value| {
            let mut said = Vec::new();
            print_boot(&boot, &mut said).unwrap();
            String::from_utf8(said).unwrap()
        };
        assert_eq!(
            said(Value::Null),
            "last boot: no report (not followed, followed by an earlier version, or not over yet)\n"
        );
        let boot = json!({ "fetched_pages": 0, "seen_pages": null, "is_quiet": true, "quiet_s": 20.0 });
        assert_eq!(
            said(boot),
            "last boot: 0.0 MB fetched in 0.0 s; nothing could be learned, quiet after 20 s\n"
        );
        let known = json!({ "seen_pages": null, "is_observed": false, "is_quiet": true, "quiet_s": 20.0 });
        assert!(said(known).ends_with("; not observed, quiet after 20 s\n"));
        let inexact = json!({ "seen_pages": 1000, "is_exact": false, "is_quiet": true, "quiet_s": 20.0 });
        assert!(said(inexact).ends_with("; 4.1 MB seen in use or mapped beside that, quiet after 20 s\n"));
        let boot = json!({ "seen_pages": 1000, "is_quiet": false, "quiet_s": 300.0 });
        assert!(said(boot).ends_with("; 4.1 MB seen in use, not quiet within 300 s\n"));
    }
}
