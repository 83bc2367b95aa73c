//! A block of 2 MiB of a memfd, in one piece of memory where the kernel finds one: made, and read to.
//!
//! To make such a block takes the kernel an eighth of the time that its 512 pages take one by one, and a device fills it in one request of one piece.

use std::io;

use crate::direct_fill::DirectFill;
use crate::memfd::Memfd;
use crate::region::REGION_ALIGN;

/// The bytes of a block; one begins at a multiple of them.
pub const BLOCK_BYTES: u64 = REGION_ALIGN;

/// Makes the block of `memfd` at `offset`; what it did not hold yet are zeros. In a huge page where [`Memfd::has_blocks`], it held nothing
/// and memory is not too scattered.
///
/// Where a mapping that asks for huge pages stays, the kernel looks for small ones in it to put together (khugepaged), and takes them out of all mappings
/// meanwhile: one more reason to drop it soon.
///
/// # Errors
/// As [`DirectFill::make`]; EINVAL where the kernel knows no huge pages.
///
/// # Panics
/// Where no block begins there.
pub fn make_block(memfd: &Memfd, offset: u64) -> io::Result<DirectFill> {
    assert!(offset.is_multiple_of(BLOCK_BYTES), "blocks begin at multiples");
    // mlockall(2) would make small pages of what could be read.
    let block = DirectFill::map(memfd, offset, BLOCK_BYTES, libc::PROT_NONE)?;
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP, libc::MADV_HUGEPAGE] {
        block.advise(advice)?;
    }
    block.show()?;
    block.advise(libc::MADV_POPULATE_WRITE)?;
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use prepage_testing::{Need, has};

    use super::*;

    /// KiB of a mapping of this process at `start` that huge pages hold.
    fn huge_kib(start: u64) -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_mapping = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
        let field = of_mapping.skip(1).find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        field.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_block_is_made_where_the_memfd_has_a_hole_and_stays_there() {
        let memfd = Memfd::create_with_blocks("blocks", 3 * BLOCK_BYTES).unwrap();
        if !has(Need::Root) {
            return;
        }
        assert!(memfd.has_blocks(), "root may have a file system of its own");
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[7; 4 * 4096]).unwrap();
        let block = make_block(&memfd, BLOCK_BYTES).unwrap();
        if has(Need::MemoryBytes(1 << 30)) {
            assert_eq!(huge_kib(block.start()), BLOCK_BYTES >> 10);
        }
        assert_eq!(block.read(file.as_fd(), 4096, BLOCK_BYTES - 4096, 4096).unwrap(), 4096);
        assert_eq!(block.read(file.as_fd(), 4 * 4096, 0, 4096).unwrap(), 0, "behind the end of the file");
        drop(block);
        assert_eq!(memfd.next_data(0).unwrap(), Some((BLOCK_BYTES, 2 * BLOCK_BYTES)));
        let mut bytes = vec![1; 2 * 4096];
        memfd.read_at(&mut bytes, 2 * BLOCK_BYTES - 2 * 4096).unwrap();
        assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..].iter().all(|&byte| byte == 7));
        // A page of it goes, and the others stay.
        memfd.punch(BLOCK_BYTES, 4096).unwrap();
        assert_eq!(memfd.next_data(0).unwrap(), Some((BLOCK_BYTES + 4096, 2 * BLOCK_BYTES)));
        memfd.read_at(&mut bytes, 2 * BLOCK_BYTES - 2 * 4096).unwrap();
        assert!(bytes[4096..].iter().all(|&byte| byte == 7));
        let behind = make_block(&memfd, 3 * BLOCK_BYTES).unwrap_err();
        assert_eq!(behind.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    #[should_panic(expected = "beyond the pages")]
    fn reads_stay_within_it() {
        let memfd = Memfd::create("block", BLOCK_BYTES).unwrap();
        let block = make_block(&memfd, 0).unwrap();
        let _ = block.read(tempfile::tempfile().unwrap().as_fd(), 0, BLOCK_BYTES - 4095, 4096);
    }
}
