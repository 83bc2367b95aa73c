//! What this kernel and this user allow, and what to do about what is missing.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::{PageIndex, PageRange};
use prepage_prefetch::config::{Config, KEYS};
use prepage_prefetch::memory::available_kib;
use prepage_profiles::{Layer, Stores, chain};
use prepage_sys::agent::{find_library, may_arm};
use prepage_sys::beside::can_let_go;
use prepage_sys::cachestat::counts;
use prepage_sys::exec_watch::ExecWatch;
use prepage_sys::open_files::allow_many_for_now;
use prepage_sys::userfaultfd::{Delivery, OpenError, Userfaultfd};
use prepage_sys::{file_handle, landlock};
use prepage_trace::{FaultEvents, Probe, Stream};
use rustix::io::Errno;
use serde::Serialize;

/// How far something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    /// With less than it could.
    Limited,
    Missing,
}

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// What for: the command or feature.
    pub(super) name: &'static str,
    /// How far it works.
    pub(super) state: State,
    pub(super) found: String,
    /// What to do to get more, where there is something.
    pub(super) remedy: Option<String>,
    /// Whether `prepage run` needs it.
    pub(super) essential: bool,
}

/// Looks at everything.
pub(super) fn examine() -> Vec<Check> {
    let config = Config::load();
    vec![
        prefetching(),
        configuration(&config),
        store(&config),
        memory(),
        processors(),
        watching(),
        rings(),
        stalls(),
        exactness(),
        cold_caches(),
        residency(),
        served_faults(),
        service(),
    ]
}

fn check(name: &'static str, state: State, found: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name, state, found: found.into(), remedy: remedy.map(Into::into), essential: false }
}

fn prefetching() -> Check {
    let name = "prefetch (run)";
    if let Err(error) = can_let_go() {
        let (found, remedy) = match error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) {
            true => ("no close_range(2)", "use Linux 5.9 or newer"),
            false => ("close_range is refused", "allow close_range in the seccomp filter of this container"),
        };
        return Check { essential: true, ..check(name, State::Missing, found, Some(remedy)) };
    }
    let advise = |file: fs::File| {
        rustix::fs::fadvise(&file, 0, std::num::NonZeroU64::new(4096), rustix::fs::Advice::WillNeed)
    };
    let (state, found, remedy) = match fs::File::open("/proc/self/exe").map(advise) {
        Ok(Ok(())) => (State::Ok, "posix_fadvise works", None),
        Ok(Err(_)) => {
            let remedy = "allow fadvise64 in the seccomp filter of this container";
            (State::Missing, "posix_fadvise is refused", Some(remedy))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (State::Missing, "/proc is not mounted", Some("mount -t proc proc /proc"))
        }
        // What may be executed and not read cannot be tried on.
        Err(_) => (State::Ok, "not tried: prepage's own file may not be read", None),
    };
    Check { essential: true, ..check(name, state, found, remedy) }
}

fn configuration(config: &Config) -> Check {
    let origin = |key: &str| {
        let at = KEYS.iter().position(|known| *known == key)?;
        Some(format!("{key} = no ({})", config.origins[at].as_ref()?))
    };
    let switches = [("enabled", config.enabled), ("learn", config.learn)];
    let off = switches.into_iter().filter(|(_, on)| !on).filter_map(|(key, _)| origin(key));
    let mistakes = config.mistakes.first().map(|first| match config.mistakes.len() {
        1 => first.to_string(),
        all => format!("{all} mistakes, the first: {first}"),
    });
    let found: Vec<String> = off.chain(mistakes).collect();
    let name = "configuration";
    match &found[..] {
        [] => check(name, State::Ok, "prefetching and learning are on", None),
        found => check(name, State::Limited, found.join("; "), Some("prepage config")),
    }
}

fn store(config: &Config) -> Check {
    let name = "profile store";
    let result = Stores::of_user().map(|stores| stores.keeping(config.store_bytes_max)).and_then(|stores| {
        stores.room_by_trial(Layer::User).and_then(|()| stores.directory(Layer::User).map(ToOwned::to_owned))
    });
    let checked = match result {
        Ok(directory) => check(name, State::Ok, directory.display().to_string(), None),
        Err(error) => check(name, State::Missing, chain(&error), Some(error.remedy())),
    };
    Check { essential: true, ..checked }
}

fn memory() -> Check {
    let name = "memory";
    let Some(kib) = available_kib() else {
        return check(
            name,
            State::Limited,
            "MemAvailable of /proc/meminfo cannot be read",
            Some("mount /proc"),
        );
    };
    let found = format!("{} MiB available", kib / 1024);
    if kib < 256 << 10 {
        let remedy = "free memory: at most half of the available memory is used for prefetching";
        return check(name, State::Limited, found, Some(remedy));
    }
    check(name, State::Ok, found, None)
}

