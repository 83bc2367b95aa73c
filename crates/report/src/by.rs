//! Faults grouped: by class, file, thread and so on.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use prepage_core::{CodePlace, FaultClass, StackId, Thread};
use prepage_display::number;
use prepage_display::table::{Cell, Heading, Table};
use rustc_hash::FxHashMap;

use crate::column::Column;
use crate::costs::Costs;
use crate::report::Report;
use crate::symbols::{nameless, places_of_calls};

prepage_core::named! {
    /// What faults are grouped by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum By {
        /// What the fault had to do.
        Class = "class",
        /// The file, or kind of anonymous memory, that was touched.
        File = "file",
        /// The same, by what the mapping allows.
        Mapping = "mapping",
        /// The thread, with the name it had.
        Thread = "thread",
        /// The process.
        Process = "process",
        /// The name of the thread.
        Comm = "comm",
        /// When it began, in slices of equal length.
        Time = "time",
        /// The file whose code touched the page.
        Code = "code",
        /// The function that touched the page.
        Symbol = "symbol",
        /// The calls that led to it.
        Stack = "stack",
    }
}

impl By {
    /// What the cells that name a row are called.
    pub const fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Class => &["class"],
            Self::File => &["file"],
            Self::Thread => &["comm", "pid", "tid"],
            Self::Process => &["process", "pid"],
            Self::Comm => &["comm"],
            Self::Time => &["from_ms", "to_ms"],
            Self::Mapping => &["permissions", "file"],
            Self::Code => &["code"],
            Self::Symbol => &["symbol", "code"],
            Self::Stack => &["stack"],
        }
    }
}

/// A cell that names a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// A name.
    Text(String),
    /// A number without a unit.
    Number(u64),
    /// A time since the trace's start, in nanoseconds.
    Time(u64),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Time(ns) => f.write_str(&number::ms(*ns)),
        }
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Faults of one group.
#[derive(Clone, Debug)]
pub struct Row {
    /// One for each of [`By::labels`].
    pub labels: Vec<Label>,
    /// By file or mapping: how many files have this path, in containers or one after the other. Else 1.
    pub files: usize,
    /// The faults.
    pub costs: Costs,
}

/// `path`, and how many files have it, if they are several.
pub fn name_of_files(path: &str, files: usize) -> String {
    if files > 1 { format!("{path} ({files} files)") } else { path.to_owned() }
}

/// All groups.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// What they are grouped by.
    pub by: By,
    /// Classes in their order, slices by time, all else by cost, the slowest first.
    pub rows: Vec<Row>,
    /// All rows together, those left out too.
    pub total: Costs,
    /// How many rows were left out.
    pub left_out: usize,
    /// Whether the trace says what faults cost.
    pub has_costs: bool,
    /// Whether the trace says which faults read from a device.
    pub tells_disk: bool,
}

impl Grouped {
    /// The groups with these columns of figures, and all faults as the total.
    pub(crate) fn table(&self, columns: &[Column], tsc_hz: Option<u64>) -> Table {
        let labels = self.by.labels();
        // Stacks are longer than any line: figures behind them would not be seen.
        let ahead = if self.by == By::Stack { labels.len() } else { 0 };
        let figures = |costs: &Costs| -> Vec<Cell> {
            let is_unknown = |column: &Column| {
                column.is_sum_of_costs() && !self.has_costs || column.is_of_disk() && !self.tells_disk
            };
            let figure = |column: &Column| match is_unknown(column) {
                true => "-".into(),
                false => column.text(costs, &self.total, tsc_hz).into(),
            };
            columns.iter().map(figure).collect()
        };
        let row = |names: Vec<Cell>, costs: &Costs| {
            let mut cells = [names, figures(costs)].concat();
            cells.rotate_left(ahead);
            cells
        };
        let heading = |(at, label): (usize, &&str)| match self.rows.first().map(|row| &row.labels[at]) {
            Some(Label::Number(_) | Label::Time(_)) => Heading::number(*label),
            Some(Label::Text(_)) | None => Heading::text(*label),
        };
        let mut headings: Vec<Heading> = labels.iter().enumerate().map(heading).collect();
        headings.extend(columns.iter().map(|column| Heading::number(column.heading())));
        headings.rotate_left(ahead);
        let cells = |of: &Row| {
            let mut names: Vec<String> = of.labels.iter().map(Label::to_string).collect();
            // The path stands last.
            if let Some(path) = names.last_mut() {
                *path = name_of_files(path, of.files);
            }
            names.into_iter().map(Cell::from).collect()
        };
        let mut all = vec![Cell::default(); labels.len()];
        all[0] = "all".into();
        Table {
            headings,
            rows: self.rows.iter().map(|of| row(cells(of), &of.costs)).collect(),
            total: Some(row(all, &self.total)),
            left_out: self.left_out,
            shown_by: format!("--by {} --top N", self.by.name()),
            ..Table::default()
        }
    }
}

/// What the faults of a process cost, in nanoseconds, by whether its first thread took them or another, and by that thread's name.
type ThreadNames<'a> = BTreeMap<(bool, &'a str), u64>;

