//! What a saved snapshot consists of, as bytes: docs/snapshot-format.md.

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::object::MAX_BYTES;

/// The version of the format that this crate writes, and the only one it reads.
pub const MANIFEST_VERSION: u32 = 1;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 36;

const MAGIC: [u8; 8] = *b"PREPSNAP";
/// What stands for "zeros" where the number of a base is expected.
const ZEROS: u32 = u32::MAX;

/// Why bytes are not a manifest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManifestError {
    /// The magic is missing.
    #[error("not the manifest of a snapshot (it does not start with its magic)")]
    Foreign,
    /// Another version of the format.
    #[error("snapshot format version {found}, this library reads version {MANIFEST_VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Fewer or more bytes than the header promises.
    #[error("{found_bytes} bytes long, {promised_bytes} promised: it was cut off or overwritten")]
    Length {
        /// Bytes there are.
        found_bytes: u64,
        /// Bytes there should be.
        promised_bytes: u64,
    },
    /// The checksum differs.
    #[error("its checksum does not match: it is damaged")]
    Checksum,
    /// The checksum holds but the content makes no sense.
    #[error("its content is malformed: {0}")]
    Malformed(&'static str),
}

/// A saved snapshot: where each of its pages is, and what it must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its length.
    pub len_bytes: u64,
    /// What the sums of pages are made with: nobody outside knows which pages have the same sum.
    pub seed: u64,
    /// What the snapshot's chain began on.
    pub bases: Vec<SavedBase>,
    /// Which of the bases is behind each page, in order and without gaps.
    pub below: Vec<Below>,
    /// The numbers of the image files, rising.
    pub images: Vec<u64>,
    /// The pages that were saved, in order.
    pub runs: Vec<SavedRun>,
}

/// An object that the snapshot's chain began on. It is not saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBase {
    /// The object's name: of a file its path.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
    /// When the file was changed last, in nanoseconds since 1970; `None` where it is no file.
    pub modified_ns: Option<i64>,
}

/// A run of pages that were not written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// How many.
    pub pages: u64,
    /// Which base is behind them, by its place in the list, and its page behind the first of them; `None` for zeros.
    pub base: Option<(u32, u64)>,
}

/// A run of pages that one image holds, at their own offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRun {
    /// The first page.
    pub start: u64,
    /// The image, by its place in the list.
    pub image: u32,
    /// The sum of each page.
    pub sums: Vec<u128>,
}

impl SavedRun {
    /// The pages.
    pub fn pages(&self) -> PageRange {
        PageRange::new(PageIndex(self.start), PageIndex(self.start + self.sums.len() as u64))
    }
}

impl Manifest {
    /// How many pages the snapshot has.
    pub fn pages(&self) -> u64 {
        self.len_bytes.div_ceil(PAGE_SIZE)
    }

    /// The sum of a page, as this manifest has it.
    pub fn sum(&self, page: &[u8]) -> u128 {
        xxh3_128_with_seed(page, self.seed)
    }

    /// Which image holds `page`, and its sum; `None` where it was not saved.
    pub fn saved(&self, page: PageIndex) -> Option<(u32, u128)> {
        let at = self.runs.partition_point(|run| run.pages().end() <= page);
        let run = self.runs.get(at).filter(|run| run.start <= page.0)?;
        Some((run.image, run.sums[(page.0 - run.start) as usize]))
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let mut put = |bytes: &[u8]| payload.extend_from_slice(bytes);
        put(&self.len_bytes.to_le_bytes());
        put(&self.seed.to_le_bytes());
        put(&(self.bases.len() as u32).to_le_bytes());
        for base in &self.bases {
            put(&(base.name.len() as u32).to_le_bytes());
            put(base.name.as_bytes());
            put(&base.len_bytes.to_le_bytes());
            put(&[u8::from(base.modified_ns.is_some())]);
            put(&base.modified_ns.unwrap_or(0).to_le_bytes());
        }
        put(&(self.below.len() as u64).to_le_bytes());
        for below in &self.below {
            let (base, first) = below.base.unwrap_or((ZEROS, 0));
            put(&below.pages.to_le_bytes());
            put(&base.to_le_bytes());
            put(&first.to_le_bytes());
        }
        put(&(self.images.len() as u32).to_le_bytes());
        self.images.iter().for_each(|image| put(&image.to_le_bytes()));
        put(&(self.runs.len() as u64).to_le_bytes());
        for run in &self.runs {
            put(&run.start.to_le_bytes());
            put(&run.image.to_le_bytes());
            put(&(run.sums.len() as u64).to_le_bytes());
            run.sums.iter().for_each(|sum| put(&sum.to_le_bytes()));
        }
        enclose(MANIFEST_VERSION, &payload)
    }

