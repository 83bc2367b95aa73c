//! A control group of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prepage_testing::{Need, has, memory_groups, task_groups};

use super::Sandbox;

/// Removed at its end.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// One of so many tasks at most; `None`, counted as a skip, where none can be made.
    pub fn of_tasks(most: u32) -> Option<Self> {
        has(Need::TaskGroup).then(|| Self::with(task_groups(), "pids.max", most.into()))
    }

    /// The same of so much memory.
    pub fn of_memory(bytes_max: u64) -> Option<Self> {
        has(Need::MemoryGroup).then(|| Self::with(memory_groups(), "memory.limit_in_bytes", bytes_max))
    }

    fn with(parent: &Path, limit: &str, most: u64) -> Self {
        let group = Self(parent.join(format!("prepage-test-{}-{most}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        fs::write(group.0.join(limit), most.to_string()).unwrap();
        group
    }

    /// Runs what is added to the command in this group.
    pub fn command(&self, sandbox: &Sandbox) -> Command {
        let mut command = sandbox.command("sh", &["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""]);
        command.arg(&self.0);
        command
    }

    /// What the kernel says in `file`.
    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The last of its processes may not have been taken note of yet.
        (0..6000).take_while(|_| fs::remove_dir(&self.0).is_err()).for_each(|_| {
            std::thread::sleep(Duration::from_millis(10));
        });
    }
}
