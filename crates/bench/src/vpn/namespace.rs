// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Network namespaces of a run: each lives as long as the process that holds it, and that process ends with this one.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::child::OwnedChild;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::BenchError;
use crate::process::{command, need, output_of};

/// Name of the link, whose devices are numbered from it.
pub(super) const LINK: &str = "bench";

/// Addresses of the cable's ends (RFC 2544, for benchmarks), and of the ends in the link.
pub(super) const CABLE: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
pub(super) const INNER: [&str; 2] = ["10.97.0.1", "10.97.0.2"];

/// Time limit for `unshare` to make a namespace, which takes some milliseconds; the rest is for a busy machine.
const UNSHARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of checks whether the namespace is made: a run makes two.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A network namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    holder: OwnedChild,
    nsenter: PathBuf,
    ip: PathBuf,
}

/// Bytes that each device of a namespace has received and sent, by name.
pub(super) type DeviceBytes = Vec<(String, u64)>;

impl Namespace {
    /// Makes one, with its loopback device up.
    pub(super) fn new() -> Result<Self, BenchError> {
        let unshare = need("unshare", "util-linux")?;
        let mut hold = command(&unshare);
        hold.args(["--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let holder = OwnedChild::spawn(&mut hold)
            .map_err(BenchError::system("start a network namespace"))?;
        let mut namespace =
            Self { holder, nsenter: need("nsenter", "util-linux")?, ip: need("ip", "iproute2")? };
        let own = fs::read_link("/proc/self/ns/net").ok();
        let until = Instant::now() + UNSHARE_TIMEOUT;
        while fs::read_link(namespace.path()).ok().is_none_or(|other| Some(other) == own) {
            if Instant::now() > until || !matches!(namespace.holder.try_wait(), Ok(None)) {
                return Err(BenchError::Setup(
                    "network namespaces cannot be made here: they need root".to_owned(),
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }

    /// A program in this namespace, which outlives this process.
    pub(super) fn command(&self, program: &Path) -> Command {
        self.entered(Command::new(&self.nsenter), program)
    }

    /// A program in this namespace, which ends with this process.
    pub(super) fn tied_command(&self, program: &Path) -> Command {
        self.entered(command(&self.nsenter), program)
    }

    fn entered(&self, mut enter: Command, program: &Path) -> Command {
        enter.arg(format!("--net={}", self.path().display())).arg(program).stdin(Stdio::null());
        enter
    }

    /// Runs `ip` in this namespace.
    pub(super) fn ip(&self, words: &str) -> Result<(), BenchError> {
        let mut command = self.tied_command(&self.ip);
        output_of("ip", command.args(words.split(' '))).map(drop)
    }

    /// Lets these cores process packets that the devices of this namespace receive (RPS): a mask of them, 0 for the
    /// core that received the packet.
    pub(super) fn receive_on(&self, cores: u32) -> Result<(), BenchError> {
        // Sysfs shows the devices of the namespace in which it was mounted.
        let script = format!(
            "mount -t sysfs sysfs /sys; for f in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {cores:x} >$f; done"
        );
        let mut command = self.tied_command(&need("unshare", "util-linux")?);
        output_of("RPS", command.args(["--mount", "sh", "-ec", &script])).map(drop)
    }

    /// Joins two namespaces by a cable with these addresses.
    pub(super) fn join(&self, other: &Self, addresses: [&str; 2]) -> Result<(), BenchError> {
        let peer = other.holder.id();
        self.ip(&format!("link add cable type veth peer name cable netns {peer}"))?;
        for (end, address) in [self, other].into_iter().zip(addresses) {
            end.ip(&format!("address add {address}/24 dev cable"))?;
            end.ip("link set cable up")?;
        }
        Ok(())
    }

    /// Runs a function in this namespace, on a thread of its own: sockets that it opens stay there.
    pub(super) fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BenchError> {
        let path = self.path();
        let run = thread::spawn(move || {
            let file = File::open(path)?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        let result = run
            .join()
            .map_err(|_| BenchError::Setup("a thread in a namespace panicked".to_owned()))?;
        result.map_err(BenchError::system("work in a network namespace"))
    }

    /// Bytes that each device has received and sent.
    pub(super) fn device_bytes(&self) -> Result<DeviceBytes, BenchError> {
        let text = self.inside(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(parse_devices(&text))
    }
}

/// Lines of /proc/net/dev: a name, and from the first column on received bytes, from the ninth on sent ones.
fn parse_devices(text: &str) -> DeviceBytes {
    let device = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        Some((name.trim().to_owned(), numbers.first()? + numbers.get(8)?))
    };
    text.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::parse_devices;

    #[test]
    fn bytes_of_devices_are_received_and_sent_ones() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n  mr-0: 300 4 0 0 0 0 0 0 50 2 0 0 0 0 0 0\n";
        assert_eq!(parse_devices(text), [("lo".to_owned(), 20), ("mr-0".to_owned(), 350)]);
    }
}
