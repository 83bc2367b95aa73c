//! `prepage vm top`: the pools of running processes.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_display::number::pages_as_size;
use prepage_display::terminal::{Lines, height, shortened};
use prepage_sys::sync::Anyway;
use prepage_vm::viewed::{AskError, Socket, sockets};
use prepage_vm::{PoolView, View};
use serde_json::{Map, Value, json};

use crate::output::{self, print_json};
use crate::remedy::Remedied;
use crate::table::table;
use prepage_profiles::chain;

/// Who does not answer for so long is passed over.
const PATIENCE: Duration = Duration::from_secs(2);
/// Each by a thread. Others choose how many processes there are to ask.
const ASKED_AT_ONCE: usize = 16;
/// Moves a terminal's cursor to its beginning, and clears what is behind it.
const HOME: &str = "\x1b[H";
const CLEAR: &str = "\x1b[J";

/// Options of `prepage vm top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only this process; repeatable [default: all processes of yours]
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = crate::usage::pid)]
    pid: Vec<u32>,
    /// Print the table once and exit, even on a terminal
    #[arg(long)]
    once: bool,
    /// Print JSON once and exit
    #[arg(long)]
    json: bool,
    /// Show the largest objects of each pool: 10 of them, or COUNT
    #[arg(long, value_name = "COUNT", default_value_t = 0, default_missing_value = "10", num_args = 0..=1)]
    objects: usize,
    /// Seconds between two updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 3600 are possible".into()) }
}

/// What one look at all processes saw.
struct Look {
    answers: Vec<Answer>,
    /// Processes that could not be read, and why.
    failed: Vec<(u32, AskError)>,
}

/// What one process said.
struct Answer {
    /// Processes of containers may have one number. This is one process's alone.
    socket: Socket,
    when: Instant,
    view: View,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let is_once = args.once || args.json || !io::stdout().is_terminal();
    let mut last: Option<Look> = None;
    loop {
        let now = Look::at(&args.pid)?;
        if args.json {
            print_json(&now.json(args.objects))?;
        } else if is_once {
            now.print(None, args, &mut output::text())?;
        } else {
            // Of the processes that were asked for none is left.
            if now.answers.is_empty() && now.failed.is_empty() {
                now.outcome(args)?;
            }
            let mut text = Lines(Vec::new());
            now.print(last.as_ref(), args, &mut text)?;
            let screen = screen(&String::from_utf8_lossy(&text.0), output::width(), height(io::stdout()));
            let mut out = output::stdout();
            write!(out, "{HOME}{screen}{CLEAR}")?;
            out.flush()?;
        }
        if is_once {
            return now.outcome(args);
        }
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        last = Some(now);
    }
}

/// The lines of `text` as a terminal of `columns` and `rows` shows them without moving them up: none goes on in the next row, and the last row is
/// the cursor's.
fn screen(text: &str, columns: Option<usize>, rows: Option<usize>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.map_or(usize::MAX, |rows| rows - 1);
    // The line that says how many are left out is one of those that are shown.
    let shown = if lines.len() <= room { lines.len() } else { room.saturating_sub(1) };
    let more = (shown < lines.len()).then(|| format!("and {}", counted(lines.len() - shown, "more line")));
    let lines = lines[..shown].iter().copied().chain(more.as_deref());
    // Old ends of lines are cleared with each of them, so that nothing flickers.
    lines.map(|line| format!("{}\x1b[K\n", shortened(line, columns.unwrap_or(usize::MAX)))).collect()
}

