//! What a trace lacks, said by every command that uses it.

use std::path::Path;

use prepage_core::{Missing, TraceFacts};

/// Names each of the `gaps` of the trace `path` on standard error, with what helps.
pub fn tell(gaps: &[Missing], path: &Path) {
    tell_gaps(&format!("{} is incomplete: ", path.display()), gaps.iter().cloned());
}

/// The same of a trace that was just made. What its filters left out, the user asked for.
pub fn tell_new(facts: &TraceFacts) {
    let gaps = facts.missing().into_iter().filter(|gap| !matches!(gap, Missing::Filtered { .. }));
    tell_gaps("", gaps);
}

fn tell_gaps(of: &str, gaps: impl IntoIterator<Item = Missing>) {
    for gap in gaps {
        say!("prepage: {of}{gap}");
        let remedy = match gap {
            // What it says of root, root has done.
            Missing::Lost { .. } if rustix::process::geteuid().is_root() => {
                Some("record while the machine has less to do")
            }
            Missing::Mappings { .. } if rustix::process::geteuid().is_root() => None,
            _ => gap.remedy(),
        };
        if let Some(remedy) = remedy {
            say!("  try: {remedy}");
        }
    }
}
