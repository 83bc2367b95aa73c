//! `prepage config`: what is in force, and who said so.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use prepage_prefetch::config::{Config, KEYS, MEANINGS, Mistake};

use crate::output::print_json;
use crate::table::table;

/// What the help says behind the options, and the manual page that the machine's file names.
fn help() -> String {
    let keys: String =
        KEYS.iter().zip(MEANINGS).map(|(key, meaning)| format!("  {key}  {meaning}\n")).collect();
    format!(
        "Configuration:\n{keys}\n\
        Files:\n  /etc/prepage.conf  The machine's, with lines such as `learn = no`; # begins a comment\n  \
        ~/.config/prepage/config  Your own, which wins; patterns of both count\n\n\
        See also:\n  prepage(1); environment.md in /usr/share/doc/prepage or /usr/local/share/doc/prepage"
    )
}

/// Options of `prepage config`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. Fails where a file has mistakes.
pub fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load();
    let paths = Config::paths();
    let origin = |at: usize| config.origins[at].as_ref().map_or("default".into(), ToString::to_string);
    let mut out = crate::output::text();
    if args.json {
        let values: serde_json::Map<String, serde_json::Value> = KEYS
            .iter()
            .enumerate()
            .map(|(at, key)| {
                let value = serde_json::json!({ "value": config.value(at), "origin": origin(at) });
                ((*key).to_owned(), value)
            })
            .collect();
        let mistakes: Vec<String> = config.mistakes.iter().map(ToString::to_string).collect();
        let report = serde_json::json!({
            "schema_version": 1,
            "files": paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "values": values,
            "mistakes": mistakes,
        });
        print_json(&report)?;
    } else {
        let mut table = table(&["key", "value", "said by"], &[]).whole(1);
        for (at, key) in KEYS.iter().enumerate() {
            table.add_row([(*key).to_owned(), config.value(at), origin(at)]);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))?;
        for path in &paths {
            let is_unread = |mistake: &Mistake| mistake.path == *path && mistake.line.is_none();
            let state = match config.mistakes.iter().any(is_unread) {
                true => "cannot be read",
                false if path.exists() => "read",
                false => "not there",
            };
            writeln!(out, "{}: {state}", path.display())?;
        }
        let of_service = std::env::home_dir().map(|home| home.join(".config/prepage/config"));
        if paths.get(1).is_some_and(|own| Some(own) != of_service.as_ref()) {
            writeln!(out, "The service does not know XDG_CONFIG_HOME: it reads ~/.config/prepage/config")?;
        }
    }
    for mistake in &config.mistakes {
        say!("prepage: {mistake}");
    }
    Ok(if config.mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
