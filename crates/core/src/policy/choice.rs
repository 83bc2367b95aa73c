//! Any of the policies, chosen by a string.

use std::fmt;
use std::str::FromStr;

use super::adaptive::Adaptive;
use super::linux::{Linux, Mapping};
use super::predicted::Predicted;
use super::{Cluster, EntryState, FaultAt, Holes, Neighbours, Residency, context};
use crate::page::PageRange;

/// Pages in a cluster of FreeBSD.
const CLUSTER_PAGES: u32 = 16;

/// Most pages FreeBSD reads ahead (`VM_FAULT_READ_MAX` − 1).
pub const MOST_AHEAD: u32 = 31;

/// Linux's default read-ahead: 128 KiB.
const READ_AHEAD_PAGES: u32 = 32;

/// Pages that Linux's fault-around maps at once: 64 KiB (`fault_around_bytes`).
const FAULT_AROUND_PAGES: u32 = 16;

/// Largest number of pages in an option: 1 GiB. More is a mistake, or meant to be `slurp`.
const MOST_PAGES: u32 = 1 << 18;

/// How strings name policies, one line a policy.
pub const GRAMMAR: &str = "\
none                      the faulting page alone (also: random)
around:B:A                B pages behind and A ahead (fixed87 is around:8:7)
aligned:N                 the aligned cluster of N pages (aligned16)
sequential[:MAX]          MAX pages ahead (31)
obl                       one page ahead
readaround:N              N pages, the fault in their middle (readaround32)
adaptive[:max=M,cluster=N]  FreeBSD's: growing windows up to M (31), else aligned clusters of N (16) (freebsd)
context                   prepage's own: aligned blocks of 16, adapted to the resident pages around them
linux[:ra=R,map=M]        Linux, by what each mapping is: read-ahead of R pages (32), faults map up to M (16)
linux-data[:ra=R,map=M]   Linux, as if all were data mappings
linux-exec[:ra=R,map=M]   Linux, as if all were executable mappings
slurp                     everything at the first fault
predicted[:N]             what a profile says, and aligned clusters of N (16) for the rest";

/// Words that can stand first and that [`GRAMMAR`] has in brackets only.
const ALIASES: [&str; 5] = ["random", "fixed87", "aligned16", "readaround32", "freebsd"];

/// One of the policies.
///
/// Its string, as in [`GRAMMAR`], means the same wherever a policy can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Reads `behind` pages before the faulting one and `ahead` after it.
    ///
    /// FreeBSD read 8/7 before it aligned its clusters; 0/0 reads single pages (`none`, MADV_RANDOM), 0/1 is one-block
    /// lookahead (`obl`; Smith, "Sequentiality and prefetching in database systems", 1978), 0/31 what FreeBSD reads under
    /// MADV_SEQUENTIAL.
    Around {
        /// Pages before.
        behind: u32,
        /// Pages after.
        ahead: u32,
    },
    /// Reads so many pages, the faulting one in the middle; at the object's start as many, all from page 0.
    ///
    /// Linux's read-around of mapped files, without all that surrounds it (see [`super::linux`]).
    ReadAround(u32),
    /// Reads the whole cluster of so many pages that the faulting page lies in; clusters begin at multiples of that in the
    /// *object*, so that all maps of it agree and neighbours never cut each other short.
    ///
    /// Source: FreeBSD, "Revamp the default page clustering strategy that is used by the page fault handler" (2015).
    Aligned(u32),
    /// FreeBSD's.
    Adaptive(Adaptive),
    /// prepage's own: aligned blocks that heed what is resident around them (`docs/policies.md`).
    Context,
    /// Linux's.
    Linux(Linux),
    /// The first fault reads the whole window of the map entry.
    Slurp,
    /// A profile's pages.
    Predicted(Predicted),
}

/// A string that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Nothing is called so.
    #[error("no policy is called `{name}`{}", nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default())]
    Unknown {
        /// What was given.
        name: String,
        /// The name most like it.
        nearest: Option<&'static str>,
    },
    /// An option is missing, is not a number of pages, or is one too many.
    #[error("policy `{policy}`: {problem}; it is written {form}")]
    Option {
        /// What was given.
        policy: String,
        /// What is wrong with it.
        problem: String,
        /// How it is written.
        form: &'static str,
    },
}

impl Policy {
    /// The memory of an entry that has not faulted yet.
    pub fn entry(&self, window: PageRange) -> EntryState {
        match self {
            Self::Adaptive(_) => Adaptive::entry(window),
            _ => EntryState::default(),
        }
    }

    /// What to read from the first fault of an entry on, in this order and in the background, as far as it lies in the
    /// entry's window. Most policies: nothing.
    pub fn opening(&self) -> &[PageRange] {
        match self {
            Self::Predicted(predicted) => predicted.opening(),
            _ => &[],
        }
    }

