//! `prepage profile show`: one profile, what it was worth, and why it believes what it does.

use std::io::Write;

use anyhow::{Result, anyhow, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::cold_start::ColdStart;
use prepage_core::extent::{Evidence, Extent};
use prepage_core::gain::{Gain, STARTS_MIN};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_core::trial::{Budget, expected_waste, threshold, worthwhile};
use prepage_prefetch::engine::device_of;
use prepage_prefetch::identity::{Skipped, open_if_same};
use prepage_prefetch::store::Store;
use serde::Serialize;

use super::{Listed, age, file_name, find, what_is_wrong};
use crate::table::table;

/// Shows the profile that `name` means.
pub fn show(store: &Store, name: &str, json: bool, out: &mut impl Write) -> Result<()> {
    let matching = find(store, name)?;
    let [(path, loaded)] = matching.as_slice() else {
        let names: Vec<String> = matching
            .iter()
            .map(|(path, loaded)| match loaded {
                Ok(profile) => format!("{} ({})", file_name(path), profile.role),
                Err(_) => file_name(path),
            })
            .collect();
        bail!("{name} matches {} profiles:\n  {}\n  try: name one of them", names.len(), names.join("\n  "));
    };
    let profile = loaded.as_ref().map_err(|error| anyhow!("{}: {}", path.display(), what_is_wrong(error)))?;
    let worth = Worth::of(profile);
    let files: Vec<ShownFile> =
        profile.files.iter().map(|file| ShownFile::new(file, worth.threshold)).collect();
    if json {
        let shown = serde_json::json!({
            "schema_version": 1,
            "profile": Listed::new(path, loaded),
            "worth": worth,
            "looks_due": profile.history.looks_due,
            "cold_starts": profile.starts,
            "files": files,
        });
        serde_json::to_writer_pretty(&mut *out, &shown)?;
        return Ok(writeln!(out)?);
    }
    writeln!(out, "{}\nprogram  {}\nlast     {}", profile.role, profile.program, profile.command.join(" "))?;
    writeln!(
        out,
        "learned  in {} exact runs and {} starts; last changed {} ago",
        profile.history.exact_runs,
        profile.history.refining_runs,
        age(profile.history.updated_unix_s)
    )?;
    writeln!(
        out,
        "needs    {} pages ({:.1} MB) of {} files, {} names",
        profile.pages(),
        (profile.pages() * PAGE_SIZE) as f64 / 1e6,
        profile.files.len(),
        profile.lookups.len()
    )?;
    worth.write(out)?;
    if profile.history.looks_due > 0 {
        let looks = profile.history.looks_due;
        writeln!(
            out,
            "looks    in {looks} more cold starts every fault is watched: the program seems to have changed"
        )?;
    }
    let headings = ["pages", "of", "exact", "seen", "near", "likely", "state", "file"];
    let mut table = table(&headings, &[0, 1, 2, 3, 4, 5]);
    for file in &files {
        let counts = [file.pages, file.file_pages, file.exact_pages, file.seen_pages, file.near_pages];
        let mut row: Vec<String> = counts.iter().map(u64::to_string).collect();
        row.push(percent(file.probability));
        row.extend([file.state.into(), file.path.clone()]);
        table.add_row(row);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

/// What a profile was and is expected to be worth.
#[derive(Serialize)]
struct Worth {
    /// By device, that of the last start first.
    gains: Vec<DeviceGain>,
    /// Cold starts that were prefetched, of those that are remembered.
    prefetched_starts: usize,
    /// Of the pages needed in these, the share that was brought in ahead.
    hit_share: Option<f64>,
    /// Of the pages that the next start brings in, the share that is not expected to be used.
    waste_share: f64,
    /// Pages that are known and not likely enough to be brought in.
    left_pages: u64,
    /// The probability from which pages are brought in.
    threshold: f64,
    /// Pages left out to test them, in these starts.
    tested_pages: u64,
    /// Of these, pages that were used.
    tested_used_pages: u64,
    /// Tests cost at most this share of a cold start, on average.
    test_budget_share: f64,
}

#[derive(Serialize)]
struct DeviceGain {
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
        let sum = |count: fn(&ColdStart) -> f64| starts.iter().map(|start| count(start)).sum::<f64>();
        let used = sum(|start| {
            f64::from(start.prefetched_pages) * (1.0 - f64::from(start.waste_permille.min(1000)) / 1000.0)
        });
        let needed = used + sum(|start| f64::from(start.missed_pages));
        let tested_used = sum(|start| f64::from(start.tested_used_pages));
        let mut devices: Vec<u64> = Vec::new();
        for start in profile.starts.iter().rev() {
            if !devices.contains(&start.device) {
                devices.push(start.device);
            }
        }
        Self {
            gains: devices.into_iter().map(|device| DeviceGain::new(device, &profile.starts)).collect(),
            prefetched_starts: starts.len(),
            hit_share: (needed > 0.0).then(|| used / needed),
            waste_share: expected_waste(&planned),
            left_pages: profile.pages() - planned.pages(),
            threshold: threshold(&figures),
            tested_pages: (tested_used + sum(|start| f64::from(start.tested_unused_pages))) as u64,
            tested_used_pages: tested_used as u64,
            test_budget_share: Budget::SHARE,
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
            let starts = self.prefetched_starts;
            let share = percent(share);
            writeln!(
                out,
                "hits     {share} of the pages needed in the last {starts} cold starts were brought in ahead"
            )?;
        }
        writeln!(
            out,
            "waste    {} of the pages brought in are not expected to be used",
            percent(self.waste_share)
        )?;
        if self.left_pages > 0 {
            let (left, threshold) = (self.left_pages, percent(self.threshold));
            writeln!(out, "left     {left} pages less likely than {threshold}: known, and not brought in")?;
        }
        let (tested, used) = (self.tested_pages, self.tested_used_pages);
        let budget = 100.0 * self.test_budget_share;
        writeln!(
            out,
            "tests    {tested} pages left out to test them, {used} of them used; at most {budget} % of a cold start"
        )?;
        Ok(())
    }
}

impl DeviceGain {
    fn new(device: u64, starts: &[ColdStart]) -> Self {
        let gain = Gain::on(device, starts);
        Self {
            device: format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)),
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
                "gain     not known on device {device}: {prefetched_starts} cold starts with prefetch, \
                 {held_out_starts} held out ({STARTS_MIN} of each are needed)"
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
    /// Shares of `pages` known exactly, seen in a fault or read, and neighbours of a fault.
    exact_pages: u64,
    seen_pages: u64,
    near_pages: u64,
    /// Of `pages`, those too unlikely to be brought in.
    left_pages: u64,
    /// Mean probability that a page is used.
    probability: f64,
    state: &'static str,
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
            exact_pages: count(&|extent| extent.evidence == Evidence::Exact),
            seen_pages: count(&|extent| extent.evidence == Evidence::Seen),
            near_pages: count(&|extent| extent.evidence == Evidence::Near),
            left_pages: count(&|extent| extent.counts.probability() < threshold),
            probability: sum / file.pages().max(1) as f64,
            state: match open_if_same(file) {
                Ok(_) => "as learned",
                Err(Skipped::Missing) => "gone",
                Err(Skipped::Changed) => "changed",
                Err(Skipped::Denied) => "unreadable",
                Err(Skipped::NotRegular) => "no file",
                Err(Skipped::Failed) => "cannot be opened",
            },
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