    /// From bytes.
    ///
    /// # Errors
    /// Whatever they are, they give an error or a manifest in which every number has a meaning.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut header = Reader(bytes);
        if header.take() != Some(MAGIC) {
            return Err(ManifestError::Foreign);
        }
        let cut =
            ManifestError::Length { found_bytes: bytes.len() as u64, promised_bytes: HEADER_BYTES as u64 };
        let version = header.u32().ok_or(cut)?;
        if version != MANIFEST_VERSION {
            return Err(ManifestError::Version { found: version });
        }
        let length =
            |promised_bytes| ManifestError::Length { found_bytes: bytes.len() as u64, promised_bytes };
        let promised = header.u64().ok_or(length(HEADER_BYTES as u64))?;
        let sum = header.take().map(u128::from_le_bytes).ok_or(length(HEADER_BYTES as u64))?;
        if header.0.len() as u64 != promised {
            return Err(length(promised.saturating_add(HEADER_BYTES as u64)));
        }
        if xxh3_128(header.0) != sum {
            return Err(ManifestError::Checksum);
        }
        let manifest = Self::read(&mut header).ok_or(ManifestError::Malformed("it ends too early"))?;
        if !header.0.is_empty() {
            return Err(ManifestError::Malformed("something follows it"));
        }
        manifest.check().map_err(ManifestError::Malformed)?;
        Ok(manifest)
    }

    /// `None` where the bytes end too early, or are no text where there must be text. Takes no more memory than a few times them.
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (len_bytes, seed) = (from.u64()?, from.u64()?);
        let bases = from.u32()?;
        let bases = (0..bases).map(|_| {
            let length = from.u32()?;
            let name = String::from_utf8(from.bytes(u64::from(length))?.to_vec()).ok()?;
            let (len_bytes, is_file, modified) = (from.u64()?, from.take::<1>()?, from.u64()? as i64);
            Some(SavedBase { name, len_bytes, modified_ns: (is_file != [0]).then_some(modified) })
        });
        let bases = bases.collect::<Option<_>>()?;
        let below = from.u64()?;
        let below = (0..below).map(|_| {
            let (pages, base, first) = (from.u64()?, from.u32()?, from.u64()?);
            Some(Below { pages, base: (base != ZEROS).then_some((base, first)) })
        });
        let below = below.collect::<Option<_>>()?;
        let images = from.u32()?;
        let images = (0..images).map(|_| from.u64()).collect::<Option<_>>()?;
        let runs = from.u64()?;
        let runs = (0..runs).map(|_| {
            let (start, image, count) = (from.u64()?, from.u32()?, from.u64()?);
            let sums = from.bytes(count.checked_mul(16)?)?;
            let sums =
                sums.chunks_exact(16).map(|sum| u128::from_le_bytes(sum.try_into().expect("16 bytes")));
            Some(SavedRun { start, image, sums: sums.collect() })
        });
        let runs = runs.collect::<Option<_>>()?;
        Some(Self { len_bytes, seed, bases, below, images, runs })
    }

    /// Whether every number has a meaning.
    fn check(&self) -> Result<(), &'static str> {
        if self.len_bytes == 0 || self.len_bytes > MAX_BYTES {
            return Err("no snapshot is so long");
        }
        let mut pages = 0_u64;
        for below in &self.below {
            let end = pages.checked_add(below.pages).ok_or("pages beyond all memory")?;
            if let Some((base, first)) = below.base {
                let base = self.bases.get(base as usize).ok_or("a base that is not listed")?;
                let last = first.checked_add(below.pages).ok_or("pages beyond all memory")?;
                if base.len_bytes > MAX_BYTES || last > base.len_bytes.div_ceil(PAGE_SIZE) {
                    return Err("pages beyond the end of a base");
                }
            }
            if below.pages == 0 {
                return Err("a run of no pages");
            }
            pages = end;
        }
        if pages != self.pages() {
            return Err("bases behind more or fewer pages than there are");
        }
        if !self.images.is_sorted_by(|one, next| one < next) {
            return Err("images out of order");
        }
        if self.images.last() == Some(&u64::MAX) {
            return Err("an image that no other can follow");
        }
        let mut from = 0;
        for run in &self.runs {
            let end = run.start.checked_add(run.sums.len() as u64).ok_or("pages beyond all memory")?;
            if run.sums.is_empty() || run.start < from || end > pages {
                return Err("saved pages out of order");
            }
            if run.image as usize >= self.images.len() {
                return Err("an image that is not listed");
            }
            from = end;
        }
        Ok(())
    }
}

