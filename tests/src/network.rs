// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hosts in network namespaces around a router, which can lose what one of them sends to another, some of it or all,
//! delay it, and slow a host down. No host learns of the loss: no reset, no ICMP. The router is a namespace, too, which
//! the thread of the test enters, so that the machine's own network stays as it is. Needs root.
//!
//! ```text
//!  host 1: 10.77.1.2 ── cable1 ── 10.77.1.1 ┐
//!  host 2: 10.77.2.2 ── cable2 ── 10.77.2.1 ┤ router, and the thread of the test
//! ```

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::openvpn::Namespace;
use crate::pool::Host;
use crate::process::{self, Process};

/// The program that delays packets.
const DELAY: &str = include_str!("delay.py");

/// Hosts and their router. The thread that made it is in the router's namespace until it is dropped.
#[derive(Debug)]
pub struct Network {
    dir: PathBuf,
    home: File,
    router: Namespace,
    hosts: Vec<(&'static str, Namespace)>,
}

impl Network {
    /// Makes a router and a host of each name.
    ///
    /// # Panics
    /// If namespaces cannot be made; see [`Namespace::is_possible`].
    #[must_use]
    pub fn new(dir: &Path, names: &[&'static str]) -> Self {
        let home = File::open("/proc/thread-self/ns/net").expect("this thread's network");
        let router = Namespace::new(dir, "router");
        let hosts: Vec<_> = names.iter().map(|name| (*name, Namespace::new(dir, name))).collect();
        for (number, (_, host)) in (1..).zip(&hosts) {
            router.ip(&format!(
                "link add cable{number} type veth peer name cable netns {}",
                host.id()
            ));
            router.ip(&format!("addr add 10.77.{number}.1/30 dev cable{number}"));
            router.ip(&format!("link set cable{number} up"));
            host.ip(&format!("addr add 10.77.{number}.2/30 dev cable"));
            host.ip("link set cable up");
            host.ip(&format!("route add default via 10.77.{number}.1"));
        }
        let mut forward = Command::new("sh");
        forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        let _ = process::succeed(&mut router.enter(&forward));
        enter(&router.file());
        Self { dir: dir.to_owned(), home, router, hosts }
    }

    fn number(&self, name: &str) -> usize {
        let at = self.hosts.iter().position(|(host, _)| *host == name);
        1 + at.unwrap_or_else(|| panic!("no host {name}"))
    }

    /// The address of a host.
    ///
    /// # Panics
    /// If there is none of that name.
    #[must_use]
    pub fn address(&self, name: &str) -> Ipv4Addr {
        let number = u8::try_from(self.number(name)).expect("few hosts");
        Ipv4Addr::new(10, 77, number, 2)
    }

    /// A host, for programs that run there.
    ///
    /// # Panics
    /// If there is none of that name.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let file = self.hosts[self.number(name) - 1].1.file();
        Host {
            address: self.address(name).to_string(),
            under: vec!["nsenter".to_owned(), format!("--net={}", file.display())],
        }
    }

    /// Does something with this thread at a host. Threads and programs that it starts stay there.
    ///
    /// # Panics
    /// If there is no host of that name.
    pub fn inside<R>(&self, name: &str, act: impl FnOnce() -> R) -> R {
        enter(&self.hosts[self.number(name) - 1].1.file());
        let result = act();
        enter(&self.router.file());
        result
    }

    /// The router loses everything that `from` sends to `to` from now on.
    pub fn cut(&self, from: &str, to: &str) {
        self.rule("add", from, to);
    }

    /// Makes the router forward packets between these two again.
    pub fn heal(&self, from: &str, to: &str) {
        self.rule("del", from, to);
    }