fn processors() -> Check {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let name = "processors";
    if count == 1 {
        let found = "1: prefetching and the program take turns";
        return check(name, State::Limited, found, Some("give this machine or container a second CPU"));
    }
    check(name, State::Ok, format!("{count}"), None)
}

fn watching() -> Check {
    let name = "page faults (record, learning)";
    let probe = Probe { faults: FaultEvents::Costs, ring_bytes: 16 << 10, ..Probe::default() };
    // As whoever records does.
    let _limit = allow_many_for_now();
    match Stream::attach(std::process::id(), &probe) {
        Ok(stream) if stream.sees_system_calls() => check(name, State::Ok, "of all your own programs", None),
        Ok(_) => check(
            name,
            State::Limited,
            "without those that system calls take",
            Some("as root: sysctl kernel.perf_event_paranoid=1"),
        ),
        Err(error) => check(name, State::Missing, chain(&error), error.remedy().or(Some("run as root"))),
    }
}

fn rings() -> Check {
    /// Holds the faults of 50 ms at 100 000 a second.
    const ENOUGH_KIB: usize = 512;
    let name = "record without losses";
    let Ok(stream) = Stream::attach(std::process::id(), &Probe::default()) else {
        return check(name, State::Missing, "no rings", Some("see page faults"));
    };
    let kib = stream.ring_bytes() >> 10;
    let found = format!("rings of {kib} KiB a CPU");
    if kib < ENOUGH_KIB {
        let remedy = format!("as root: sysctl kernel.perf_event_mlock_kb={}", ENOUGH_KIB + 4);
        return check(name, State::Limited, found, Some(&remedy));
    }
    check(name, State::Ok, found, None)
}

fn stalls() -> Check {
    let name = "read() and lookups (learning)";
    let root = rustix::process::geteuid().is_root();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|_| "0".into());
    let scope = scope.trim();
    let readable = Path::new("/proc/self/syscall").exists();
    match (readable, root, scope) {
        (false, ..) => check(
            name,
            State::Missing,
            "this kernel has no /proc/PID/syscall",
            Some("use a kernel with CONFIG_HAVE_ARCH_TRACEHOOK"),
        ),
        (_, true, _) | (_, _, "0") => check(name, State::Ok, "stalls of all processes of a program", None),
        (_, _, "1") => check(
            name,
            State::Limited,
            "in the first start only, and of the program's first process only (Yama)",
            Some("as root: sysctl kernel.yama.ptrace_scope=0"),
        ),
        _ => check(
            name,
            State::Missing,
            format!("Yama's ptrace_scope is {scope}"),
            Some("as root: sysctl kernel.yama.ptrace_scope=0"),
        ),
    }
}

fn exactness() -> Check {
    let name = "exact learning (run, learn)";
    let Some(agent) = find_library() else {
        let remedy = "install libprepage-agent.so beside prepage, in ../lib/prepage from there, or in /usr/lib/prepage";
        return check(name, State::Limited, "no agent: libprepage-agent.so is not installed", Some(remedy));
    };
    match may_arm() {
        Ok(()) => check(name, State::Ok, agent.display().to_string(), None),
        Err(error) => {
            let remedy = match error {
                OpenError::TooOld { .. } | OpenError::Missing => {
                    "use Linux 6.7 or newer with CONFIG_USERFAULTFD"
                }
                _ => "allow userfaultfd in the seccomp filter of this container",
            };
            check(
                name,
                State::Limited,
                format!("pages with their neighbours: {}", chain(&error)),
                Some(remedy),
            )
        }
    }
}

fn cold_caches() -> Check {
    let name = "cold caches (measure)";
    if is_writable(Path::new("/proc/sys/vm/drop_caches")) {
        return check(name, State::Ok, "all caches can be dropped", None);
    }
    let found = "only the pages of a program's own files can be evicted";
    check(name, State::Limited, found, Some("run `prepage measure` as root"))
}

fn residency() -> Check {
    let name = "residency of files (measure)";
    let one = PageRange::new(PageIndex(0), PageIndex(1));
    let counted = fs::File::open("/proc/self/exe").and_then(|file| counts(file.as_fd(), one));
    match counted {
        Ok(_) => check(name, State::Ok, "cachestat(2) works", None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => {
            let found = "mincore(2) works, which does not tell dirty pages";
            check(name, State::Limited, found, Some("use Linux 6.5 or newer for cachestat(2)"))
        }
        // Newer kernels guard it as they guard mincore(2).
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            check(name, State::Limited, "of files that this user owns or may write", Some("run as root"))
        }
        Err(error) => check(name, State::Limited, error.to_string(), Some("run as root")),
    }
}

