//! The NUMA node that this process runs on: the kernel puts what is read there first.

use std::fs;
use std::path::{Path, PathBuf};

/// A node of a machine that has several.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) directory: PathBuf,
}

impl Node {
    /// That of the CPU that this thread runs on. A machine with one node has none; that costs one system call.
    pub(super) fn of_cpu() -> Option<Self> {
        Self::of(Path::new("/sys/devices/system/node"), rustix::thread::sched_getcpu())
    }

    fn of(nodes: &Path, cpu: usize) -> Option<Self> {
        let directory = |node: u32| nodes.join(format!("node{node}"));
        if !directory(1).exists() {
            return None;
        }
        let all = (0..).map(directory).take_while(|directory| directory.exists());
        let directory = all.into_iter().find(|directory| directory.join(format!("cpu{cpu}")).exists())?;
        Some(Self { directory })
    }

    /// Its free memory, and pages of files that have not been used for a while, as the kernel once bounded read-ahead
    /// (`max_sane_readahead`, mm/readahead.c of Linux 3.13). `None` for a node of processors alone.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        let meminfo = fs::read_to_string(self.directory.join("meminfo")).ok()?;
        let kib = |name: &str| -> Option<u64> {
            let value = meminfo.lines().find_map(|line| line.split_once(name))?.1;
            value.trim().strip_suffix(" kB")?.parse().ok()
        };
        let available = (kib(" MemFree:")? + kib(" Inactive(file):")?) * 1024;
        (kib(" MemTotal:")? > 0).then_some(available)
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn what_the_node_of_a_cpu_has_left_is_told_where_there_are_several() {
        let dir = tempfile::tempdir().unwrap();
        let make = |node: u32, cpu: u32, numbers: [u64; 3]| {
            let place = dir.path().join(format!("node{node}"));
            fs::create_dir_all(place.join(format!("cpu{cpu}"))).unwrap();
            let line = |(name, kib): (&str, u64)| format!("Node {node} {name}: {kib:>8} kB\n");
            let names = ["MemTotal", "MemFree", "MemUsed", "Active(file)", "Inactive(file)"];
            let [total, free, inactive] = numbers;
            let text: String =
                names.into_iter().zip([total, free, total - free, 9, inactive]).map(line).collect();
            fs::write(place.join("meminfo"), text).unwrap();
        };
        let left = |cpu| Node::of(dir.path(), cpu)?.available_bytes();
        make(0, 3, [1000, 100, 20]);
        assert_eq!(left(3), None, "one node");
        make(1, 12, [1000, 300, 40]);
        make(2, 1, [0, 0, 0]);
        assert_eq!([3, 12, 1, 7].map(left), [Some(120 << 10), Some(340 << 10), None, None]);
    }

    #[test]
    fn the_kernels_own_files_are_understood() {
        let nodes = Path::new("/sys/devices/system/node");
        if !has(Need::Path(nodes.join("has_memory"))) {
            return;
        }
        let with_memory = fs::read_to_string(nodes.join("has_memory")).unwrap();
        let first = with_memory.trim().split(['-', ',']).next().unwrap();
        let left = Node { directory: nodes.join(format!("node{first}")) }.available_bytes();
        assert!(left.is_some_and(|bytes| bytes > 0), "{left:?}");
    }
}
