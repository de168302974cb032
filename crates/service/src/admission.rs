// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Who gives way at a listener whose places are taken. No I/O, no clock.
//!
//! A connection comes before its client has a name, so nothing can keep strangers out. The rule of every listener
//! (ADR 54): a newcomer always enters, and an older connection gives way for it. It is one of the same source, if that
//! source has its share, else one of the same class: first one whose client has sent nothing, then one that waits for
//! its client, then one that only watches; of equals the one that has been so for longest. Connections of another class
//! never give way, so that strangers take no place of clients with a name.
//!
//! A session of a node has jobs in flight and never gives way: its places are those of
//! [`Settings::has_room`](crate::settings::Settings), which refuses the newcomer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The share of a class that one source may hold: a quarter. A site behind one address fits in it; a flood from one
/// address leaves the rest to others.
const SOURCES: usize = 4;

/// A source may always have this many, in place of a quarter of few: the workers of one gateway.
const LEAST_OF_SOURCE: usize = 16;

/// Connections that share their places: strangers, or clients with one kind of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceClass {
    /// Its name, also in metrics.
    pub name: &'static str,
    /// Bound on its connections; at least one.
    pub most: usize,
    /// Bound on the connections of one source.
    pub of_source: usize,
}

impl PlaceClass {
    /// A class of which a source may hold a quarter, or 16 if that is more.
    #[must_use]
    pub const fn new(name: &'static str, most: usize) -> Self {
        let share = most / SOURCES;
        let of_source = if share > LEAST_OF_SOURCE { share } else { LEAST_OF_SOURCE };
        Self { name, most, of_source }
    }
}

/// The party whose connections count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PlaceSource {
    /// An address, of a client without a name.
    Address(IpAddr),
    /// A client with a name.
    Identity(Arc<str>),
}

impl PlaceSource {
    /// The source of connections from an address. One host usually has a whole /64 of IPv6.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let prefix = u128::from(address) & !u128::from(u64::MAX);
                Ipv6Addr::from(prefix).into()
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Display for PlaceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Identity(name) => f.write_str(name),
        }
    }
}

/// The state of a connection, in the order in which connections give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Its client has sent nothing yet.
    Silent,
    /// Waits for its client: for the next request, or the rest of one.
    Waiting,
    /// Reads a stream that its client can open again, to its end.
    Watching,
    /// Work for it is under way.
    Working,
}

/// The connections of a listener that may have to give way.
#[derive(Debug, Default)]
pub struct Admission {
    next: u64,
    connections: HashMap<u64, Held>,
    classes: HashMap<&'static str, Order>,
    sources: HashMap<(&'static str, PlaceSource), Order>,
}

/// Connections by activity, and by the time since when: the first gives way first.
type Order = BTreeMap<(Activity, u64), u64>;

#[derive(Debug)]
struct Held {
    class: &'static str,
    source: PlaceSource,
    rank: (Activity, u64),
}

/// The place of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Number of the connection.
    pub number: u64,
    /// The connection that must end for it.
    pub displaced: Option<u64>,
}

impl Admission {
    /// Adds a connection whose client has sent nothing.
    pub fn enter(&mut self, class: PlaceClass, source: PlaceSource) -> Entered {
        let displaced = self.make_room(class, &source);
        let number = self.tick();
        self.insert(number, class.name, source, Activity::Silent);
        Entered { number, displaced }
    }

    /// Moves a connection to another class or source, now that its client is known. Returns the connection that must
    /// end for it.
    pub fn pass(&mut self, number: u64, class: PlaceClass, source: PlaceSource) -> Option<u64> {
        let held = self.connections.get(&number)?;
        if held.class == class.name && held.source == source {
            return None;
        }
        let activity = held.rank.0;
        self.leave(number);
        let displaced = self.make_room(class, &source);
        self.insert(number, class.name, source, activity);
        displaced
    }

    /// Notes what a connection does from now on.
    pub fn mark(&mut self, number: u64, activity: Activity) {
        let since = self.tick();
        let Some(held) = self.connections.get_mut(&number) else { return };
        if held.rank.0 == activity || held.rank.0 == Activity::Watching {
            return;
        }
        let former = std::mem::replace(&mut held.rank, (activity, since));
        let rank = held.rank;
        let of_source = self.sources.get_mut(&(held.class, held.source.clone()));
        for order in [self.classes.get_mut(held.class), of_source].into_iter().flatten() {
            order.remove(&former);
            order.insert(rank, number);
        }
    }