impl Report {
    /// The faults grouped `by`, at most `top` rows of them (classes and slices: all).
    ///
    /// What the report was not asked for when it was read has no rows.
    pub fn grouped(&self, by: By, top: usize) -> Grouped {
        let mut rows: Vec<Row> = match by {
            By::Class => self.by_class(),
            By::Time => self.by_time(),
            By::File => self.merged_files(&self.objects, |object| vec![self.path(*object).into()]),
            By::Mapping => self.merged_files(&self.mappings, |(object, permissions)| {
                vec![permissions.text().into(), self.path(*object).into()]
            }),
            By::Code => self.merged(&self.codes, |place| vec![self.code_path(*place).into()]),
            By::Symbol => self.merged(&self.codes, |place| {
                vec![self.symbol(*place).as_str().into(), self.code_path(*place).into()]
            }),
            By::Stack => self.merged(&self.stacks, |stack| vec![self.stack_line(*stack).as_str().into()]),
            By::Thread => self.by_thread(|thread| {
                let [pid, tid] = [thread.pid, thread.tid].map(|id| Label::Number(id.into()));
                vec![thread.comm.as_str().into(), pid, tid]
            }),
            By::Comm => self.by_thread(|thread| vec![thread.comm.as_str().into()]),
            By::Process => self.by_process(),
        };
        let mut left_out = 0;
        if !matches!(by, By::Class | By::Time) {
            rows.sort_by(|a, b| {
                let slowest_first = |row: &Row| Reverse((row.costs.tally.cost_ns, row.costs.tally.count));
                let order = slowest_first(a).cmp(&slowest_first(b));
                order.then_with(|| a.labels.cmp(&b.labels))
            });
            left_out = rows.len().saturating_sub(top);
            rows.truncate(top);
        }
        let (has_costs, tells_disk) = (self.has_costs, self.facts.tells_disk_faults());
        Grouped { by, rows, total: self.total(), left_out, has_costs, tells_disk }
    }

    /// The function at `place`, or where it is known to be.
    pub fn symbol(&self, place: CodePlace) -> String {
        self.symbols.name(place).map_or_else(|| nameless(self.code_path(place)), str::to_owned)
    }

    /// The stack's functions, the leaf first, in one line.
    fn stack_line(&self, stack: Option<StackId>) -> String {
        let Some(id) = stack else { return "[no stack]".to_owned() };
        self.calls(id).join(" < ")
    }

    /// The stack's functions, the leaf first.
    ///
    /// Interpreted and stripped code calls itself dozens of levels deep under one name in brackets. Such levels are given
    /// as one.
    pub(crate) fn calls(&self, id: StackId) -> Vec<String> {
        let places = places_of_calls(&self.stack_table[id.index()].places);
        let mut calls: Vec<String> = places.map(|place| self.symbol(place)).collect();
        calls.dedup_by(|caller, call| caller == call && call.starts_with('['));
        calls
    }

    fn by_class(&self) -> Vec<Row> {
        let classes = FaultClass::ALL.iter().zip(&self.classes).filter(|(_, costs)| costs.tally.count > 0);
        let row = |(class, costs): (&FaultClass, &Costs)| Row {
            labels: vec![class.name().into()],
            files: 1,
            costs: costs.clone(),
        };
        classes.map(row).collect()
    }

    fn by_time(&self) -> Vec<Row> {
        let slices = self.slices.iter().enumerate().map(|(at, classes)| {
            let mut costs = Costs::default();
            classes.iter().for_each(|class| costs.merge(class));
            let bounds = [at, at + 1].map(|at| Label::Time((at as f64 * self.slice_ns()) as u64));
            Row { labels: bounds.to_vec(), files: 1, costs }
        });
        slices.collect()
    }

    fn by_thread(&self, labels: impl Fn(&Thread) -> Vec<Label>) -> Vec<Row> {
        self.merged(&self.threads, |index| labels(&self.thread_table[index.0 as usize]))
    }

    /// One row for all groups that have the same labels.
    fn merged<K>(&self, groups: &FxHashMap<K, Costs>, labels: impl Fn(&K) -> Vec<Label>) -> Vec<Row> {
        let files = self.merged_files(groups, labels);
        files.into_iter().map(|row| Row { files: 1, ..row }).collect()
    }

    /// The same of groups of which each is of another file.
    fn merged_files<K>(&self, groups: &FxHashMap<K, Costs>, labels: impl Fn(&K) -> Vec<Label>) -> Vec<Row> {
        let mut rows: BTreeMap<Vec<Label>, (usize, Costs)> = BTreeMap::new();
        for (key, costs) in groups {
            let (files, sum) = rows.entry(labels(key)).or_default();
            *files += 1;
            sum.merge(costs);
        }
        rows.into_iter().map(|(labels, (files, costs))| Row { labels, files, costs }).collect()
    }

    /// A process goes by the names that its first thread had, the slowest first: it may have become another program. Where that
    /// thread took no fault, by the names of the others.
    fn by_process(&self) -> Vec<Row> {
        let mut processes: BTreeMap<u32, (Costs, ThreadNames<'_>)> = BTreeMap::new();
        for (index, costs) in &self.threads {
            let thread = &self.thread_table[index.0 as usize];
            let (sum, names) = processes.entry(thread.pid).or_default();
            sum.merge(costs);
            *names.entry((thread.tid != thread.pid, &thread.comm)).or_default() += costs.tally.cost_ns;
        }
        let row = |(pid, (costs, names)): (u32, (Costs, ThreadNames<'_>))| {
            let of_others = names.keys().all(|(of_other, _)| *of_other);
            let names = names.into_iter().filter(|((of_other, _), _)| *of_other == of_others);
            let mut names: Vec<(&str, u64)> = names.map(|((_, name), cost_ns)| (name, cost_ns)).collect();
            names.sort_by_key(|&(name, cost_ns)| (Reverse(cost_ns), name));
            let mut text = names.iter().take(3).map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            if names.len() > 3 {
                text += ", …";
            }
            Row { labels: vec![Label::Text(text), Label::Number(pid.into())], files: 1, costs }
        };
        processes.into_iter().map(row).collect()
    }
}
