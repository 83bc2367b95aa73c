//! What `/proc/PID/status` tells of a process, by field.

use std::fmt::Display;
use std::io;

use crate::proc_file;

/// The file as it was read once (proc_pid_status(5)).
#[derive(Clone, Debug)]
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// That of `process`: a process id, `self` or `thread-self`.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(process: impl Display) -> io::Result<Self> {
        proc_file::read_text(format!("/proc/{process}/status")).map(Self)
    }

    /// The value of the field `name`; `None` where the kernel does not give it.
    pub fn field(&self, name: &str) -> Option<&str> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim())
    }
}

impl From<String> for ProcessStatus {
    /// A file that was read elsewhere.
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_by_their_whole_name() {
        let status = ProcessStatus::from("Seccomp:\t2\nSeccomp_filters:\t5\nGroups:\t\n".to_owned());
        assert_eq!(status.field("Seccomp"), Some("2"));
        assert_eq!(status.field("Seccomp_filters"), Some("5"));
        assert_eq!((status.field("Groups"), status.field("Group")), (Some(""), None));
        let own = ProcessStatus::of("self").unwrap();
        assert_eq!(own.field("Pid"), Some(std::process::id().to_string().as_str()));
        assert!(ProcessStatus::of(u32::MAX).is_err());
    }
}