    /// The connection has ended, in whatever way. Returns whether it still had its place.
    pub fn leave(&mut self, number: u64) -> bool {
        let Some(Held { class, source, rank }) = self.connections.remove(&number) else {
            return false;
        };
        if let Some(order) = self.classes.get_mut(class) {
            order.remove(&rank);
        }
        let of_source = (class, source);
        if let Some(order) = self.sources.get_mut(&of_source) {
            order.remove(&rank);
            if order.is_empty() {
                self.sources.remove(&of_source);
            }
        }
        true
    }

    /// Whether a connection still has its place.
    #[must_use]
    pub fn holds(&self, number: u64) -> bool {
        self.connections.contains_key(&number)
    }

    /// Number of connections in a class.
    #[must_use]
    pub fn held(&self, class: &str) -> usize {
        self.classes.get(class).map_or(0, BTreeMap::len)
    }

    fn make_room(&mut self, class: PlaceClass, source: &PlaceSource) -> Option<u64> {
        let full = |order: Option<&Order>, most: usize| {
            order.filter(|order| order.len() >= most.max(1)).and_then(first)
        };
        let own = full(self.sources.get(&(class.name, source.clone())), class.of_source);
        let displaced = own.or_else(|| full(self.classes.get(class.name), class.most))?;
        self.leave(displaced);
        Some(displaced)
    }