impl Look {
    fn at(pids: &[u32]) -> Result<Self> {
        let found =
            sockets().context("cannot read /proc/net/unix, which lists the processes that use prepage-vm")?;
        let asked: Vec<Socket> =
            found.into_iter().filter(|socket| pids.is_empty() || pids.contains(&socket.pid())).collect();
        let next = AtomicUsize::new(0);
        let answers: Mutex<Vec<(usize, Result<Answer, AskError>)>> = Mutex::default();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(socket) = asked.get(at) else { return };
                let answer = |view| Answer { socket: socket.clone(), when: Instant::now(), view };
                let answer = socket.ask(PATIENCE).map(answer);
                answers.lock().anyway().push((at, answer));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..ASKED_AT_ONCE.min(asked.len()) {
                // One that cannot be started is one fewer that asks.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let mut answers = answers.into_inner().expect("no panics");
        answers.sort_by_key(|(at, _)| *at);
        let mut look = Self { answers: Vec::new(), failed: Vec::new() };
        for (at, answer) in answers {
            match answer {
                Ok(answer) => look.answers.push(answer),
                // As if it had never been found, unless it was asked for.
                Err(AskError::Ended) if pids.is_empty() => {}
                Err(error) => look.failed.push((asked[at].pid(), error)),
            }
        }
        Ok(look)
    }

    /// Success where every process that was asked answered.
    fn outcome(&self, args: &Args) -> Result<ExitCode> {
        if let Some(pid) = args.pid.iter().find(|&&pid| !self.has(pid)) {
            let why = "it uses no prepage-vm, has ended, or is in another network namespace";
            bail!(Remedied::new(format!("process {pid}: {why}"), "prepage vm top"));
        }
        let is_other_users = |error: &AskError| matches!(error, AskError::OtherUser(_));
        let passed = self.failed.iter().any(|(_, error)| !args.pid.is_empty() || !is_other_users(error));
        Ok(if passed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn has(&self, pid: u32) -> bool {
        self.answers.iter().any(|answer| answer.view.pid == pid)
            || self.failed.iter().any(|failed| failed.0 == pid)
    }

    fn pools(&self) -> impl Iterator<Item = (&Answer, &PoolView)> {
        self.answers.iter().flat_map(|answer| answer.view.pools.iter().map(move |pool| (answer, pool)))
    }

    /// The table, with what was counted since the look before, a second, where there is one.
    fn print(&self, last: Option<&Self>, args: &Args, out: &mut impl Write) -> Result<()> {
        let before = last.map(|look| {
            let pools = look.pools();
            let pools = pools.map(|(answer, pool)| ((&answer.socket, pool.number), (answer.when, pool)));
            pools.collect::<BTreeMap<_, _>>()
        });
        let counts = ["faults", "reads", "waits", "reclaimed", "again", "swapped"];
        let counts = counts.map(|name| if before.is_some() { format!("{name}/s") } else { name.to_owned() });
        let memory = [
            "pid", "program", "limit", "resident", "wired", "unwired", "pinned", "dirty", "swap", "reserved",
        ];
        let headings: Vec<String> = memory.map(String::from).into_iter().chain(counts).collect();
        let mut largest = table(&["pid", "program", "resident", "of", "object"], &[0, 2, 3]);
        // Of the counts, faults and what is reclaimed say most; of the sizes, those that pools always have.
        let mut table = table(&headings, &[0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
            .spare(&[9, 15, 14, 12, 11, 8, 6, 7]);
        for (answer, pool) in self.pools() {
            let view = &answer.view;
            let counts = match &before {
                None => counts_of(pool).map(|count| count.to_string()),
                Some(before) => {
                    let old = before.get(&(&answer.socket, pool.number));
                    let rates = old.and_then(|(when, old)| rates(old, pool, answer.when - *when));
                    rates.map_or_else(
                        || ["-"; 6].map(str::to_owned),
                        |rates| rates.map(|rate| format!("{rate:.0}")),
                    )
                }
            };
            let figures = &pool.figures;
            let limit = limit_pages(pool).map_or_else(|| "none".to_owned(), pages_as_size);
            let sizes = [
                figures.resident_pages,
                figures.wired_pages,
                figures.unwired_pages,
                figures.pinned_pages,
                figures.dirty_pages,
                figures.swap_pages,
                figures.reserved_pages,
            ];
            let row = [view.pid.to_string(), view.command.clone(), limit].into_iter();
            table.add_row(row.chain(sizes.map(pages_as_size)).chain(counts));
            for object in pool.largest.iter().take(args.objects) {
                let [resident, pages] = [object.resident_pages, object.pages].map(pages_as_size);
                largest.add_row([
                    view.pid.to_string(),
                    view.command.clone(),
                    resident,
                    pages,
                    object.name.clone(),
                ]);
            }
        }
        if !table.rows.is_empty() {
            writeln!(out, "{}", table.lines(output::width()))?;
        } else if args.pid.is_empty() && self.failed.is_empty() {
            writeln!(out, "no process of yours uses prepage-vm in this network namespace")?;
        }
        if !largest.rows.is_empty() {
            writeln!(out, "\n{}", largest.lines(output::width()))?;
        }
        // Of all processes nobody wants to know which have none.
        for answer in
            self.answers.iter().filter(|answer| !args.pid.is_empty() && answer.view.pools.is_empty())
        {
            writeln!(out, "process {}: it has no VM now", answer.view.pid)?;
        }
        for (pid, error) in &self.failed {
            writeln!(out, "process {pid}: {}", chain(error))?;
        }
        Ok(())
    }

    fn json(&self, objects: usize) -> Value {
        let pool = |pool: &PoolView| {
            let mut fields: Map<String, Value> =
                pool.numbers().into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect();
            fields.insert("limit_pages".into(), limit_pages(pool).into());
            let object = |object: &prepage_vm::PoolObject| {
                json!({
                    "name": object.name,
                    "pages": object.pages,
                    "resident_pages": object.resident_pages,
                    "unwired_pages": object.unwired_pages,
                    "dirty_pages": object.dirty_pages,
                })
            };
            let largest: Vec<Value> = pool.largest.iter().take(objects).map(object).collect();
            fields.insert("largest_objects".into(), largest.into());
            Value::Object(fields)
        };
        let view = |view: &View| {
            let pools: Vec<Value> = view.pools.iter().map(pool).collect();
            json!({ "pid": view.pid, "program": view.command, "pools": pools })
        };
        let failed = |(pid, error): &(u32, AskError)| json!({ "pid": pid, "reason": chain(error) });
        json!({
            "schema_version": 1,
            "page_bytes": PAGE_SIZE,
            "processes": self.answers.iter().map(|answer| view(&answer.view)).collect::<Vec<_>>(),
            "not_shown": self.failed.iter().map(failed).collect::<Vec<_>>(),
        })
    }
}

/// Faults, reads, waits for frames, frames that were reclaimed, those that came back, and pages that were swapped.
fn counts_of(pool: &PoolView) -> [u64; 6] {
    let counted = &pool.counted;
    [
        counted.hard + counted.soft + counted.zero,
        counted.reads + counted.background_reads,
        counted.frame_waits,
        counted.pages_reclaimed,
        counted.pages_refaulted,
        counted.pages_swapped,
    ]
}

/// How much was counted a second. `None` where a VM is seen to have gone meanwhile, which takes along what it had counted. If another has come in its
/// place, that shows only by counts that fell.
fn rates(before: &PoolView, now: &PoolView, within: Duration) -> Option<[f64; 6]> {
    let has_all = before.vms <= now.vms;
    let (before, now) = (counts_of(before), counts_of(now));
    let is_whole = has_all && before.iter().zip(now).all(|(before, now)| *before <= now);
    is_whole.then(|| std::array::from_fn(|at| (now[at] - before[at]) as f64 / within.as_secs_f64()))
}

/// `None` of a pool without a limit.
fn limit_pages(pool: &PoolView) -> Option<u64> {
    let limit = pool.figures.limit_pages;
    (limit != u64::MAX).then_some(limit)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    fn printed(look: &Look, last: Option<&Look>) -> String {
        let args = Args { pid: Vec::new(), once: false, json: false, objects: 0, interval: 1.0 };
        let mut text = Vec::new();
        look.print(last, &args, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn that_nobody_has_a_vm_is_told_where_all_are_known() {
        let none = printed(&Look { answers: Vec::new(), failed: Vec::new() }, None);
        assert!(none.starts_with("no process of yours"), "{none}");
        let failed = vec![(9, AskError::Silent)];
        let silent = printed(&Look { answers: Vec::new(), failed }, None);
        assert!(silent.starts_with("process 9: it does not answer"), "{silent}");
    }

    /// What is shown of processes of one number that had these VMs and had counted these faults before, and these two seconds later.
    fn rates_of(name: &str, counted: &[[(u64, u64); 2]]) -> Vec<String> {
        let names = format!("prepage-vm/{}/{name}-", std::process::id());
        let name = |nth| SocketAddr::from_abstract_name(format!("{names}{nth}")).unwrap();
        let listen = |nth| UnixListener::bind_addr(&name(nth)).unwrap();
        let _listeners: Vec<UnixListener> = (0..counted.len()).map(listen).collect();
        let own = |socket: &Socket| format!("{socket:?}").contains(&names);
        let sockets: Vec<Socket> = sockets().unwrap().into_iter().filter(own).collect();
        assert_eq!(sockets.len(), counted.len());
        let began = Instant::now();
        let look = |when: Instant, nth: usize| {
            let answer = |(socket, counted): (&Socket, &[(u64, u64); 2])| {
                let (vms, faults) = counted[nth];
                let pool = format!("pool number=1 vms={vms} hard={faults}");
                let text = format!("prepage-vm 1\nprocess pid=7\n{pool}\nend\n");
                Answer { socket: socket.clone(), when, view: View::decode(&text).unwrap() }
            };
            Look { answers: sockets.iter().zip(counted).map(answer).collect(), failed: Vec::new() }
        };
        let before = look(began, 0);
        let now = look(began + Duration::from_secs(2), 1);
        let text = printed(&now, Some(&before));
        let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let headings = rows.next().unwrap();
        // From the end: the program has no name.
        let at = headings.len() - headings.iter().position(|heading| *heading == "faults/s").unwrap();
        rows.map(|row| row[row.len() - at].to_owned()).collect()
    }

    #[test]
    fn rates_are_of_each_process_though_several_have_one_number() {
        assert_eq!(rates_of("rates", &[[(1, 1_000_000), (1, 1_000_020)], [(1, 50), (1, 150)]]), ["10", "50"]);
    }

    #[test]
    fn no_rate_is_shown_where_counts_went_with_a_vm() {
        let kept = [(1, 100), (1, 100)];
        // Once another has come in its place, and once the others counted more than it took along.
        let gone = [[(1, 100), (1, 40)], [(2, 1_100), (1, 5_100)]];
        assert_eq!(rates_of("fewer", &[gone[0], gone[1], kept]), ["-", "-", "0"]);
    }

    #[test]
    fn a_screen_has_a_row_for_the_cursor_and_no_line_that_needs_two() {
        let text = "heading\none\ntwo, which is long\nthree\n";
        let rows = |columns, rows| {
            let screen = screen(text, columns, rows);
            screen.split_terminator("\x1b[K\n").map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rows(None, None), ["heading", "one", "two, which is long", "three"]);
        assert_eq!(rows(Some(10), Some(5)), ["heading", "one", "two, whic…", "three"]);
        assert_eq!(rows(Some(10), Some(4)), ["heading", "one", "and 2 mor…"]);
        assert_eq!(rows(None, Some(2)), ["and 4 more lines"]);
    }
}
