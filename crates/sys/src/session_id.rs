//! The session of processes that one belongs to (getsid(2)): all that was started from one terminal, or by one service.

/// The session of process `pid`: for all that were begun outside of this process's namespace of process numbers, 0. `None` where the process is gone.
pub fn session_id(pid: u32) -> Option<u32> {
    // SAFETY: the call takes and returns numbers.
    let id = unsafe { libc::getsid(libc::pid_t::try_from(pid).ok()?) };
    u32::try_from(id).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_in_the_session_of_its_parent_until_it_begins_one() {
        let own = session_id(std::process::id());
        assert_eq!(own, session_id(0), "0 is the calling process");
        let mut children = [&["sleep", "60"][..], &["setsid", "sleep", "60"]]
            .map(|command| Command::new(command[0]).args(&command[1..]).spawn().unwrap());
        let [child, leader] = children.each_ref().map(|child| child.id());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while session_id(leader) != Some(leader) {
            assert!(std::time::Instant::now() < until, "it begins none");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(session_id(child), own);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((session_id(child), session_id(u32::MAX)), (None, None));
    }
}