fn served_faults() -> Check {
    let of = |delivery| Userfaultfd::open(delivery).map(drop);
    served(of(Delivery::Message), of(Delivery::MessageUserOnly))
}

/// What it means whether a userfaultfd is had that also serves faults in system calls, and one that does not.
fn served(all: Result<(), OpenError>, user_only: Result<(), OpenError>) -> Check {
    let name = "faults served in user space (vm)";
    let remedy = "as root: sysctl vm.unprivileged_userfaultfd=1";
    match (all, user_only) {
        (Ok(()), _) => check(name, State::Ok, "userfaultfd works", None),
        (Err(_), Ok(())) => {
            check(name, State::Limited, "system calls on such memory fail (EFAULT)", Some(remedy))
        }
        (Err(_), Err(OpenError::NotPermitted)) => check(
            name,
            State::Missing,
            "userfaultfd is not permitted",
            Some("allow it in the seccomp filter of this container"),
        ),
        // To users the kernel says that of the first only that they may not have it.
        (Err(_), Err(error)) => check(name, State::Missing, chain(&error), Some("use Linux 6.6 or newer")),
    }
}

fn service() -> Check {
    let name = "all programs (service)";
    match ExecWatch::new() {
        Err(_) if !rustix::process::geteuid().is_root() => {
            let found = "not tried: the service watches what is executed, as root";
            check(name, State::Limited, found, Some("run `prepage doctor` as root"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let remedy = "in a container: --cap-add SYS_ADMIN, without a user namespace";
            check(name, State::Missing, "what is executed may not be watched", Some(remedy))
        }
        Err(error) => {
            let remedy = "use Linux 5.1 or newer with CONFIG_FANOTIFY";
            check(name, State::Missing, format!("executions cannot be watched: {error}"), Some(remedy))
        }
        Ok(_) if !file_handle::knows_all() => {
            check(name, State::Limited, "without programs in containers", Some("use Linux 6.5 or newer"))
        }
        Ok(_) if landlock::version().is_err() => {
            let remedy = "use Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and landlock in lsm=";
            check(name, State::Limited, "its reading threads could write, too: no Landlock", Some(remedy))
        }
        Ok(_) => check(name, State::Ok, "executions can be watched, also in containers", None),
    }
}

fn is_writable(path: &Path) -> bool {
    fs::OpenOptions::new().write(true).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use prepage_sys::call_filter::{When, fail};
    use prepage_testing::{Need, unless_refused};

    use super::*;

    /// The helper process ends there, and nothing is ever prefetched.
    #[test]
    fn kernels_without_close_range_are_told_of() {
        for (errno, remedy) in [(Errno::NOSYS, "use Linux 5.9 or newer"), (Errno::PERM, "allow close_range")]
        {
            let looked = std::thread::spawn(move || {
                let filter = fail(errno.raw_os_error(), &[(libc::SYS_close_range, When::Always)]);
                let denied = |error: &std::io::Error| error.kind() == ErrorKind::PermissionDenied;
                let filtered = unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), denied);
                filtered.map(|()| examine())
            });
            let Some(checks) = looked.join().unwrap() else { return };
            let first = &checks[0];
            assert_eq!((first.state, first.essential), (State::Missing, true), "{first:?}");
            assert!(first.remedy.as_ref().is_some_and(|said| said.starts_with(remedy)), "{first:?}");
        }
    }

    /// As to an ordinary user of Linux 6.1.
    #[test]
    fn whom_an_older_kernel_refuses_is_told_of_the_kernel() {
        let too_old = OpenError::TooOld { missing: "poison", needs: "6.6" };
        let found = served(Err(OpenError::NotPermitted), Err(too_old));
        assert_eq!(found.remedy.as_deref(), Some("use Linux 6.6 or newer"), "{found:?}");
    }

    #[test]
    fn what_the_configuration_switches_off_and_its_mistakes_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let looked = |text: &str| {
            fs::write(&path, text).unwrap();
            configuration(&Config::default().and(&path))
        };
        // Of what else may be off it says nothing.
        let on = looked("predict = no\nhold-outs = no\n");
        assert_eq!((on.state, &*on.found, on.remedy), (State::Ok, "prefetching and learning are on", None));
        let off = looked("enabled = no\nlern = no\nlearn = no\n");
        for part in ["enabled = no (", "learn = no (", "config:3)", "no such key: `lern`"] {
            assert!(off.found.contains(part), "{off:?}");
        }
        assert_eq!((off.state, off.remedy.as_deref()), (State::Limited, Some("prepage config")));
    }

    #[test]
    fn whatever_is_not_in_order_has_a_remedy() {
        for check in examine() {
            assert!(!check.found.is_empty());
            assert_eq!(check.state == State::Ok, check.remedy.is_none(), "{}", check.name);
        }
    }
}
