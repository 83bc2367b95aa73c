//! What systemd is told (sd_notify(3)): a datagram to the socket that it names in the environment.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Says `state`, such as `READY=1`, where anybody listens.
pub fn say(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address?)
    });
    // Whoever started us will find out by other means.
    let _ = sent;
}

/// How often systemd wants to hear `WATCHDOG=1`: half of the time after which it takes this process for hung. `None` where it
/// does not.
pub fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let us = variable("WATCHDOG_USEC").filter(|us| *us > 0 && is_ours)?;
    Some(Duration::from_micros(us / 2))
}
