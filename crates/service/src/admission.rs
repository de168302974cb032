// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Handshakes in progress: which one gives way when there are too many. No I/O, no clock.
//!
//! A client in a handshake has no identity yet, so no share protects it. A flood of silent connections must not
//! keep gateways out: a newcomer always enters, and an older handshake gives way, first of the same source address,
//! first one whose client has sent nothing. A gateway sends its first record at once and is done after two round
//! trips, so it is neither silent nor old.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// The share of all handshakes that one source address may hold: a quarter. A site behind one address fits in
/// it; a flood from one address leaves the rest to others.
const SOURCES: usize = 4;

/// A source address may always have this many, in place of a quarter of few: the workers of one gateway.
const LEAST_OF_SOURCE: usize = 16;

/// The handshakes in progress of a listener.
#[derive(Debug, Default)]
pub struct Handshakes {
    next: u64,
    /// Source address of each handshake by its number, so the oldest comes first.
    all: BTreeMap<u64, IpAddr>,
    /// Handshakes whose client has sent nothing.
    silent: BTreeSet<u64>,
    of_source: HashMap<IpAddr, BTreeSet<u64>>,
}

/// The place of a new handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Number of the handshake.
    pub number: u64,
    /// The handshake that must end for it.
    pub displaced: Option<u64>,
}

impl Handshakes {
    /// Adds a handshake with a client at `address`; at most `most` may be in progress.
    pub fn enter(&mut self, address: IpAddr, most: usize) -> Entered {
        let source = source(address);
        let displaced = self.who_gives_way(source, most.max(1));
        if let Some(number) = displaced {
            self.leave(number);
        }
        let number = self.next;
        self.next += 1;
        self.all.insert(number, source);
        self.silent.insert(number);
        self.of_source.entry(source).or_default().insert(number);
        Entered { number, displaced }
    }

    fn who_gives_way(&self, source: IpAddr, most: usize) -> Option<u64> {
        let own = self.of_source.get(&source);
        let own = own.filter(|own| own.len() >= (most / SOURCES).max(LEAST_OF_SOURCE));
        if let Some(own) = own {
            let silent = own.iter().find(|number| self.silent.contains(number));
            return silent.or_else(|| own.first()).copied();
        }
        if self.all.len() < most {
            return None;
        }
        self.silent.first().or_else(|| self.all.keys().next()).copied()
    }

    /// The client has sent its first message.
    pub fn spoke(&mut self, number: u64) {
        self.silent.remove(&number);
    }

    /// The handshake has ended, in whatever way. Returns whether it was still in progress.
    pub fn leave(&mut self, number: u64) -> bool {
        let Some(source) = self.all.remove(&number) else {
            return false;
        };
        self.silent.remove(&number);
        if let Some(own) = self.of_source.get_mut(&source) {
            own.remove(&number);
            if own.is_empty() {
                self.of_source.remove(&source);
            }
        }
        true
    }
}

/// An address as a source of connections. One host usually has a whole /64 of IPv6.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(prefix).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn flood_of_one_source_displaces_only_its_own() {
        let mut handshakes = Handshakes::default();
        let gateway = handshakes.enter(host(1), 100);
        handshakes.spoke(gateway.number);
        for round in 0..100 {
            let entered = handshakes.enter(host(2), 100);
            assert_ne!(entered.displaced, Some(gateway.number));
            assert_eq!(entered.displaced.is_some(), round >= 25, "{round}");
        }
        assert_eq!(handshakes.all.len(), 26);
    }

    #[test]
    fn silent_handshake_gives_way_before_an_older_one_that_spoke() {
        let mut handshakes = Handshakes::default();
        let numbers: Vec<_> = (0..4).map(|last| handshakes.enter(host(last), 4).number).collect();
        handshakes.spoke(numbers[0]);
        handshakes.spoke(numbers[2]);
        let mut displaced = || {
            let entered = handshakes.enter(host(9), 4);
            handshakes.leave(entered.number);
            handshakes.enter(host(8), 5);
            entered.displaced
        };
        assert_eq!(displaced(), Some(numbers[1]));
        assert_eq!(displaced(), Some(numbers[3]));
    }

    #[test]
    fn oldest_gives_way_if_all_spoke() {
        let mut handshakes = Handshakes::default();
        for last in 0..4 {
            let number = handshakes.enter(host(last), 4).number;
            handshakes.spoke(number);
        }
        assert_eq!(handshakes.enter(host(9), 4).displaced, Some(0));
    }

    #[test]
    fn ended_handshakes_leave_nothing_behind() {
        let mut handshakes = Handshakes::default();
        let number = handshakes.enter(host(1), 1).number;
        let second = handshakes.enter(host(1), 1);
        assert_eq!(second.displaced, Some(number));
        assert!(!handshakes.leave(number), "displaced already");
        assert!(handshakes.leave(second.number));
        assert!(handshakes.all.is_empty() && handshakes.silent.is_empty());
        assert!(handshakes.of_source.is_empty());
    }

    #[test]
    fn source_of_an_ipv6_host_is_its_prefix() {
        let parse = |text: &str| source(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), host(1));
    }
}
