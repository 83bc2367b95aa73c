//! `prepage profile show`: one profile, what it was worth, and why it believes what it does.

use std::io::Write;

use anyhow::{Result, anyhow};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::gain::{Gain, STARTS_MIN};
use prepage_core::profile::start::{OBSERVE_WARM_EVERY, observe_every};
use prepage_core::profile::worth::{expected_waste, threshold, worthwhile};
use prepage_core::profile::{
    ColdStart, Extent, Lookup, OBSERVATIONS_MAX, PAGES_A_MISS, Profile, ProfiledFile,
};
use prepage_core::quantity::counted;
use prepage_display::number::age;
use prepage_display::terminal::printable;
use prepage_prefetch::engine::device_of;
use prepage_profiles::Stores;
use prepage_profiles::identity::{Skipped, open_if_same};
use prepage_profiles::stored::Listed as StoreEntry;
use prepage_sys::clock;
use prepage_sys::device_number;
use serde::Serialize;

use super::{Listed, layer_of, what_is_wrong};
use crate::output::print_json;
use crate::table::table;

/// Shows one profile.
pub fn show(stores: &Stores, entry: &StoreEntry, json: bool, out: &mut impl Write) -> Result<()> {
    let (path, loaded) = entry;
    let profile = loaded.as_ref().map_err(|error| anyhow!("{}: {}", path.display(), what_is_wrong(error)))?;
    let worth = Worth::of(profile);
    let files: Vec<ShownFile> =
        profile.files.iter().map(|file| ShownFile::new(file, worth.threshold)).collect();
    if json {
        let shown = serde_json::json!({
            "schema_version": 2,
            "profile": Listed::new(stores, path, loaded),
            "worth": worth,
            "observations_due": profile.history.due,
            "cold_starts": profile.starts,
            "files": files,
            "lookups": profile.lookups.iter().map(ShownLookup::from).collect::<Vec<_>>(),
        });
        return Ok(print_json(&shown)?);
    }
    let is_own = layer_of(stores, path) == "user";
    let path = path.to_string_lossy();
    let [role, program, path] = [&*profile.role, &*profile.program, &*path].map(printable);
    writeln!(out, "{role}\nprogram  {program}\nkept in  {path}")?;
    writeln!(
        out,
        "learned  from {} of {}; last changed {} ago",
        match profile.history.observations {
            OBSERVATIONS_MAX => format!("{OBSERVATIONS_MAX} or more starts"),
            fewer => counted(fewer.into(), "start"),
        },
        counted(profile.sources.len().max(1), "host"),
        age(clock::unix_s().saturating_sub(profile.history.updated_unix_s))
    )?;
    writeln!(
        out,
        "needs    {} ({:.1} MB) of {}, {}",
        counted(profile.pages() as usize, "page"),
        (profile.pages() * PAGE_SIZE) as f64 / 1e6,
        counted(profile.files.len(), "file"),
        counted(profile.lookups.len(), "name"),
    )?;
    worth.write(out)?;
    match profile.history.due {
        0 => writeln!(
            out,
            "observed 1 cold start in {}, and 1 warm start in {OBSERVE_WARM_EVERY}",
            observe_every(&profile.starts)
        )?,
        due => writeln!(
            out,
            "observed the next {}{}: few are known, or the program seems to have changed",
            counted(due.into(), "start"),
            if is_own { "" } else { " that the service sees" }
        )?,
    }
    let headings = ["pages", "of", "read", "left", "likely", "state", "file"];
    let mut table = table(&headings, &[0, 1, 2, 3, 4]);
    for file in &files {
        let counts = [file.pages, file.file_pages, file.read_pages, file.left_pages];
        let mut row: Vec<String> = counts.iter().map(u64::to_string).collect();
        row.push(in_percent(file.probability));
        row.extend([file.state.into(), file.path.clone()]);
        table.add_row(row);
    }
    Ok(writeln!(out, "{}", table.lines(crate::output::width()))?)
}

