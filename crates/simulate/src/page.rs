//! A comparison for the browser: one file that needs no network, and reads without JavaScript as tables.

use std::io::{self, Write};

use prepage_display::html::{Cell, Document, Heading};
use prepage_display::run;
use serde_json::{Value, json};

use crate::comparison::Row;
use crate::input::Input;
use crate::memory::MemoryFaults;

/// Objects in the table.
const OBJECTS: usize = 40;

const SCRIPT: &str = include_str!("../assets/policies.js");
const OWN_STYLE: &str = ".u-legend { text-align: left; } caption + tbody td { padding: 2px 12px; }";

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
        let mut document = Document::begin(out, &format!("policies on {}", self.title), OWN_STYLE)?;
        document.header("prepage simulate", self.title, &[self.facts.to_owned()])?;
        document.raw(PLOTS)?;
        if self.memory.is_some() {
            document.raw(
                "<section><h2>Faults with too little memory</h2><div id=\"memory\"></div></section>\n",
            )?;
        }
        document.raw("</main>\n")?;
        self.policies(&mut document)?;
        self.objects(&mut document)?;
        if let Some(memory) = self.memory {
            let rows = memory.faults.iter().map(|(pages, faults)| {
                std::iter::once(pages).chain(faults).map(|count| Cell::from(*count)).collect()
            });
            let headings = headings("pages", memory.names());
            document.table("Faults with too little memory", &headings, rows, None, 0)?;
        }
        if let Some(facts) = &self.input.facts {
            document.footer(&run::footer(facts))?;
        }
        document.end(&self.data(), &[SCRIPT])
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
                "rules": memory.names().enumerate().map(|(at, name)| json!([name, rule(at)])).collect::<Vec<_>>(),
            })
        });
        json!({ "policies": self.rows.iter().map(policy).collect::<Vec<_>>(), "memory": memory })
    }

    fn policies(&self, document: &mut Document<'_>) -> io::Result<()> {
        let mut names: Vec<String> = [
            "hard",
            "soft",
            "I/Os",
            "full",
            "truncated",
            "pages read",
            "never touched",
            "%",
            "2 MiB resident",
            "mapped",
        ]
        .map(str::to_owned)
        .to_vec();
        for (device, _) in self.rows.first().into_iter().flat_map(|row| &row.timed) {
            names.extend([format!("{device} ms"), "waits ms".to_owned(), "late".to_owned()]);
        }
        let rows = self.rows.iter().map(|row| {
            let outcome = &row.plain.outcome;
            let (full, truncated) = outcome.full_and_truncated();
            let mut cells =
                vec![row.name.into(), Cell::compared(outcome.hard, self.rows[0].plain.outcome.hard)];
            let counts = [outcome.soft, outcome.io, full, truncated, outcome.read, outcome.never];
            cells.extend(counts.map(Cell::from));
            cells.push(format!("{:.2}", outcome.never_percent()).into());
            cells.extend([outcome.full512.to_string().into(), outcome.superpages.to_string().into()]);
            for (_, timed) in &row.timed {
                let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6).into();
                let late = timed.outcome.late.to_string().into();
                cells.extend([ms(timed.outcome.time_ns), ms(timed.outcome.stall_ns), late]);
            }
            cells
        });
        let headings = headings("policy", names.iter().map(String::as_str));
        document.table("All policies", &headings, rows, None, 0)
    }

    /// Hard faults by object; what a policy saves or adds against the first is coloured.
    fn objects(&self, document: &mut Document<'_>) -> io::Result<()> {
        let hard = |row: &Row<'_>, at: usize| row.plain.outcome.objects[at].hard;
        let most = |at: usize| self.rows.iter().map(|row| hard(row, at)).max();
        let mut order: Vec<usize> = (0..self.input.layout.objects.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(most(at)));
        let rows = order.iter().take(OBJECTS).map(|&at| {
            let object = &self.input.layout.objects[at];
            let base = hard(&self.rows[0], at);
            let counts = self.rows.iter().map(|row| Cell::compared(hard(row, at), base));
            [object.name.as_str().into(), object.pages.into()].into_iter().chain(counts).collect()
        });
        let headings = headings("file", std::iter::once("pages").chain(self.rows.iter().map(|row| row.name)));
        document.table("Hard faults by file", &headings, rows, None, order.len().saturating_sub(OBJECTS))
    }
}

/// The heading of the names, and those of the numbers after them.
fn headings<'a>(first: &str, numbers: impl Iterator<Item = &'a str>) -> Vec<Heading> {
    std::iter::once(Heading::text(first)).chain(numbers.map(Heading::number)).collect()
}
