// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports the state of the node to a service manager (the protocol of sd_notify(3)): one datagram per
//! message to the socket named by `NOTIFY_SOCKET`. Without that variable it does nothing.
//!
//! The service manager may watch the node ([`watchdog_interval`]): it restarts a node without a sign of life.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use millrace_engine::stats::EngineSnapshot;

/// sd_notify(3): every socket listens.
pub(crate) const READY: &str = "READY=1";
/// The node drains and ends.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// sd_notify(3): resets the watchdog.
pub(crate) const ALIVE: &str = "WATCHDOG=1";

/// The interval of signs of life: half of the time after which the service manager restarts the node. `None` if
/// it does not watch this process.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    let timeout = env::var("WATCHDOG_USEC").ok();
    let process = env::var("WATCHDOG_PID").ok();
    watched(timeout.as_deref(), process.as_deref(), std::process::id())
}

fn watched(timeout_us: Option<&str>, of: Option<&str>, process: u32) -> Option<Duration> {
    let timeout: u64 = timeout_us?.parse().ok()?;
    let mine = of.is_none_or(|of| of.parse() == Ok(process));
    (mine && timeout > 1).then(|| Duration::from_micros(timeout / 2))
}

/// Detects workers that no longer work: jobs of a class wait at two successive checks, and no job of the node has
/// ended on a backend in between. The longest operation takes milliseconds, and checks are seconds apart.
#[derive(Debug, Default)]
pub(crate) struct WatchdogProgress {
    ended: u64,
    waiting: [bool; 3],
}

impl WatchdogProgress {
    /// Whether the workers have worked since the last check, or had nothing to do.
    pub(crate) fn check(&mut self, now: &EngineSnapshot) -> bool {
        let ended = now.series.iter().map(|row| row.completed + row.failed).sum();
        let mut waiting = [false; 3];
        for (waits, (_, jobs)) in waiting.iter_mut().zip(now.waiting) {
            *waits = jobs > 0;
        }
        let before = std::mem::replace(self, Self { ended, waiting });
        let stuck = before.waiting.iter().zip(waiting).any(|(before, now)| *before && now);
        ended != before.ended || !stuck
    }
}

/// Sends a message to the service manager, if there is one. A failure to send is only logged.
pub(crate) fn notify(message: &str) {
    let Some(target) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&target, message) {
        tracing::warn!(%error, "the service manager did not get the message {message}");
    }
}

/// `target` is a path, or `@name` for the abstract namespace.
fn send(target: &OsStr, message: &str) -> io::Result<()> {
    let address = match target.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(target)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_half_of_the_timeout_of_this_process() {
        let second = Some("1000000");
        let half = Some(Duration::from_millis(500));
        assert_eq!(watched(second, None, 7), half);
        assert_eq!(watched(second, Some("7"), 7), half);
        assert_eq!(watched(second, Some("8"), 7), None);
        assert_eq!(watched(None, Some("7"), 7), None);
        assert_eq!(watched(Some("0"), None, 7), None);
        assert_eq!(watched(Some("soon"), None, 7), None);
    }

    #[test]
    fn waiting_jobs_without_an_ended_one_are_no_sign_of_life() {
        let engine = millrace_engine::Engine::start(
            millrace_engine::EngineConfig::default(),
            crate::backends::all(),
        );
        let engine = engine.unwrap();
        let idle = engine.stats();
        engine.stop();
        let mut busy = idle.clone();
        busy.waiting[2].1 = 5;
        let mut progress = WatchdogProgress::default();
        assert!(progress.check(&idle));
        assert!(progress.check(&busy), "they have just arrived");
        assert!(!progress.check(&busy));
        assert!(!progress.check(&busy), "and still not");
        assert!(progress.check(&idle));
    }

    #[test]
    fn message_arrives_at_a_path_and_in_the_abstract_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify.sock");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let name = format!("millrace-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), READY).unwrap();
        for socket in [by_path, by_name] {
            let mut buffer = [0; 32];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], READY.as_bytes());
        }
    }
}