/// A payload with the header before it.
pub fn enclose(version: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&xxh3_128(payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        self.bytes(COUNT as u64).map(|bytes| bytes.try_into().expect("as many as were asked for"))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let base =
            |name: &str, modified_ns| SavedBase { name: name.to_owned(), len_bytes: 10_000, modified_ns };
        Manifest {
            len_bytes: 5 * PAGE_SIZE - 1,
            seed: 7,
            bases: vec![base("/some/file", Some(-3)), base("mine", None)],
            below: vec![
                Below { pages: 2, base: Some((1, 1)) },
                Below { pages: 1, base: None },
                Below { pages: 2, base: Some((0, 0)) },
            ],
            images: vec![3, 9],
            runs: vec![
                SavedRun { start: 1, image: 1, sums: vec![1, 2] },
                SavedRun { start: 4, image: 0, sums: vec![u128::MAX] },
            ],
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was() {
        let manifest = sample();
        assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
        let saved = [0, 1, 2, 3, 4].map(|page| manifest.saved(PageIndex(page)));
        assert_eq!(saved, [None, Some((1, 1)), Some((1, 2)), None, Some((0, u128::MAX))]);
    }

    #[test]
    fn damage_is_named() {
        let bytes = sample().encode();
        let error = |bytes: &[u8]| Manifest::decode(bytes).unwrap_err();
        assert_eq!(error(b"something else"), ManifestError::Foreign);
        assert_eq!(error(&enclose(2, b"")), ManifestError::Version { found: 2 });
        for length in 8..bytes.len() {
            assert!(matches!(error(&bytes[..length]), ManifestError::Length { .. }), "{length}");
        }
        for at in HEADER_BYTES..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(error(&damaged), ManifestError::Checksum, "{at}");
        }
        assert!(matches!(error(&[&bytes[..], b"x"].concat()), ManifestError::Length { .. }));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = sample();
            change(&mut manifest);
            match Manifest::decode(&manifest.encode()) {
                Err(ManifestError::Malformed(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(&|manifest| manifest.len_bytes = 0), "no snapshot is so long");
        assert_eq!(
            refused(&|manifest| manifest.len_bytes += PAGE_SIZE),
            "bases behind more or fewer pages than there are"
        );
        assert_eq!(refused(&|manifest| manifest.below[0].base = Some((2, 0))), "a base that is not listed");
        assert_eq!(
            refused(&|manifest| manifest.below[0].base = Some((0, 2))),
            "pages beyond the end of a base"
        );
        assert_eq!(refused(&|manifest| manifest.below[1].pages = u64::MAX), "pages beyond all memory");
        assert_eq!(refused(&|manifest| manifest.images[1] = 3), "images out of order");
        assert_eq!(refused(&|manifest| manifest.images[1] = u64::MAX), "an image that no other can follow");
        assert_eq!(refused(&|manifest| manifest.runs[1].start = 2), "saved pages out of order");
        assert_eq!(refused(&|manifest| manifest.runs[1].start = 5), "saved pages out of order");
        assert_eq!(refused(&|manifest| manifest.runs[1].sums.clear()), "saved pages out of order");
        assert_eq!(refused(&|manifest| manifest.runs[1].image = 2), "an image that is not listed");
        let mut more = sample().encode()[HEADER_BYTES..].to_vec();
        more.push(0);
        let error = Manifest::decode(&enclose(1, &more)).unwrap_err();
        assert_eq!(error, ManifestError::Malformed("something follows it"));
    }
}
