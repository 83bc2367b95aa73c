//! What must hold of any bytes whatever that are read as the manifest of a saved snapshot: panics where it does not.

use prepage_core::PageIndex;
use prepage_vm::manifest::{MANIFEST_VERSION, Manifest, enclose};

/// A manifest, and the same bytes as the payload of a sound one: a checksum would keep out all that follows.
pub fn manifest(bytes: &[u8]) {
    check(bytes);
    check(&enclose(MANIFEST_VERSION, bytes));
}

fn check(bytes: &[u8]) {
    let Ok(manifest) = Manifest::decode(bytes) else { return };
    // Two manifests may say the same in other bytes: a flag that is not 1, the page of no base.
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
    let pages = manifest.pages();
    assert_eq!(manifest.below.iter().map(|below| below.pages).sum::<u64>(), pages);
    for run in &manifest.runs {
        assert!(run.pages().end().0 <= pages && (run.image as usize) < manifest.images.len());
        assert_eq!(manifest.saved(run.pages().start()), Some((run.image, run.sums[0])));
    }
    assert_eq!(manifest.saved(PageIndex(pages)), None);
}
