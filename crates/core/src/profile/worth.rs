//! What of a profile is worth a prefetch on a device.

use super::{Extent, Profile, ProfiledFile};
use crate::device_figures::DeviceFigures;
use crate::page::PAGE_SIZE;

/// A wasted page also takes the place of another in memory, which one time in this many will be missed in its turn.
const EVICTION_PRICE: f64 = 0.1;

/// What a page that was not prefetched costs when it is used: its read, behind those that are under way.
pub fn miss_ns(figures: &DeviceFigures) -> f64 {
    let queue_ns = f64::from(figures.depth) * 1e9 / figures.reads_per_second() as f64;
    figures.latency_ns as f64 + queue_ns
}

/// The probability from which a page is worth its prefetch: where what is saved when it is used, p × miss, outweighs what
/// is lost when it is not, (1 − p) × (transfer + a tenth of a miss).
pub fn threshold(figures: &DeviceFigures) -> f64 {
    let miss = miss_ns(figures);
    let transfer = PAGE_SIZE as f64 * 1e9 / figures.bytes_per_second.max(1) as f64;
    let waste = transfer + EVICTION_PRICE * miss;
    waste / (miss + waste)
}

/// The part of `profile` that is worth a prefetch on a device with these figures. Files keep their places. Nothing else is copied: whoever
/// prefetches is in a hurry.
pub fn worthwhile(profile: &Profile, figures: &DeviceFigures) -> Profile {
    let threshold = threshold(figures);
    let files = profile.files.iter().map(|file| {
        let worth = |extent: &&Extent| extent.counts.probability() >= threshold;
        ProfiledFile {
            path: file.path.clone(),
            identity: file.identity,
            fingerprint: file.fingerprint.clone(),
            learned_unix_s: file.learned_unix_s,
            extents: file.extents.iter().filter(worth).copied().collect(),
        }
    });
    let lookups = profile.lookups.iter().filter(|name| name.counts.probability() >= threshold);
    Profile {
        program: profile.program.clone(),
        role: profile.role.clone(),
        history: profile.history,
        files: files.collect(),
        lookups: lookups.cloned().collect(),
        starts: profile.starts.clone(),
        sources: profile.sources.clone(),
    }
}

/// Share (0 to 1) of the pages of `planned` that the next start is not expected to use.
pub fn expected_waste(planned: &Profile) -> f64 {
    let (mut wasted, mut all) = (0.0, 0.0);
    for extent in planned.files.iter().flat_map(|file| &file.extents) {
        let (used, observed) = extent.counts.sixteenths();
        let share = if observed > 0 { 1.0 - f64::from(used) / f64::from(observed) } else { 0.5 };
        wasted += share * extent.range.len() as f64;
        all += extent.range.len() as f64;
    }
    if all > 0.0 { wasted / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_follow_from_the_device() {
        let local = DeviceFigures::default();
        let slow_transfer = DeviceFigures { bytes_per_second: 10_000_000, ..local };
        let [fast, slow] = [threshold(&local), threshold(&slow_transfer)];
        assert!(EVICTION_PRICE / (1.0 + EVICTION_PRICE) < fast && fast < 0.15 && slow > 0.4, "{fast} {slow}");
        let far = DeviceFigures { latency_ns: 10_000_000, ..slow_transfer };
        assert!(threshold(&far) < slow, "where misses cost more, less likely pages are worth it");
    }
}