/// What a profile was and is expected to be worth.
#[derive(Serialize)]
struct Worth {
    /// By device, that of the last start first.
    gains: Vec<DeviceGain>,
    /// Cold starts that were prefetched, of those that are remembered.
    prefetched_starts: usize,
    /// Of these, those that were observed: only of them it is known which pages were used.
    observed_starts: usize,
    /// Of the pages needed in the observed ones, the share that was brought in ahead.
    hit_share: Option<f64>,
    /// Of the pages that the next start brings in, the share that is not expected to be used.
    waste_share: f64,
    /// Pages that are known and not likely enough to be brought in.
    left_pages: u64,
    /// The probability from which pages are brought in.
    threshold: f64,
    /// Of the pages brought in ahead in observed starts, the share that was not used.
    wasted_share: Option<f64>,
}

#[derive(Serialize)]
struct DeviceGain {
    /// `major:minor`, as `lsblk` and `prepage calibrate` have it.
    device: String,
    prefetched_starts: usize,
    held_out_starts: usize,
    prefetched_us: Option<u32>,
    held_out_us: Option<u32>,
    ratio: Option<f64>,
    off: bool,
}

impl Worth {
    fn of(profile: &Profile) -> Self {
        let figures = device_of(profile);
        let planned = worthwhile(profile, &figures);
        let starts: Vec<&ColdStart> = profile.starts.iter().filter(|start| !start.held_out).collect();
        let observed: Vec<&ColdStart> = starts.iter().copied().filter(|start| start.observed).collect();
        let sum =
            |count: fn(&ColdStart) -> u32| observed.iter().map(|start| f64::from(count(start))).sum::<f64>();
        let (brought, wasted) = (sum(|start| start.prefetched_pages), sum(|start| start.wasted_pages));
        let used = sum(|start| start.prefetched_pages.saturating_sub(start.wasted_pages));
        let needed = used + PAGES_A_MISS as f64 * sum(|start| start.missed_pages);
        let mut devices: Vec<u64> = Vec::new();
        for start in profile.starts.iter().rev() {
            if !devices.contains(&start.device) {
                devices.push(start.device);
            }
        }
        Self {
            gains: devices.into_iter().map(|device| DeviceGain::new(device, &profile.starts)).collect(),
            prefetched_starts: starts.len(),
            observed_starts: observed.len(),
            hit_share: (needed > 0.0).then(|| used / needed),
            waste_share: expected_waste(&planned),
            left_pages: profile.pages() - planned.pages(),
            threshold: threshold(&figures),
            wasted_share: (brought > 0.0).then(|| wasted / brought),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        if self.gains.is_empty() {
            writeln!(out, "gain     not known: no cold start since it was learned")?;
        }
        for gain in &self.gains {
            gain.write(out)?;
        }
        if let Some(share) = self.hit_share {
            let (share, starts) = (in_percent(share), counted(self.observed_starts, "observed cold start"));
            writeln!(out, "hits     {share} of the pages needed in {starts} were brought in ahead")?;
        }
        writeln!(
            out,
            "waste    {} of the pages brought in are not expected to be used",
            in_percent(self.waste_share)
        )?;
        if self.left_pages > 0 {
            let (left, threshold) = (counted(self.left_pages as usize, "page"), in_percent(self.threshold));
            writeln!(out, "left     {left} less likely than {threshold}: known, and not brought in")?;
        }
        if let Some(share) = self.wasted_share {
            writeln!(out, "wasted   {} of the pages brought in in observed cold starts", in_percent(share))?;
        }
        Ok(())
    }
}

impl DeviceGain {
    fn new(device: u64, starts: &[ColdStart]) -> Self {
        let gain = Gain::on(device, starts);
        Self {
            device: device_number::name(device),
            prefetched_starts: gain.prefetched_starts,
            held_out_starts: gain.held_out_starts,
            prefetched_us: gain.prefetched_us,
            held_out_us: gain.held_out_us,
            ratio: gain.ratio(),
            off: gain.is_none(),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        let Self { device, prefetched_starts, held_out_starts, .. } = self;
        let ms = |us: Option<u32>| f64::from(us.unwrap_or(0)) / 1000.0;
        let Some(ratio) = self.ratio else {
            return Ok(writeln!(
                out,
                "gain     not known on device {device}: {} with prefetch, {held_out_starts} held out \
                 ({STARTS_MIN} of each are needed)",
                counted(*prefetched_starts, "cold start")
            )?);
        };
        let off = if self.off { "; switched off, and tried again now and then" } else { "" };
        writeln!(
            out,
            "gain     {ratio:.2} of the time without on device {device}: {:.0} ms against {:.0} ms \
             (medians of {prefetched_starts} and {held_out_starts} cold starts){off}",
            ms(self.prefetched_us),
            ms(self.held_out_us)
        )?;
        Ok(())
    }
}

#[derive(Serialize)]
struct ShownFile {
    path: String,
    pages: u64,
    file_pages: u64,
    /// Of `pages`, those that read() uses.
    read_pages: u64,
    /// Of `pages`, those too unlikely to be brought in.
    left_pages: u64,
    /// Mean probability that a page is used.
    probability: f64,
    state: &'static str,
    /// Sorted by page.
    extents: Vec<ShownExtent>,
}

/// A run of pages of which the same is known.
#[derive(Serialize)]
struct ShownExtent {
    start_page: u64,
    pages: u64,
    rank: u32,
    by_read: bool,
    probability: f64,
}

impl From<&Extent> for ShownExtent {
    fn from(extent: &Extent) -> Self {
        Self {
            start_page: extent.range.start().0,
            pages: extent.range.len(),
            rank: extent.rank,
            by_read: extent.by_read,
            probability: extent.counts.probability(),
        }
    }
}

/// A name that is looked up.
#[derive(Serialize)]
struct ShownLookup<'a> {
    path: &'a str,
    list: bool,
    probability: f64,
}

impl<'a> From<&'a Lookup> for ShownLookup<'a> {
    fn from(lookup: &'a Lookup) -> Self {
        Self { path: &lookup.path, list: lookup.list, probability: lookup.counts.probability() }
    }
}