    /// The page is missing: what to read. The fault waits for it.
    pub fn hard(&self, entry: &mut EntryState, fault: &FaultAt, memory: &impl Residency) -> Cluster {
        match self {
            Self::Around { behind, ahead } => Cluster::around(fault.page, (*behind).into(), (*ahead).into()),
            Self::ReadAround(pages) => {
                let pages = u64::from(*pages);
                let behind = fault.page.0.min(pages / 2);
                Cluster::around(fault.page, behind, pages - 1 - behind)
            }
            Self::Aligned(pages) => Cluster::aligned(fault.page, *pages),
            Self::Adaptive(adaptive) => adaptive.hard(entry, fault),
            Self::Context => context::cluster(fault, memory),
            Self::Linux(linux) => linux.hard(entry, fault),
            Self::Slurp => Cluster::new(fault.window, Holes::Skip),
            Self::Predicted(predicted) => predicted.hard(fault),
        }
    }

    /// The page was resident and only had to be mapped: what to read in the background.
    pub fn soft(&self, entry: &mut EntryState, fault: &FaultAt, memory: &impl Residency) -> Option<Cluster> {
        match self {
            Self::Linux(linux) => linux.soft(entry, fault, memory),
            _ => None,
        }
    }

    /// A hard fault read the run `read`, which holds its page.
    pub fn read(&self, entry: &mut EntryState, read: PageRange) {
        if let Self::Adaptive(_) = self {
            entry.next = read.end();
        }
    }

    /// A fault mapped `pages` pages, its own and neighbours.
    pub fn mapped(&self, entry: &mut EntryState, pages: u64) {
        if let Self::Linux(linux) = self {
            linux.mapped(entry, pages);
        }
    }

    /// Which neighbours faults map.
    pub fn neighbours(&self) -> Neighbours {
        match self {
            Self::Linux(linux) => Neighbours::Block(linux.fault_around.into()),
            _ => Neighbours::Spiral(4),
        }
    }

    /// Whether it remembers anything of an entry between faults; if not, its [`EntryState`] need not be kept.
    pub fn remembers(&self) -> bool {
        matches!(self, Self::Adaptive(_) | Self::Linux(_))
    }

    /// Whether its clusters have room for the page that was touched.
    pub fn has_pages(&self) -> bool {
        match self {
            Self::ReadAround(pages) | Self::Aligned(pages) => *pages > 0,
            Self::Adaptive(policy) => policy.cluster > 0,
            Self::Linux(policy) => policy.fault_around > 0,
            _ => true,
        }
    }

    /// The policy `text`, in which `sequential` and `adaptive` read at most `most_ahead` pages ahead unless they name a
    /// number themselves.
    ///
    /// # Errors
    /// Text that names no policy.
    pub fn parse(text: &str, most_ahead: u32) -> Result<Self, PolicyError> {
        let (name, options) = match text.split_once(':') {
            Some((name, options)) => (name, Some(options)),
            None => (text, None),
        };
        let form = form(name);
        let error = |problem: String| PolicyError::Option { policy: text.to_owned(), problem, form };
        let pages = |text: &str, least: u32| match text.parse::<u32>() {
            Ok(pages) if (least..=MOST_PAGES).contains(&pages) => Ok(pages),
            _ => Err(error(format!("`{text}` is not a number of pages from {least} to {MOST_PAGES}"))),
        };
        let required = || options.ok_or_else(|| error("a number of pages is missing".to_owned()));
        let optional = |least, or| options.map_or(Ok(or), |text| pages(text, least));
        let alone = |policy| match options {
            None => Ok(policy),
            Some(_) => Err(error("it takes no options".to_owned())),
        };
        match name {
            "none" | "random" => alone(Self::Around { behind: 0, ahead: 0 }),
            "fixed87" => alone(Self::Around { behind: 8, ahead: 7 }),
            "obl" => alone(Self::Around { behind: 0, ahead: 1 }),
            "aligned16" => alone(Self::Aligned(CLUSTER_PAGES)),
            "readaround32" => alone(Self::ReadAround(READ_AHEAD_PAGES)),
            "context" => alone(Self::Context),
            "slurp" => alone(Self::Slurp),
            "around" => {
                let (behind, ahead) =
                    required()?.split_once(':').ok_or_else(|| error("it takes two numbers".to_owned()))?;
                Ok(Self::Around { behind: pages(behind, 0)?, ahead: pages(ahead, 0)? })
            }
            "aligned" => Ok(Self::Aligned(pages(required()?, 1)?)),
            "readaround" => Ok(Self::ReadAround(pages(required()?, 1)?)),
            "sequential" => Ok(Self::Around { behind: 0, ahead: optional(0, most_ahead)? }),
            "adaptive" | "freebsd" => {
                let mut adaptive = Adaptive { max: most_ahead, cluster: CLUSTER_PAGES };
                for option in options.into_iter().flat_map(|options| options.split(',')) {
                    match option.split_once('=') {
                        Some(("max", value)) => adaptive.max = pages(value, 0)?,
                        Some(("cluster", value)) => adaptive.cluster = pages(value, 1)?,
                        _ => return Err(error(format!("`{option}` is not one of its options"))),
                    }
                }
                Ok(Self::Adaptive(adaptive))
            }
            "linux" | "linux-data" | "linux-exec" => {
                let mapping = match name {
                    "linux-data" => Mapping::Data,
                    "linux-exec" => Mapping::Exec,
                    _ => Mapping::Own,
                };
                let mut linux =
                    Linux { read_ahead: READ_AHEAD_PAGES, mapping, fault_around: FAULT_AROUND_PAGES };
                for option in options.into_iter().flat_map(|options| options.split(',')) {
                    match option.split_once('=') {
                        Some(("ra", value)) => linux.read_ahead = pages(value, 0)?,
                        Some(("map", value)) => {
                            linux.fault_around = pages(value, 1)?;
                            if !linux.fault_around.is_power_of_two() {
                                return Err(error(format!("`{value}` is not a power of two")));
                            }
                        }
                        _ => return Err(error(format!("`{option}` is not one of its options"))),
                    }
                }
                Ok(Self::Linux(linux))
            }
            "predicted" => Ok(Self::Predicted(Predicted::new(&[], optional(1, CLUSTER_PAGES)?))),
            _ => Err(PolicyError::Unknown { name: name.to_owned(), nearest: nearest(name) }),
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text, MOST_AHEAD)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Around { behind: 0, ahead: 0 } => f.write_str("none"),
            Self::Around { behind: 0, ahead: 1 } => f.write_str("obl"),
            Self::Around { behind: 0, ahead } => write!(f, "sequential:{ahead}"),
            Self::Around { behind, ahead } => write!(f, "around:{behind}:{ahead}"),
            Self::ReadAround(pages) => write!(f, "readaround:{pages}"),
            Self::Aligned(pages) => write!(f, "aligned:{pages}"),
            Self::Adaptive(Adaptive { max, cluster }) => write!(f, "adaptive:max={max},cluster={cluster}"),
            Self::Linux(Linux { read_ahead, mapping, fault_around }) => {
                let name = match mapping {
                    Mapping::Own => "linux",
                    Mapping::Data => "linux-data",
                    Mapping::Exec => "linux-exec",
                };
                write!(f, "{name}:ra={read_ahead},map={fault_around}")
            }
            Self::Context => f.write_str("context"),
            Self::Slurp => f.write_str("slurp"),
            Self::Predicted(predicted) => write!(f, "predicted:{}", predicted.others),
        }
    }
}

