//! Keeping up.

/// The highest ordinary priority for this process, until dropped. The command may keep all CPUs busy, and what is not
/// read in time is lost. Only root may raise a priority; for others nothing changes.
#[derive(Debug)]
pub(super) struct Urgent {
    before: Option<i32>,
}

impl Urgent {
    pub(super) fn begin() -> Self {
        let before = rustix::process::getpriority_process(None).ok();
        let raised = before.is_some() && rustix::process::setpriority_process(None, -20).is_ok();
        Self { before: before.filter(|_| raised) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = rustix::process::setpriority_process(None, before);
        }
    }
}
