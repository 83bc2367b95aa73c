//! The run that results come from.

use std::time::{Duration, UNIX_EPOCH};

use prepage_core::{PAGE_SIZE, TraceFacts};

/// A command line that a shell would read as these arguments.
pub fn shell_words(arguments: &[String]) -> String {
    let word = |argument: &String| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    arguments.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// What was recorded: the command, the processes, or the whole machine; `None` where the trace does not say.
pub fn subject(facts: &TraceFacts) -> Option<String> {
    match facts.pids.as_slice() {
        _ if !facts.command.is_empty() => Some(shell_words(&facts.command)),
        [pid] => Some(format!("process {pid}")),
        [_, ..] => {
            let pids: Vec<String> = facts.pids.iter().map(u32::to_string).collect();
            Some(format!("processes {}", pids.join(", ")))
        }
        [] => facts.system_wide.then(|| "every process of the machine".to_owned()),
    }
}

/// When the run began, in UTC; `None` where the trace does not say.
pub fn started(facts: &TraceFacts) -> Option<String> {
    let since = Duration::from_nanos(facts.started_unix_ns);
    (facts.started_unix_ns > 0).then(|| humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string())
}

/// What the footer of a page says of the run: what was recorded, the kernel, the page size, what the trace lacks.
pub fn footer(facts: &TraceFacts) -> Vec<String> {
    let kernel = if facts.kernel.is_empty() { "unknown" } else { &facts.kernel };
    let mut parts: Vec<String> = subject(facts).into_iter().collect();
    parts.extend([format!("Linux {kernel}"), format!("pages of {PAGE_SIZE} bytes")]);
    parts.extend(started(facts).map(|started| format!("recorded {started}")));
    parts.extend(match facts.probe_cost_ns {
        Some(ns) => Some(format!("cost of observing, taken off each fault: {ns} ns")),
        None => has_kernels_costs(facts).then(|| "costs hold what recording added to them".to_owned()),
    });
    parts.push(facts.completeness());
    parts.push(format!("prepage {}", env!("CARGO_PKG_VERSION")));
    parts
}

/// Whether faults of the kernel have costs: recording adds to these, not to those of a VM.
fn has_kernels_costs(facts: &TraceFacts) -> bool {
    let imported = facts.imported.as_ref();
    // Only what prepage records of the kernel's faults has these counts.
    facts.counted.is_some() || imported.is_some_and(|from| !from.costs_unknown && from.sampled.is_none())
}

#[cfg(test)]
mod tests {
    use prepage_core::ImportFacts;

    use super::*;

    #[test]
    fn costs_that_hold_what_recording_added_are_said_to() {
        let imported = |from| TraceFacts { imported: Some(from), ..TraceFacts::default() };
        let sampled = Some("one event in 20".to_owned());
        for (facts, is_said) in [
            (TraceFacts { counted: Some((1, 0)), ..TraceFacts::default() }, true),
            (imported(ImportFacts::default()), true),
            (imported(ImportFacts { costs_unknown: true, ..ImportFacts::default() }), false),
            (imported(ImportFacts { sampled, ..ImportFacts::default() }), false),
            (TraceFacts::default(), false),
        ] {
            let said = footer(&facts);
            assert_eq!(said.iter().any(|part| part.starts_with("costs hold")), is_said, "{said:?}");
        }
    }
}
