// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hosts in network namespaces around a router, which can lose what one of them sends to another, some of it or all,
//! and slow a host down. No host learns of the loss: no reset, no ICMP. The router is a namespace, too, which the
//! thread of the test enters, so that the machine's own network stays as it is. Needs root.
//!
//! ```text
//!  host 1: 10.77.1.2 ── cable1 ── 10.77.1.1 ┐
//!  host 2: 10.77.2.2 ── cable2 ── 10.77.2.1 ┤ router, and the thread of the test
//! ```

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::openvpn::Namespace;
use crate::pool::Host;
use crate::process;

/// Hosts and their router. The thread that made it is in the router's namespace until it is dropped.
#[derive(Debug)]
pub struct Network {
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
        Self { home, router, hosts }
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

    /// Loses 30 % of the time of everything between these two, in pieces of 60 ms, while `act` runs.
    ///
    /// # Panics
    /// If `act` does.
    pub fn lossy<R>(&self, one: &str, other: &str, act: impl FnOnce() -> R) -> R {
        const LOST: Duration = Duration::from_millis(60);
        const PASSED: Duration = Duration::from_millis(140);
        let over = AtomicBool::new(false);
        // Also when `act` panics.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ways = [(one, other), (other, one)];
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    ways.iter().for_each(|(from, to)| self.cut(from, to));
                    thread::sleep(LOST);
                    ways.iter().for_each(|(from, to)| self.heal(from, to));
                    thread::sleep(PASSED);
                }
            });
            let _over = Over(&over);
            act()
        })
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