    /// Loses 30 % of the packets between these two, at random, while `act` runs; returns their number.
    ///
    /// # Panics
    /// If `act` does.
    #[must_use]
    pub fn lossy(&self, one: &str, other: &str, act: impl FnOnce()) -> u64 {
        let mut rules = "add table ip loss\nadd chain ip loss forward { type filter hook forward priority 0; }\n"
            .to_owned();
        for (from, to) in [(one, other), (other, one)] {
            let (from, to) = (self.address(from), self.address(to));
            let _ = writeln!(
                rules,
                "add rule ip loss forward ip saddr {from} ip daddr {to} numgen random mod 100 < 30 counter drop"
            );
        }
        let _ = self.nft(&rules);
        act();
        let listed = self.nft("list table ip loss");
        let _ = self.nft("delete table ip loss");
        let lost = listed.split("counter packets ").skip(1).filter_map(|rule| {
            let count = rule.split(' ').next();
            count.and_then(|count| count.parse::<u64>().ok())
        });
        lost.sum()
    }

    fn nft(&self, rules: &str) -> String {
        let mut command = Command::new(process::program("nft"));
        command.arg(rules);
        process::succeed(&mut self.router.enter(&command))
    }

    /// Delays everything between two hosts by this time, ± a third of it, each way, while `act` runs. Nothing is lost.
    ///
    /// # Panics
    /// If `act` does, or the delay cannot be made.
    pub fn delayed<R>(&self, between: (&str, &str), millis: u32, act: impl FnOnce() -> R) -> R {
        /// Routes over the delay. Looked at before the main table, but not for what comes back from the delay.
        const TABLE: &str = "77";
        let mut command = Command::new(process::program("python3"));
        command.args(["-c", DELAY]).args([millis, millis / 3].map(|value| value.to_string()));
        let log = self.dir.join("delay.log");
        // Logs grow: what a former one left there would be taken for this one's.
        let _ = fs::remove_file(&log);
        let mut delay = Process::start("delay", self.router.enter(&command), &log);
        delay.wait_ready(|| delay_is_made(&log));
        self.router.ip("link set delay up");
        self.router.ip(&format!("route add default dev delay table {TABLE}"));
        let [one, other] = [between.0, between.1].map(|name| self.address(name));
        let rules = [(one, other), (other, one)].map(|(from, to)| {
            let device = cable_to(from);
            format!("from {from} to {to} iif {device} lookup {TABLE}")
        });
        rules.iter().for_each(|rule| self.router.ip(&format!("rule add {rule}")));
        let result = act();
        rules.iter().for_each(|rule| self.router.ip(&format!("rule del {rule}")));
        result
    }

    /// Limits the cable of a host to a rate, `256kbit` for example, both ways. What waits for longer than 300 ms is
    /// lost.
    pub fn slow(&self, name: &str, rate: &str) {
        self.cable(name, &format!("add dev {{}} root tbf rate {rate} burst 4kb latency 300ms"));
    }

    /// Ends the limit.
    pub fn fast(&self, name: &str) {
        self.cable(name, "del dev {} root");
    }

    fn cable(&self, name: &str, discipline: &str) {
        let number = self.number(name);
        let ends = [
            (&self.router, format!("cable{number}")),
            (&self.hosts[number - 1].1, "cable".to_owned()),
        ];
        for (namespace, device) in ends {
            let mut command = Command::new(process::program("tc"));
            let arguments = format!("qdisc {}", discipline.replace("{}", &device));
            command.args(arguments.split(' '));
            let _ = process::succeed(&mut namespace.enter(&command));
        }
    }

    fn rule(&self, action: &str, from: &str, to: &str) {
        let (from, to) = (self.address(from), self.address(to));
        self.router.ip(&format!("rule {action} from {from} to {to} blackhole"));
    }
}

/// The router's end of the cable to a host.
fn cable_to(host: Ipv4Addr) -> String {
    format!("cable{}", host.octets()[2])
}

fn delay_is_made(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains("made"))
}

fn enter(file: &Path) {
    let file = File::open(file).expect("a namespace");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root enters a namespace");
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network));
    }
}
