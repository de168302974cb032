// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A second front end, in memory and without sockets, beside a node in the same process: both share policy,
//! caps, quota, statistics, settings and draining.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{ECDSA_SIGN, Setup, TestNode, eventually, job, my_uid, only};
use millrace_engine::{Completion, CompletionSink};
use millrace_operation::JobError;
use millrace_service::metrics::ConnectionRefusal;
use millrace_service::policy::KeyPolicy;
use millrace_service::settings::{IdentityLimits, Settings};
use millrace_service::sink::{Order, SessionSink};
use millrace_service::{Service, Session};
use millrace_testkit::keys;
use millrace_wire::{ClientMessage, Hello, KeyHandle, KeyRefusal, KeySelector, NodeMessage};

/// Collects the service's output for an in-memory session.
#[derive(Debug, Default)]
struct Mailbox {
    completions: Mutex<Vec<Completion>>,
    order: Mutex<Order>,
}

impl CompletionSink for Mailbox {
    fn complete(&self, completions: &mut Vec<Completion>) {
        self.completions.lock().unwrap().append(completions);
    }
}

impl SessionSink for Mailbox {
    fn order(&self, order: Order) {
        *self.order.lock().unwrap() = order;
    }
}

/// The second front end: a session driven by calls instead of a socket.
struct InMemory {
    session: Session,
    mailbox: Arc<Mailbox>,
}

impl InMemory {
    fn open(service: &Service, identity: &str) -> Result<Self, ConnectionRefusal> {
        let mailbox = Arc::new(Mailbox::default());
        let session = service.open(identity.into(), Arc::clone(&mailbox) as _)?;
        let mut client = Self { session, mailbox };
        let hello =
            Hello { min_version: 1, max_version: 1, features: 0, agent: "in-memory".to_owned() };
        let replies = client.say(ClientMessage::Hello(hello));
        assert!(matches!(replies[0], NodeMessage::Welcome(_)), "{replies:?}");
        Ok(client)
    }

    fn say(&mut self, message: ClientMessage) -> Vec<NodeMessage> {
        let now = Instant::now();
        self.session.begin_turn(now);
        self.session.receive(message, now).unwrap();
        self.session.carry_out().replies.collect()
    }

