//! A comparison for the browser: one file that needs no network, and reads without JavaScript as tables.

use std::io::{self, Write};

use prepage_display::html::Document;
use prepage_display::run;
use prepage_display::table::Table;
use serde_json::{Value, json};

use crate::comparison::Row;
use crate::input::Input;
use crate::memory::MemoryFaults;
use crate::tables;

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
    /// How much that is, and what is missing.
    pub facts: &'a str,
    /// What was replayed.
    pub input: &'a Input,
    /// The policies. Others are compared with the first.
    pub rows: &'a [Row<'a>],
    /// [`tables::policies`] of `rows`.
    pub policies: &'a Table,
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
        let facts: Vec<String> = self.facts.lines().map(str::to_owned).collect();
        document.header("prepage simulate", self.title, &facts)?;
        document.raw(PLOTS)?;
        if self.memory.is_some() {
            document.raw(
                "<section><h2>Faults with too little memory</h2><div id=\"memory\"></div></section>\n",
            )?;
        }
        document.raw("</main>\n")?;
        document.table("All policies", self.policies)?;
        document.table("Hard faults by file", &tables::objects(self.input, self.rows, OBJECTS))?;
        if let Some(memory) = self.memory {
            document.table("Faults with too little memory", &tables::memory(memory))?;
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
}
