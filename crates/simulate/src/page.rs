//! A comparison for the browser: one file that needs no network, and reads without JavaScript as tables.

use std::fmt::Write as _;
use std::io::{self, Write};

use prepage_report::html::{escaped, frame};
use serde_json::{Value, json};

use crate::comparison::Row;
use crate::input::Input;
use crate::memory::{MemoryFaults, RULES};

/// Objects in the table.
const OBJECTS: usize = 40;

const SCRIPT: &str = include_str!("../assets/policies.js");
const OWN_STYLE: &str = "td.less { background: color-mix(in srgb, #009e73 calc(var(--share) * 1%), transparent); } \
    td.more { background: color-mix(in srgb, #d55e00 calc(var(--share) * 1%), transparent); } \
    .u-legend { text-align: left; } caption + tbody td { padding: 2px 12px; }";

const PLOTS: &str = r#"<noscript><p class="note">The plots need JavaScript; the tables say the same in numbers.</p></noscript>
<main id="plots" hidden>
<p class="hint">Drag to zoom in, double click for all; click a name to hide it.</p>
<section><h2>What each policy pays for fewer faults</h2><div id="trade-off"></div></section>
<section><h2>Faults saved over time, against <select id="base" aria-label="the policy compared with"></select></h2><div id="saved"></div></section>
"#;

/// What is shown.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// What was replayed, in the user's words.
    pub title: &'a str,
    /// How much that is, in one line.
    pub facts: &'a str,
    /// What was replayed.
    pub input: &'a Input,
    /// The policies. Others are compared with the first.
    pub rows: &'a [Row<'a>],
    /// Faults with too little memory.
    pub memory: Option<&'a MemoryFaults>,
}