    fn open_key(&mut self, name: &str) -> Result<KeyHandle, KeyRefusal> {
        let selector = KeySelector::Name(name.to_owned());
        match self.say(ClientMessage::OpenKey { request: 1, selector }).remove(0) {
            NodeMessage::KeyOpened { handle, .. } => Ok(handle),
            NodeMessage::KeyRefused { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// One job, from submission to completion.
    fn sign(&mut self, key: KeyHandle) -> Result<Vec<u8>, JobError> {
        let now = Instant::now();
        self.session.begin_turn(now);
        let jobs = vec![job(1, key, &ECDSA_SIGN, &[7; 32])];
        self.session.receive(ClientMessage::Submit(jobs), now).unwrap();
        if let Some((_, error)) = self.session.carry_out().refused.next() {
            return Err(error);
        }
        let mut ended = Vec::new();
        eventually(|| {
            ended.append(&mut self.mailbox.completions.lock().unwrap());
            !ended.is_empty()
        });
        self.session.completed(&mut ended);
        ended.remove(0).result.map(|output| output.to_vec())
    }
}

/// A node with a key for every identity and one for this user.
fn node(change: impl FnOnce(&mut Settings)) -> (TestNode, Service) {
    let mut setup = Setup::new();
    change(&mut setup.config.settings);
    setup.import("all", &keys::p_256(), KeyPolicy::signing(["*"]));
    setup.import("mine", &keys::p_256(), only(&my_uid()));
    let node = setup.start();
    let service = node.handle.service().clone();
    (node, service)
}

#[test]
fn both_front_ends_share_policy_and_statistics() {
    let (node, service) = node(|_| {});
    let mut beside = InMemory::open(&service, "guest:1").unwrap();
    assert_eq!(beside.open_key("mine"), Err(KeyRefusal::NoSuchKey));
    let key = beside.open_key("all").unwrap();
    assert!(beside.sign(key).is_ok());
    let mut client = node.connect();
    let key = client.open("all");
    assert!(client.run(key, &ECDSA_SIGN, &[7; 32]).is_ok());

    let status = node.handle.status();
    assert_eq!(status.connections, 2);
    assert_eq!(status.operations.iter().map(|row| row.completed).sum::<u64>(), 2);
    let rows = service.sessions();
    let clients: Vec<_> = rows.iter().map(|row| (&*row.identity, &*row.agent)).collect();
    assert!(clients.contains(&("guest:1", "in-memory")), "{clients:?}");
    assert!(clients.contains(&(&*my_uid(), "test")), "{clients:?}");
    drop(beside);
    assert_eq!(service.sessions().len(), 1);
}

#[test]
fn connection_caps_count_the_sessions_of_both_front_ends() {
    let (node, service) = node(|settings| {
        settings.limits.connections = 8;
        settings.limits.connections_per_identity = 2;
    });
    let me = my_uid();
    let _first = node.connect();
    let second = InMemory::open(&service, &me).unwrap();
    assert_eq!(InMemory::open(&service, &me).err(), Some(ConnectionRefusal::TooManyOfIdentity));
    assert_eq!(node.silent().fault(), millrace_wire::Fault::TooManyConnections);
    drop(second);
    assert!(InMemory::open(&service, &me).is_ok());
    assert!(service.render_metrics().contains("reason=\"too-many-of-identity\"} 2"));
}

#[test]
fn quota_of_an_identity_holds_over_both_front_ends() {
    let (node, service) = node(|settings| settings.limits.quota = Some(4));
    let mut beside = InMemory::open(&service, &my_uid()).unwrap();
    let mut client = node.connect();
    let here = beside.open_key("all").unwrap();
    let there = client.open("all");
    let start = Instant::now();
    let mut done = 0;
    for _ in 0..4 {
        done += u32::from(beside.sign(here).is_ok());
        done += u32::from(client.run(there, &ECDSA_SIGN, &[7; 32]).is_ok());
    }
    // The burst, and four more for each second that this takes on a busy machine.
    let most = 4 + 4 * u32::try_from(start.elapsed().as_secs() + 1).unwrap();
    assert!((4..=most.min(8)).contains(&done), "{done}");
    if start.elapsed().as_millis() < 250 {
        assert_eq!(beside.sign(here), Err(JobError::OverQuota));
    }
}

#[test]
fn drain_of_the_node_drains_the_other_front_end() {
    let (mut node, service) = node(|_| {});
    let mut beside = InMemory::open(&service, "guest:1").unwrap();
    let key = beside.open_key("all").unwrap();
    node.shut_down();
    eventually(|| *beside.mailbox.order.lock().unwrap() == Order::Drain);
    beside.session.drain();
    let replies: Vec<_> = beside.session.carry_out().replies.collect();
    assert!(matches!(replies[..], [NodeMessage::Drain]), "{replies:?}");
    assert_eq!(beside.sign(key), Err(JobError::Draining));
    let late = InMemory::open(&service, "guest:2").unwrap();
    assert_eq!(*late.mailbox.order.lock().unwrap(), Order::Drain);
    drop((beside, late));
    node.join();
}

#[test]
fn changed_settings_reach_open_sessions_of_both_front_ends() {
    let (node, service) = node(|_| {});
    let me = my_uid();
    let mut beside = InMemory::open(&service, "guest:1").unwrap();
    let mut client = node.connect();
    let here = beside.open_key("all").unwrap();
    let there = client.open("all");

    let mut settings = service.settings().settings.clone();
    settings.limits.quota = Some(1);
    settings.limits.keys = 1;
    let own = IdentityLimits { connections: Some(1), quota_ops_per_second: Some(0), weight: None };
    settings.identity.insert(me.clone(), own);
    let applied = service.apply(settings.clone(), "test").unwrap();
    assert_eq!((applied.revision, applied.changes.len()), (2, 3), "{applied:?}");
    assert_eq!(node.handle.status().settings_revision, 2);

    // The quota applies, although both were opened without one; this user has no limit again.
    let over = (0..50).filter(|_| beside.sign(here) == Err(JobError::OverQuota)).count();
    assert!(over > 0);
    for _ in 0..50 {
        assert!(client.run(there, &ECDSA_SIGN, &[7; 32]).is_ok());
    }
    // The bound on keys, and on connections of one identity.
    assert_eq!(beside.open_key("all"), Err(KeyRefusal::TooManyKeys));
    assert_eq!(InMemory::open(&service, &me).err(), Some(ConnectionRefusal::TooManyOfIdentity));

    // An identity that is removed from the list.
    settings.identities = vec![me];
    service.apply(settings.clone(), "test").unwrap();
    assert_eq!(*beside.mailbox.order.lock().unwrap(), Order::Drain);
    assert_eq!(InMemory::open(&service, "guest:1").err(), Some(ConnectionRefusal::NotAdmitted));
    assert!(client.run(there, &ECDSA_SIGN, &[7; 32]).is_ok());

    // Settings with one wrong value change nothing.
    let before = service.settings();
    settings.limits.in_flight = 1;
    settings.limits.keys = 0;
    let problems = service.apply(settings, "test").unwrap_err();
    assert!(problems.to_string().contains("limits.keys"), "{problems}");
    assert_eq!(service.settings().settings, before.settings);
    assert_eq!(service.settings().revision, 3);

    let log = node.setup.config.store.directory.join("audit.jsonl");
    let log = std::fs::read_to_string(log).unwrap();
    let changes: Vec<_> = log.lines().filter(|line| line.contains("\"settings\"")).collect();
    assert_eq!(changes.len(), 2, "{log}");
    assert!(changes[0].contains("limits.quota-ops-per-second: 0 → 1"), "{log}");
}
