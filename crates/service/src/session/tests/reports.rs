// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports of a client's counters.

use millrace_wire::{EdgeCounter, FEATURES};

use super::*;

fn report(counts: &[(EdgeCounter, u64)]) -> ClientMessage {
    let mut report = EdgeReport::default();
    for (counter, count) in counts {
        report.set(*counter, *count);
    }
    ClientMessage::Report(Box::new(report))
}

fn reporting() -> Client {
    let mut client = Client::silent(rules());
    let hello =
        Hello { min_version: 1, max_version: 1, features: u64::MAX, agent: "edge/1".to_owned() };
    let effects = client.say(ClientMessage::Hello(hello));
    let [NodeMessage::Welcome(welcome)] = &effects.replies[..] else { panic!("{effects:?}") };
    assert_eq!(welcome.features, FEATURES);
    client
}

#[test]
fn report_counts_only_the_increase() {
    use EdgeCounter::{Blocking, FallbackBusy, Paused};
    let mut client = reporting();
    let mut news = |counts: &[(EdgeCounter, u64)]| {
        let news = client.say(report(counts)).news.expect("a report");
        [Paused, Blocking, FallbackBusy].map(|counter| news.get(counter))
    };
    assert_eq!(news(&[(Paused, 5), (Blocking, 1)]), [5, 1, 0]);
    assert_eq!(news(&[(Paused, 5), (Blocking, 1)]), [0, 0, 0]);
    // A total that decreases is ignored, and the same events do not count again.
    assert_eq!(news(&[(Paused, 2), (FallbackBusy, 3)]), [0, 0, 3]);
    assert_eq!(news(&[(Paused, 6), (Blocking, 2)]), [1, 1, 0]);
    assert_eq!(news(&[(Paused, u64::MAX)]), [u64::MAX - 6, 0, 0]);
    assert_eq!(news(&[(Paused, u64::MAX)]), [0, 0, 0]);
}

#[test]
fn report_needs_the_feature() {
    let mut client = Client::greeted();
    let refused = client.try_say(report(&[(EdgeCounter::Paused, 1)]));
    assert_eq!(refused.err(), Some(Fault::Protocol));
    let mut client = Client::silent(rules());
    assert_eq!(client.try_say(report(&[])).err(), Some(Fault::Protocol));
    // Counters of devices have a feature of their own.
    let mut client = Client::silent(rules());
    client.say(ClientMessage::Hello(Hello {
        min_version: 1,
        max_version: 1,
        features: FEATURE_REPORTS,
        agent: "edge/1".to_owned(),
    }));
    let refused = client.try_say(report(&[(EdgeCounter::AsymSignOps, 1)]));
    assert_eq!(refused.err(), Some(Fault::Protocol));
}

#[test]
fn reports_are_limited_to_a_minute_at_once() {
    let mut client = reporting();
    for n in 1..=REPORTS_AHEAD {
        client.say(report(&[(EdgeCounter::Paused, n)]));
    }
    client.now += Duration::from_secs(1);
    client.say(report(&[]));
    let refused = client.try_say(report(&[]));
    assert_eq!(refused.err(), Some(Fault::Protocol));
}

#[test]
fn description_needs_the_feature_and_shares_the_limit_of_reports() {
    let refused = Client::greeted().try_say(ClientMessage::Describe);
    assert_eq!(refused.err(), Some(Fault::Protocol));
    let mut client = reporting();
    for n in 1..=REPORTS_AHEAD / 2 {
        assert_eq!(client.say(ClientMessage::Describe).descriptions, 1);
        client.say(report(&[(EdgeCounter::Paused, n)]));
    }
    client.now += Duration::from_secs(1);
    client.say(ClientMessage::Describe);
    let refused = client.try_say(ClientMessage::Describe);
    assert_eq!(refused.err(), Some(Fault::Protocol));
}

#[test]
fn draining_node_still_takes_reports() {
    let mut client = reporting();
    client.state.drain(&mut Effects::default());
    let effects = client.say(report(&[(EdgeCounter::Paused, 1)]));
    assert!(effects.news.is_some());
}