impl ShownFile {
    fn new(file: &ProfiledFile, threshold: f64) -> Self {
        let count = |wanted: &dyn Fn(&Extent) -> bool| {
            file.extents.iter().filter(|extent| wanted(extent)).map(|extent| extent.range.len()).sum::<u64>()
        };
        let sum: f64 =
            file.extents.iter().map(|extent| extent.range.len() as f64 * extent.counts.probability()).sum();
        Self {
            path: file.path.clone(),
            pages: file.pages(),
            file_pages: file.identity.size_bytes.div_ceil(PAGE_SIZE),
            read_pages: count(&|extent| extent.by_read),
            left_pages: count(&|extent| extent.counts.probability() < threshold),
            probability: sum / file.pages().max(1) as f64,
            state: match open_if_same(file) {
                Ok(_) => "as learned",
                Err(Skipped::Missing) => "gone",
                Err(Skipped::Changed) => "changed",
                Err(Skipped::Denied) => "unreadable",
                Err(Skipped::NotRegular) => "no file",
                Err(Skipped::TooMany | Skipped::Failed) => "cannot be opened",
            },
            extents: file.extents.iter().map(ShownExtent::from).collect(),
        }
    }
}

fn in_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_those_of_observed_starts_and_a_wait_stands_for_the_pages_that_it_brings() {
        let start = ColdStart { prefetched_pages: 100, ..ColdStart::default() };
        let seen = ColdStart { observed: true, wasted_pages: 20, missed_pages: 10, ..start };
        let held_out = ColdStart { held_out: true, prefetched_pages: 0, missed_pages: 90, ..seen };
        let worth = |starts: &[ColdStart]| {
            let worth = Worth::of(&Profile { starts: starts.to_vec(), ..Profile::default() });
            (worth.prefetched_starts, worth.observed_starts, worth.hit_share, worth.wasted_share)
        };
        assert_eq!(worth(&[start, start, held_out]), (2, 0, None, None));
        assert_eq!(worth(&[start, seen, held_out]), (2, 1, Some(0.5), Some(0.2)));
    }
}
