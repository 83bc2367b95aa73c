//! Where ext2, ext3 and ext4 keep an inode and the map of a file's extents (Linux Documentation/filesystems/ext4): the superblock says how
//! long groups are, a group's descriptor where its inodes begin, and an inode which blocks its map is in, where it has no room for it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use prepage_core::PAGE_SIZE;

const SUPERBLOCK_OFFSET_BYTES: u64 = 1024;
const MAGIC: u16 = 0xEF53;
/// Descriptors lie in each group (`EXT4_FEATURE_INCOMPAT_META_BG`): not looked for.
const META_BG: u32 = 0x10;
const BITS_64: u32 = 0x80;
const DESCRIPTOR_BYTES: u64 = 32;
/// Of an inode: its flags, `EXT4_EXTENTS_FL` among them, and the root of the map.
const FLAGS: usize = 0x20;
const EXTENTS: u32 = 0x8_0000;
const ROOT: std::ops::Range<usize> = 0x28..0x64;
/// A node of a map: a head with this at its beginning, and entries of the same length.
const NODE_MAGIC: u16 = 0xF30A;
const ENTRY_BYTES: usize = 12;
/// Of one file, 16 MiB: more than that is no map of a file that a boot needs.
const NODES_MAX: usize = 1 << 12;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// What of a file system's superblock leads to its inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    block_bytes: u64,
    inodes: u64,
    inodes_per_group: u64,
    inode_bytes: u64,
    descriptors_offset_bytes: u64,
    descriptor_bytes: u64,
    is_64: bool,
}

impl Layout {
    /// Reads the layout of the file system on `device`; `None` for a file system of another kind, or with a feature that is not supported here.
    pub fn of(device: &File) -> Option<Self> {
        let mut superblock = [0; 1024];
        device.read_exact_at(&mut superblock, SUPERBLOCK_OFFSET_BYTES).ok()?;
        Self::parse(&superblock)
    }

    fn parse(superblock: &[u8; 1024]) -> Option<Self> {
        let (u16_at, u32_at) = (|at| u16_at(superblock, at), |at| u32_at(superblock, at));
        let features = u32_at(0x60);
        if u16_at(0x38) != MAGIC || features & META_BG != 0 || u32_at(0x18) > 6 {
            return None;
        }
        let block_bytes = 1024 << u32_at(0x18);
        let is_64 = features & BITS_64 != 0;
        let layout = Self {
            block_bytes,
            inodes: u32_at(0).into(),
            inodes_per_group: u32_at(0x28).into(),
            inode_bytes: u16_at(0x58).into(),
            descriptors_offset_bytes: (u64::from(u32_at(0x14)) + 1) * block_bytes,
            descriptor_bytes: if is_64 { u16_at(0xFE).into() } else { DESCRIPTOR_BYTES },
            is_64,
        };
        let fits = layout.inodes_per_group > 0
            && (128..=block_bytes).contains(&layout.inode_bytes)
            && (DESCRIPTOR_BYTES..=1024).contains(&layout.descriptor_bytes);
        fits.then_some(layout)
    }

    /// The page of `device` that holds inode `number`.
    pub fn page_of(&self, device: &File, number: u64) -> Option<u64> {
        Some(self.place_of(device, number)? / PAGE_SIZE)
    }

    /// The pages of `device` that hold the map of the extents of inode `number`, as far as the inode has no room for it.
    pub fn map_of(&self, device: &File, number: u64) -> Vec<u64> {
        let mut pages = Vec::new();
        let mut inode = [0; ROOT.end];
        let read = |bytes: &mut [u8], place| device.read_exact_at(bytes, place).is_ok();
        let is_there = self.place_of(device, number).is_some_and(|place| read(&mut inode, place));
        let has_map = is_there && u32_at(&inode, FLAGS) & EXTENTS != 0;
        let mut nodes = if has_map { vec![inode[ROOT].to_vec()] } else { Vec::new() };
        while let Some(node) = nodes.pop() {
            let (depth, below) = below(&node);
            for place in below.filter_map(|block| block.checked_mul(self.block_bytes)) {
                if pages.len() >= NODES_MAX {
                    return pages;
                }
                pages.push(place / PAGE_SIZE);
                let mut node = vec![0; self.block_bytes as usize];
                // The last level has extents.
                if depth > 1 && read(&mut node, place) {
                    nodes.push(node);
                }
            }
        }
        pages
    }

