//! Scripts of processes that map, fork, write and exit, replayed on shadow chains.
//!
//! A line is one of these; empty lines and lines that begin with `#` are skipped:
//!
//! ```text
//! map NAME PAGES        process NAME maps so many pages of zeros
//! map NAME PAGES file   process NAME maps a file of so many pages, privately
//! fork NAME CHILD       process CHILD begins with what NAME has
//! write NAME PAGES      process NAME writes pages: 3, 0-7, 1,4-6 or all
//! exit NAME             process NAME ends
//! destroy               pages that no process sees any more are found and destroyed
//! ```

use std::collections::HashMap;
use std::io::{self, BufRead};

use prepage_core::PageIndex;
use prepage_core::chain::{ChainCounts, Chains, LinkId};

/// Most pages of a map: 1 TiB.
const PAGES_MAX: u64 = 1 << 28;

/// What a script did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forked {
    /// Forks.
    pub forks: u64,
    /// What was copied, moved and destroyed.
    pub counts: ChainCounts,
    /// The collapses: after how many forks, and how many pages were copied.
    pub collapses: Vec<(u64, u64)>,
    /// Processes that are left at the end.
    pub processes: usize,
    /// Links that are left at the end, files among them.
    pub links: usize,
    /// Pages that these hold, those of files excepted.
    pub pages: u64,
}

/// A line that cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ScriptError {
    /// Counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is not of the script's forms.
    #[error(
        "`{0}` is not a step; write map NAME PAGES [file], fork NAME CHILD, write NAME PAGES, exit NAME or destroy"
    )]
    Form(String),
    /// No process has this name.
    #[error("no process is called `{0}`")]
    Unknown(String),
    /// A process of this name exists.
    #[error("there is a process called `{0}` already")]
    Taken(String),
    /// The pages are not pages of the map.
    #[error("`{pages}` are not pages of a map of {of} pages; write 3, 0-7, 1,4-6 or all")]
    Pages {
        /// What was given.
        pages: String,
        /// Pages of the map.
        of: u64,
    },
    /// The number of pages cannot be mapped.
    #[error("`{0}` is not a number of pages from 1 to {PAGES_MAX}")]
    Size(String),
    /// Reading failed.
    #[error("reading failed: {0}")]
    Read(io::Error),
}

/// Follows a script.
///
/// # Errors
/// The first line that cannot be followed.
pub fn replay(script: impl BufRead) -> Result<Forked, ScriptError> {
    let mut processes = Processes::default();
    for (line, text) in (1..).zip(script.lines()) {
        let step = text.map_err(Problem::Read).and_then(|text| processes.step(text.trim()));
        step.map_err(|problem| ScriptError { line, problem })?;
    }
    Ok(processes.outcome())
}

#[derive(Default)]
struct Processes {
    chains: Chains,
    /// By name: what the process looks at, and how many pages it maps.
    maps: HashMap<String, (LinkId, u64)>,
    forks: u64,
    collapses: Vec<(u64, u64)>,
}

impl Processes {
    fn step(&mut self, text: &str) -> Result<(), Problem> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [] => Ok(()),
            [first, ..] if first.starts_with('#') => Ok(()),
            ["map", name, pages] => self.map(name, pages, Chains::add_anonymous),
            ["map", name, pages, "file"] => self.map(name, pages, Chains::add_terminal),
            ["fork", name, child] => {
                let (top, pages) = self.of(name)?;
                self.begin(child, top, pages)?;
                self.chains.hold(top);
                self.forks += 1;
                Ok(())
            }
            ["write", name, pages] => self.write(name, pages),
            ["exit", name] => {
                let (top, _) = self.of(name)?;
                self.chains.release(top);
                self.maps.remove(name);
                Ok(())
            }
            ["destroy"] => {
                self.chains.destroy_shadowed();
                Ok(())
            }
            _ => Err(Problem::Form(text.to_owned())),
        }
    }

    fn of(&self, name: &str) -> Result<(LinkId, u64), Problem> {
        self.maps.get(name).copied().ok_or_else(|| Problem::Unknown(name.to_owned()))
    }

    fn begin(&mut self, name: &str, top: LinkId, pages: u64) -> Result<(), Problem> {
        if self.maps.contains_key(name) {
            return Err(Problem::Taken(name.to_owned()));
        }
        self.maps.insert(name.to_owned(), (top, pages));
        Ok(())
    }

    fn map(&mut self, name: &str, pages: &str, add: fn(&mut Chains, u64) -> LinkId) -> Result<(), Problem> {
        let number = pages.parse().ok().filter(|pages| (1..=PAGES_MAX).contains(pages));
        let number = number.ok_or_else(|| Problem::Size(pages.to_owned()))?;
        if self.maps.contains_key(name) {
            return Err(Problem::Taken(name.to_owned()));
        }
        let top = add(&mut self.chains, number);
        self.begin(name, top, number)
    }

    fn write(&mut self, name: &str, list: &str) -> Result<(), Problem> {
        let (mut top, of) = self.of(name)?;
        let wrong = || Problem::Pages { pages: list.to_owned(), of };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < of).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> =
            if list == "all" { Some(vec![0..=of - 1]) } else { list.split(',').map(range).collect() };
        for page in ranges.ok_or_else(wrong)?.into_iter().flatten() {
            let before = self.chains.counts();
            top = self.chains.write(top, PageIndex(page)).top;
            let after = self.chains.counts();
            if after.collapses > before.collapses {
                self.collapses.push((self.forks, after.collapse_copies - before.collapse_copies));
            }
        }
        self.maps.insert(name.to_owned(), (top, of));
        Ok(())
    }

    fn outcome(self) -> Forked {
        let chains = &self.chains;
        Forked {
            forks: self.forks,
            counts: chains.counts(),
            collapses: self.collapses,
            processes: self.maps.len(),
            links: chains.links().count(),
            pages: chains.links().flat_map(|link| chains.own_pages(link)).map(|pages| pages.len()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_followed() {
        let script = "# a server and its worker\nmap server 100 file\nwrite server 0-9\n\nfork server worker\nwrite worker 3,5\nexit server\n";
        let forked = replay(script.as_bytes()).unwrap();
        // The worker's link takes over the eight pages that it had not written itself.
        let counts = ChainCounts {
            write_copies: 12,
            merges: 1,
            moved: 8,
            destroyed: 2,
            depth_max: 2,
            ..ChainCounts::default()
        };
        let expected = Forked { forks: 1, counts, collapses: Vec::new(), processes: 1, links: 2, pages: 10 };
        assert_eq!(forked, expected);
    }

    #[test]
    fn lines_that_cannot_be_followed_are_named() {
        let error = |script: &str| replay(script.as_bytes()).unwrap_err().to_string();
        assert!(
            error("map a 8\nforks a b\n").starts_with("line 2: `forks a b` is not a step; write map NAME")
        );
        assert_eq!(error("fork a b"), "line 1: no process is called `a`");
        assert_eq!(error("map a 8\nmap a 8"), "line 2: there is a process called `a` already");
        assert_eq!(error("map a 8\nfork a a"), "line 2: there is a process called `a` already");
        assert!(error("map a 0").contains("from 1 to"));
        for pages in ["8", "3-1", "x", "", "1-"] {
            let script = format!("map a 8\nwrite a {pages}");
            assert!(error(&script).starts_with("line 2: "), "{pages}");
        }
        assert_eq!(error("map a 8\nexit a\nwrite a 1"), "line 3: no process is called `a`");
    }
}