    fn insert(
        &mut self,
        number: u64,
        class: &'static str,
        source: PlaceSource,
        activity: Activity,
    ) {
        let rank = (activity, self.tick());
        self.classes.entry(class).or_default().insert(rank, number);
        self.sources.entry((class, source.clone())).or_default().insert(rank, number);
        self.connections.insert(number, Held { class, source, rank });
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn first(order: &Order) -> Option<u64> {
    order.first_key_value().map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(last: u8) -> PlaceSource {
        PlaceSource::of([10, 0, 0, last].into())
    }

    fn class(most: usize) -> PlaceClass {
        PlaceClass::new("handshake", most)
    }

    #[test]
    fn flood_of_one_source_displaces_only_its_own() {
        let mut places = Admission::default();
        let gateway = places.enter(class(100), host(1));
        places.mark(gateway.number, Activity::Working);
        for round in 0..100 {
            let entered = places.enter(class(100), host(2));
            assert_ne!(entered.displaced, Some(gateway.number));
            assert_eq!(entered.displaced.is_some(), round >= 25, "{round}");
        }
        assert_eq!(places.held("handshake"), 26);
    }

    #[test]
    fn source_of_a_small_class_may_have_sixteen() {
        let mut places = Admission::default();
        for round in 0..20 {
            let entered = places.enter(class(20), host(1));
            assert_eq!(entered.displaced.is_some(), round >= LEAST_OF_SOURCE, "{round}");
        }
    }

    #[test]
    fn silent_connection_gives_way_before_an_older_one_that_spoke() {
        let mut places = Admission::default();
        let numbers: Vec<_> =
            (0..4).map(|last| places.enter(class(4), host(last)).number).collect();
        places.mark(numbers[0], Activity::Working);
        places.mark(numbers[2], Activity::Waiting);
        let mut displaced = || {
            let entered = places.enter(class(4), host(9));
            places.mark(entered.number, Activity::Working);
            entered.displaced
        };
        assert_eq!(displaced(), Some(numbers[1]));
        assert_eq!(displaced(), Some(numbers[3]));
        assert_eq!(displaced(), Some(numbers[2]), "a waiting one before those that work");
        assert_eq!(displaced(), Some(numbers[0]), "the oldest if all work");
    }

    #[test]
    fn watching_connection_stays_so_and_gives_way_before_working_ones() {
        let mut places = Admission::default();
        let [watching, working] = [0, 1].map(|last| places.enter(class(2), host(last)).number);
        places.mark(watching, Activity::Watching);
        places.mark(working, Activity::Working);
        // Each event that is written and read changes nothing.
        places.mark(watching, Activity::Working);
        places.mark(watching, Activity::Waiting);
        assert_eq!(places.enter(class(2), host(2)).displaced, Some(watching));
    }

    #[test]
    fn connection_that_was_of_use_lately_gives_way_last() {
        let mut places = Admission::default();
        let numbers = [0, 1].map(|last| places.enter(class(2), host(last)).number);
        for number in [numbers[1], numbers[0]] {
            places.mark(number, Activity::Working);
            places.mark(number, Activity::Waiting);
        }
        // A byte now and then is no use.
        places.mark(numbers[1], Activity::Waiting);
        assert_eq!(places.enter(class(2), host(2)).displaced, Some(numbers[1]));
    }

    #[test]
    fn strangers_take_no_place_of_a_client_with_a_name() {
        let nodes = PlaceClass { name: "node", most: 2, of_source: 1 };
        let mut places = Admission::default();
        let identity = |name: &str| PlaceSource::Identity(name.into());
        let [a, b, c] = [0, 1, 2].map(|last| places.enter(class(4), host(last)).number);
        assert_eq!(places.pass(a, nodes, identity("a")), None);
        assert_eq!(places.pass(a, nodes, identity("a")), None, "it does not displace itself");
        for round in 0..100 {
            let displaced = places.enter(class(4), host(round)).displaced;
            assert!(displaced.is_none_or(|number| number != a), "{displaced:?}");
        }
        assert_eq!(places.held("node"), 1);
        // Two of the three were displaced by then.
        assert_eq!(places.pass(b, nodes, identity("b")), None);
        assert!(!places.leave(b) && !places.leave(c));
        let [second, third] = [7, 8].map(|last| places.enter(class(4), host(last)).number);
        assert_eq!(places.pass(second, nodes, identity("a")), Some(a), "its own gives way");
        assert_eq!(places.pass(third, nodes, identity("c")), None);
        assert_eq!(places.held("node"), 2);
    }

    #[test]
    fn source_of_an_ipv6_host_is_its_prefix() {
        let parse = |text: &str| PlaceSource::of(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), host(1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u8, u8),
        Pass(usize, u8, u8),
        Mark(usize, Activity),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let activity = prop_oneof![
            Just(Activity::Silent),
            Just(Activity::Waiting),
            Just(Activity::Watching),
            Just(Activity::Working),
        ];
        prop_oneof![
            4 => (0..2_u8, 0..4_u8).prop_map(|(class, host)| Step::Enter(class, host)),
            1 => (any::<usize>(), 0..2_u8, 0..4_u8).prop_map(|(at, class, host)| Step::Pass(at, class, host)),
            2 => (any::<usize>(), activity).prop_map(|(at, activity)| Step::Mark(at, activity)),
            1 => any::<usize>().prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nothing_is_left_behind(steps in proptest::collection::vec(step(), 0..200)) {
            let classes = [
                PlaceClass { name: "few", most: 3, of_source: 2 },
                PlaceClass { name: "many", most: 5, of_source: 4 },
            ];
            let mut places = Admission::default();
            let mut alive = Vec::new();
            for step in steps {
                let pick = |at: usize, alive: &Vec<u64>| alive.get(at % alive.len().max(1)).copied();
                let displaced = match step {
                    Step::Enter(class, last) => {
                        let entered = places.enter(classes[usize::from(class)], host(last));
                        alive.push(entered.number);
                        entered.displaced
                    }
                    Step::Pass(at, class, last) => pick(at, &alive)
                        .and_then(|number| places.pass(number, classes[usize::from(class)], host(last))),
                    Step::Mark(at, activity) => {
                        if let Some(number) = pick(at, &alive) {
                            places.mark(number, activity);
                        }
                        None
                    }
                    Step::Leave(at) => {
                        if let Some(number) = pick(at, &alive) {
                            prop_assert!(places.leave(number));
                            alive.retain(|other| *other != number);
                        }
                        None
                    }
                };
                if let Some(number) = displaced {
                    prop_assert!(alive.contains(&number) && !places.leave(number));
                    alive.retain(|other| *other != number);
                }
                let held = classes.map(|class| places.held(class.name));
                prop_assert!(held[0] <= 3 && held[1] <= 5);
                prop_assert_eq!(held[0] + held[1], alive.len());
                for order in places.sources.iter() {
                    let most = if order.0.0 == "few" { 2 } else { 4 };
                    prop_assert!(order.1.len() <= most);
                }
            }
            for number in alive {
                prop_assert!(places.leave(number));
            }
            prop_assert!(places.connections.is_empty() && places.sources.is_empty());
            prop_assert!(classes.iter().all(|class| places.held(class.name) == 0));
        }
    }
}