impl Page<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (title, facts) = (escaped(self.title), escaped(self.facts));
        frame::begin(&format!("policies on {title}"), OWN_STYLE, out)?;
        writeln!(
            out,
            "<header><p class=\"tool\">prepage simulate</p><h1>{title}</h1><p>{facts}</p></header>\n{PLOTS}"
        )?;
        if self.memory.is_some() {
            writeln!(
                out,
                "<section><h2>Faults with too little memory</h2><div id=\"memory\"></div></section>"
            )?;
        }
        writeln!(out, "</main>")?;
        self.policies(out)?;
        self.objects(out)?;
        if let Some(memory) = self.memory {
            memory_table(memory, out)?;
        }
        if let Some(facts) = &self.input.facts {
            frame::footer(facts, out)?;
        }
        frame::end(&self.data(), &[SCRIPT], out)
    }

    fn data(&self) -> Value {
        let policy = |row: &Row<'_>| {
            let samples = row.plain.samples.iter().map(|sample| json!([sample.touches, sample.hard]));
            json!({
                "name": row.name,
                "hard": row.plain.outcome.hard,
                "never_percent": row.plain.outcome.never_percent(),
                "samples": samples.collect::<Vec<_>>(),
            })
        };
        let memory = self.memory.map(|memory| {
            let ratio = |faults: u64| faults as f64 / memory.touches.max(1) as f64;
            let rule = |at: usize| memory.faults.iter().map(|(_, faults)| ratio(faults[at])).collect::<Vec<_>>();
            json!({
                "pages": memory.faults.iter().map(|(pages, _)| *pages).collect::<Vec<_>>(),
                "rules": RULES.iter().enumerate().map(|(at, name)| json!([name, rule(at)])).collect::<Vec<_>>(),
            })
        });
        json!({ "policies": self.rows.iter().map(policy).collect::<Vec<_>>(), "memory": memory })
    }

    fn policies(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut headings: Vec<String> = [
            "hard",
            "soft",
            "I/Os",
            "whole",
            "cut short",
            "pages read",
            "never touched",
            "%",
            "2 MiB resident",
            "mapped",
        ]
        .map(str::to_owned)
        .to_vec();
        for (device, _) in self.rows.first().into_iter().flat_map(|row| &row.timed) {
            headings.extend([format!("{device} ms"), "waits ms".to_owned(), "late".to_owned()]);
        }
        begin("All policies", "policy", headings.iter().map(String::as_str), out)?;
        for row in self.rows {
            let outcome = &row.plain.outcome;
            let mut cells = format!(
                "<td>{}</td>{}",
                escaped(row.name),
                changed(outcome.hard, self.rows[0].plain.outcome.hard)
            );
            let mut add = |text: String| {
                let _ = write!(cells, "<td class=\"number\">{text}</td>");
            };
            let (whole, cut) = outcome.full_and_truncated();
            for count in [outcome.soft, outcome.io, whole, cut, outcome.read, outcome.never] {
                add(count.to_string());
            }
            add(format!("{:.2}", outcome.never_percent()));
            add(outcome.full512.to_string());
            add(outcome.superpages.to_string());
            for (_, timed) in &row.timed {
                add(format!("{:.1}", timed.outcome.time_ns as f64 / 1e6));
                add(format!("{:.1}", timed.outcome.stall_ns as f64 / 1e6));
                add(timed.outcome.late.to_string());
            }
            writeln!(out, "<tr>{cells}</tr>")?;
        }
        end(out)
    }

    /// Hard faults by object; what a policy saves or adds against the first is coloured.
    fn objects(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = std::iter::once("pages").chain(self.rows.iter().map(|row| row.name));
        begin("Hard faults by file", "file", names, out)?;
        let hard = |row: &Row<'_>, at: usize| row.plain.outcome.objects[at].hard;
        let most = |at: usize| self.rows.iter().map(|row| hard(row, at)).max();
        let mut order: Vec<usize> = (0..self.input.layout.objects.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(most(at)));
        for &at in order.iter().take(OBJECTS) {
            let object = &self.input.layout.objects[at];
            let base = hard(&self.rows[0], at);
            let cells: String = self.rows.iter().map(|row| changed(hard(row, at), base)).collect();
            writeln!(
                out,
                "<tr><td>{}</td><td class=\"number\">{}</td>{cells}</tr>",
                escaped(&object.name),
                object.pages
            )?;
        }
        end(out)?;
        match order.len().checked_sub(OBJECTS) {
            Some(more @ 1..) => {
                writeln!(out, "<p class=\"note\">{more} files with fewer faults are left out.</p>")
            }
            _ => Ok(()),
        }
    }
}

fn memory_table(memory: &MemoryFaults, out: &mut dyn Write) -> io::Result<()> {
    begin("Faults with too little memory", "pages", RULES.into_iter(), out)?;
    for (pages, faults) in &memory.faults {
        let cells: String = faults.iter().map(|count| format!("<td class=\"number\">{count}</td>")).collect();
        writeln!(out, "<tr><td>{pages}</td>{cells}</tr>")?;
    }
    end(out)
}

/// A cell with `count`, coloured by how far it is from `base`.
fn changed(count: u64, base: u64) -> String {
    let share = 100.0 * count.abs_diff(base) as f64 / base.max(count).max(1) as f64;
    let class = match count.cmp(&base) {
        std::cmp::Ordering::Less => " less",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => " more",
    };
    // More than this would hide the number.
    format!("<td class=\"number{class}\" style=\"--share:{:.0}\">{count}</td>", share.min(60.0))
}

fn begin<'a>(
    caption: &str,
    first: &str,
    numbers: impl Iterator<Item = &'a str>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let headings: String =
        numbers.map(|heading| format!("<th class=\"number\">{}</th>", escaped(heading))).collect();
    writeln!(
        out,
        "<div class=\"table\"><table><caption>{caption}</caption><thead><tr><th>{first}</th>{headings}</tr></thead><tbody>"
    )
}

fn end(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "</tbody></table></div>")
}
