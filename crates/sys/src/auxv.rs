//! The auxiliary vector that the kernel has given a program (getauxval(3)).

use crate::proc_file;

/// The entries for the program that process `pid` executes, kind and value, without the last one; none where they cannot be read. Those
/// of a 32-bit program are half as wide and make no sense so.
pub fn entries(pid: u32) -> Vec<(u64, u64)> {
    let bytes = proc_file::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let entries = bytes.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..])));
    entries.take_while(|&(kind, _)| kind != libc::AT_NULL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_page_size_is_among_those_of_this_program() {
        let own = entries(std::process::id());
        assert!(own.contains(&(libc::AT_PAGESZ, 4096)) && own.iter().all(|&(kind, _)| kind != libc::AT_NULL));
        assert_eq!(entries(u32::MAX), []);
    }
}