/// The line of [`GRAMMAR`] that says how the policy `name` is written.
fn form(name: &str) -> &'static str {
    let name = if name == "freebsd" { "adaptive" } else { name };
    let stem = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let written = |line: &'static str| line.split_once("  ").map_or(line, |(form, _)| form);
    GRAMMAR.lines().map(written).find(|form| form.starts_with(stem)).unwrap_or("without options")
}

/// The name that `name` is most likely a misspelling of.
fn nearest(name: &str) -> Option<&'static str> {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    let names = GRAMMAR.lines().filter_map(|line| line.split([':', '[', ' ']).next());
    names.chain(ALIASES).min_by_key(distance).filter(|known| distance(known) <= known.len().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        let written = GRAMMAR.lines().filter_map(|line| line.split([' ', '[']).next());
        let given = [
            "around:3:5",
            "aligned:64",
            "readaround:8",
            "adaptive:max=63",
            "linux-data:map=1,ra=8",
            "fixed87",
        ];
        for text in written.filter(|text| !text.contains(':')).chain(given) {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy, "{text}");
        }
    }

    #[test]
    fn a_number_of_its_own_stands_against_the_common_one() {
        for (text, meant) in [
            ("adaptive", "adaptive:max=5,cluster=16"),
            ("adaptive:max=63", "adaptive:max=63,cluster=16"),
            ("sequential", "sequential:5"),
            ("sequential:31", "sequential:31"),
            ("aligned:16", "aligned:16"),
        ] {
            assert_eq!(Policy::parse(text, 5).unwrap().to_string(), meant);
        }
    }

    #[test]
    fn a_mistyped_name_suggests_the_nearest() {
        let error = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
        assert!(error("alinged:16").contains("did you mean `aligned`?"), "{}", error("alinged:16"));
        assert!(error("adaptiv").contains("`adaptive`"));
        assert_eq!(error("xyzzy"), "no policy is called `xyzzy`");
    }

    #[test]
    fn options_that_make_no_sense_are_reported_with_the_form() {
        let error = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
        assert!(error("aligned").contains("a number of pages is missing; it is written aligned:N"));
        for text in [
            "aligned:0",
            "aligned:x",
            "aligned:99999999999999999999",
            "around:3",
            "around:-1:2",
            "aligned:16:2",
        ] {
            assert!(error(text).starts_with(&format!("policy `{text}`: ")), "{text}");
        }
        assert!(error("slurp:3").contains("no options"));
        assert!(error("freebsd:foo").contains("adaptive[:max=M,cluster=N]"));
        assert!(error("linux-data:map=3").contains("not a power of two"));
        assert!(error("adaptive:most=3").contains("adaptive[:max=M,cluster=N]"));
    }
}