    /// Where inode `number` begins on `device`, in bytes.
    fn place_of(&self, device: &File, number: u64) -> Option<u64> {
        let at = number.checked_sub(1).filter(|_| number <= self.inodes)?;
        let (group, within) = (at / self.inodes_per_group, at % self.inodes_per_group);
        let mut descriptor = [0; 64];
        let read = if self.is_64 && self.descriptor_bytes >= 64 { 64 } else { DESCRIPTOR_BYTES as usize };
        let offset_bytes = self.descriptors_offset_bytes + group * self.descriptor_bytes;
        device.read_exact_at(&mut descriptor[..read], offset_bytes).ok()?;
        let half =
            |at: usize| u64::from(u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes")));
        let table = half(8) | half(0x28) << 32;
        table.checked_mul(self.block_bytes)?.checked_add(within * self.inode_bytes)
    }
}

/// How many levels are below a node of a map, and the blocks of the next one.
fn below(node: &[u8]) -> (u16, impl Iterator<Item = u64>) {
    let is_node = u16_at(node, 0) == NODE_MAGIC;
    let (entries, depth) = if is_node { (u16_at(node, 2), u16_at(node, 6)) } else { (0, 0) };
    let entries =
        node[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(if depth > 0 { entries.into() } else { 0 });
    (depth, entries.map(|entry| u64::from(u32_at(entry, 4)) | u64::from(u16_at(entry, 8)) << 32))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn inodes_lie_where_the_file_system_s_own_tool_says() {
        if !has(Need::Tool("mkfs.ext4".into())) || !has(Need::Tool("debugfs".into())) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        for options in [&["-b", "4096"][..], &["-b", "1024"], &["-b", "4096", "-O", "^64bit", "-I", "128"]] {
            let path = directory.path().join("image");
            let _ = std::fs::remove_file(&path);
            File::create(&path).unwrap().set_len(256 << 20).unwrap();
            assert!(Command::new("mkfs.ext4").arg("-q").args(options).arg(&path).status().unwrap().success());
            let file = File::open(&path).unwrap();
            let layout = Layout::of(&file).unwrap();
            for inode in [1, 2, 11, 5000, 20_000] {
                let asked =
                    Command::new("debugfs").args(["-R", &format!("imap <{inode}>")]).arg(&path).output();
                let said = String::from_utf8(asked.unwrap().stdout).unwrap();
                let numbers: Vec<u64> = said
                    .split(|c: char| !c.is_ascii_hexdigit() && c != 'x')
                    .filter_map(|word| match word.strip_prefix("0x") {
                        Some(hex) => u64::from_str_radix(hex, 16).ok(),
                        None => word.parse().ok(),
                    })
                    .collect();
                // "Inode 11 is part of block group 0\n\tlocated at block 70, offset 0x0a00": the last two.
                let [.., block, offset] = numbers[..] else { panic!("{said}") };
                let wanted = (block * layout.block_bytes + offset) / PAGE_SIZE;
                assert_eq!(layout.page_of(&file, inode), Some(wanted), "{inode}: {said}");
            }
            assert_eq!(layout.page_of(&file, 0), None);
            assert_eq!(layout.page_of(&file, u64::MAX), None);
        }
    }

    #[test]
    fn a_map_that_an_inode_has_no_room_for_is_found() {
        if !has(Need::LoopDevice) {
            return;
        }
        let image = crate::blocks::tests::Image::new();
        let file = |name: &str, pieces: u64| {
            let file = File::create(image.point().join(name)).unwrap();
            // With holes between, and of some thousand pieces the map has two levels.
            let page = |at: u64| file.write_all_at(&[1], at * 2 * PAGE_SIZE).unwrap();
            (0..pieces).for_each(page);
            file.sync_all().unwrap();
            std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
        };
        let inodes = [file("few", 4), file("some", 5), file("many", 1500)];
        rustix::fs::sync();
        let device = crate::blocks::BlockDevice::of(&image.point()).unwrap().unwrap().opened().unwrap();
        let layout = Layout::of(&device).unwrap();
        let maps = inodes.map(|inode| layout.map_of(&device, inode));
        assert!(maps[0].is_empty() && maps[1].len() == 1 && maps[2].len() > 4, "{maps:?}");
        for page in maps.concat() {
            let mut node = [0; 2];
            device.read_exact_at(&mut node, page * PAGE_SIZE).unwrap();
            assert_eq!(u16::from_le_bytes(node), NODE_MAGIC, "page {page}");
        }
        assert!(layout.map_of(&device, 0).is_empty() && layout.map_of(&device, u64::MAX).is_empty());
    }

    #[test]
    fn what_is_no_superblock_is_refused() {
        assert_eq!(Layout::parse(&[0; 1024]), None);
        assert_eq!(Layout::parse(&[0xff; 1024]), None);
        let mut superblock = [0; 1024];
        superblock[0x38..0x3a].copy_from_slice(&MAGIC.to_le_bytes());
        assert_eq!(Layout::parse(&superblock), None, "no inodes in a group");
    }
}
