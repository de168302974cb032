// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Conversations with a session, without a socket, a clock or an engine.

use millrace_operation::{Curve, Hash as Digest, HashAlgorithms, KeyType, MlDsaSet};
use zeroize::Zeroizing;

use super::*;
use crate::settings::Settings;

mod policy;
mod reports;

const SIGN: Operation = Operation::EcdsaSign { hash: Digest::Sha256 };

type Key = &'static str;

struct Client {
    state: SessionState<Key>,
    keys: KeySet<Key>,
    entries: Vec<Arc<KeyEntry<Key>>>,
    now: Instant,
}

fn rules() -> Rules {
    Rules {
        node: "node-1".to_owned(),
        allow_import: true,
        max_in_flight: 4,
        max_keys: 3,
        max_budget: Duration::from_secs(10),
    }
}

fn info(key_type: KeyType) -> KeyInfo {
    KeyInfo { key_type, spki: vec![0x30; 91] }
}

fn entry(name: &str, key: Key, key_type: KeyType, identities: &[&str]) -> Arc<KeyEntry<Key>> {
    let identities = identities.iter().map(|&name| name.to_owned()).collect();
    let policy = KeyPolicy { identities, ..KeyPolicy::signing(["*"]) };
    Arc::new(KeyEntry::new(name, key, info(key_type), policy))
}

fn hello() -> ClientMessage {
    ClientMessage::Hello(Hello {
        min_version: 1,
        max_version: 1,
        features: 0,
        agent: "test".to_owned(),
    })
}

fn open(name: &str) -> ClientMessage {
    ClientMessage::OpenKey { request: 7, selector: KeySelector::Name(name.to_owned()) }
}

fn import() -> ClientMessage {
    let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30]));
    ClientMessage::ImportKey { request: 8, key }
}

fn job(id: JobId, key: KeyHandle, operation: Operation) -> SubmittedJob {
    let budget = Duration::from_secs(1);
    SubmittedJob { id, key, budget, operation, input: vec![0; 32] }
}

fn submit(jobs: impl IntoIterator<Item = SubmittedJob>) -> ClientMessage {
    ClientMessage::Submit(jobs.into_iter().collect())
}

impl Client {
    fn silent(rules: Rules) -> Self {
        let p256 = KeyType::Ec(Curve::P256);
        let entries = vec![
            entry("mine", "key-mine", p256, &["uid:1"]),
            entry("theirs", "key-theirs", p256, &["uid:2"]),
            entry("rsa", "key-rsa", KeyType::Rsa { bits: 2048 }, &["*"]),
            entry("ml-dsa", "key-ml-dsa", KeyType::MlDsa(MlDsaSet::MlDsa65), &["*"]),
        ];
        Self {
            state: SessionState::new(
                Arc::new(rules),
                "uid:1".into(),
                Arc::new(Account::unlimited("uid:1", Instant::now())),
            ),
            keys: entries.iter().cloned().collect(),
            entries,
            now: Instant::now(),
        }
    }

    fn greeted() -> Self {
        let mut client = Self::silent(rules());
        client.say(hello());
        client
    }

    fn try_say(&mut self, message: ClientMessage) -> Result<Effects<Key>, Fault> {
        let mut effects = Effects::default();
        self.state.receive(message, self.now, &self.keys, &mut effects)?;
        Ok(effects)
    }

    fn say(&mut self, message: ClientMessage) -> Effects<Key> {
        self.try_say(message).unwrap()
    }

    fn handle(&mut self, name: &str) -> KeyHandle {
        match &self.say(open(name)).replies[..] {
            [NodeMessage::KeyOpened { request: 7, handle, .. }] => *handle,
            other => panic!("{other:?}"),
        }
    }

    fn imported(&mut self, key_type: KeyType) -> KeyHandle {
        assert_eq!(self.say(import()).imports.len(), 1);
        let mut effects = Effects::default();
        self.state.imported(8, Ok(("key-imported", info(key_type))), &mut effects);
        match &effects.replies[..] {
            [NodeMessage::KeyOpened { request: 8, handle, .. }] => *handle,
            other => panic!("{other:?}"),
        }
    }

    /// The refusal of a single job; `None` if it is accepted.
    fn refusal(&mut self, key: KeyHandle, operation: Operation) -> Option<JobError> {
        let effects = self.say(submit([job(99, key, operation)]));
        if effects.jobs.len() == 1 {
            assert!(self.state.completed(99));
        }
        effects.refused.first().map(|(id, error)| {
            assert_eq!((*id, effects.jobs.len()), (99, 0));
            *error
        })
    }
}

#[test]
fn hello_comes_first_and_once() {
    for message in [open("mine"), submit([]), ClientMessage::Ping { token: 1 }, import()] {
        assert_eq!(Client::silent(rules()).try_say(message).unwrap_err(), Fault::Protocol);
    }
    let mut client = Client::silent(rules());
    match &client.say(hello()).replies[..] {
        [NodeMessage::Welcome(welcome)] => {
            assert_eq!((welcome.version, welcome.max_in_flight, welcome.max_keys), (1, 4, 3));
            assert_eq!(welcome.node, "node-1");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.try_say(hello()).unwrap_err(), Fault::Protocol);
}

#[test]
fn hello_without_a_common_version_is_refused() {
    let hello = Hello { min_version: 2, max_version: 9, features: 0, agent: String::new() };
    let fault = Client::silent(rules()).try_say(ClientMessage::Hello(hello)).unwrap_err();
    assert_eq!(fault, Fault::Version);
}

#[test]
fn job_gets_its_key_and_a_bounded_deadline() {
    // Seconds: the budget, how long the message may have waited unread, and the time that is left.
    let budgets = [(1, 0, 1), (0, 0, 10), (3600, 0, 10), (3, 2, 1), (3, 4, 0)];
    for (id, (budget, unread, expected)) in (1..).zip(budgets) {
        let mut client = Client::greeted();
        let handle = client.handle("mine");
        client.state.set_unread_for(Duration::from_secs(unread));
        let job = SubmittedJob { budget: Duration::from_secs(budget), ..job(id, handle, SIGN) };
        let effects = client.say(submit([job]));
        let [ready] = &effects.jobs[..] else { panic!("{effects:?}") };
        assert_eq!((ready.id, ready.key), (id, "key-mine"));
        assert_eq!(ready.deadline, client.now + Duration::from_secs(expected));
    }
}

#[test]
fn foreign_key_and_handle_are_answered_like_missing_ones() {
    let mut client = Client::greeted();
    let refused = |effects: Effects<Key>| format!("{:?}", effects.replies);
    assert_eq!(refused(client.say(open("theirs"))), refused(client.say(open("nothing"))));
    assert!(refused(client.say(open("theirs"))).contains("NoSuchKey"));
    // Another connection's handle is a number that this connection does not know.
    let mut other = Client::greeted();
    let foreign = other.handle("mine");
    assert_eq!(client.refusal(foreign, SIGN), Some(JobError::NoSuchKey));
    assert_eq!(client.refusal(u32::MAX, SIGN), Some(JobError::NoSuchKey));
}

#[test]
fn duplicate_id_in_flight_ends_the_connection() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    client.say(submit([job(1, handle, SIGN)]));
    let fault = client.try_say(submit([job(1, handle, SIGN)])).unwrap_err();
    assert_eq!(fault, Fault::Protocol);
    assert!(client.state.completed(1));
    assert!(!client.state.completed(1));
    client.say(submit([job(1, handle, SIGN)]));
}

#[test]
fn jobs_above_the_bound_are_answered_busy_and_reading_pauses() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    let effects = client.say(submit((0..6).map(|id| job(id, handle, SIGN))));
    assert_eq!(effects.jobs.len(), 4);
    assert_eq!(effects.refused, [(4, JobError::Busy), (5, JobError::Busy)]);
    assert!(!client.state.wants_more());
    client.state.completed(0);
    assert!(client.state.wants_more());
    // A refused id was never in flight, so the client may use it again.
    assert_eq!(client.say(submit([job(4, handle, SIGN)])).jobs.len(), 1);
}

#[test]
fn policy_counts_operation_hash_and_mask_hash() {
    let mut client = Client::greeted();
    let rsa = client.handle("rsa");
    let pss = |mgf_hash| Operation::RsaPssSign { hash: Digest::Sha256, mgf_hash, salt_len: 32 };
    assert_eq!(client.refusal(rsa, pss(Digest::Sha1)), None);
    let policy = KeyPolicy {
        hashes: [Digest::Sha256].into_iter().collect::<HashAlgorithms>(),
        ..KeyPolicy::signing(["*"])
    };
    client.entries[2].set_policy(policy);
    assert_eq!(client.refusal(rsa, pss(Digest::Sha1)), Some(JobError::Denied));
    assert_eq!(client.refusal(rsa, pss(Digest::Sha256)), None);
    assert_eq!(client.refusal(rsa, Operation::RsaPkcs1Decrypt), Some(JobError::Denied));
    let effects = client.say(submit([job(1, rsa, Operation::RsaPkcs1Decrypt)]));
    let (name, operation) = effects.denied.unwrap();
    assert_eq!((&*name, operation), ("rsa", OperationKind::RsaPkcs1Decrypt));
}

#[test]
fn raw_rsa_needs_an_imported_key_whatever_the_policy() {
    let mut client = Client::greeted();
    client.entries[2].set_policy(KeyPolicy::session_owned());
    let NodeMessage::KeyOpened { handle, operations, .. } = client.say(open("rsa")).replies[0]
    else {
        panic!("not opened")
    };
    assert!(!operations.contains(OperationKind::RsaRaw));
    assert!(operations.contains(OperationKind::RsaPkcs1Decrypt));
    assert!(!operations.contains(OperationKind::EcdsaSign), "not an operation of RSA keys");
    assert_eq!(client.refusal(handle, Operation::RsaRaw), Some(JobError::Denied));
    let own = client.imported(KeyType::Rsa { bits: 2048 });
    assert_eq!(client.refusal(own, Operation::RsaRaw), None);
}

#[test]
fn removed_key_and_changed_policy_affect_open_handles() {
    let mut client = Client::greeted();
    let mine = client.handle("mine");
    let rsa = client.handle("rsa");
    client.entries[0].revoke();
    assert_eq!(client.refusal(mine, SIGN), Some(JobError::NoSuchKey));
    let sign = Operation::RsaPkcs1Sign { hash: Digest::Sha256 };
    let others = KeyPolicy { identities: vec!["uid:2".to_owned()], ..KeyPolicy::signing(["*"]) };
    client.entries[2].set_policy(others);
    assert_eq!(client.refusal(rsa, sign.clone()), Some(JobError::NoSuchKey));
    client.entries[2].set_policy(KeyPolicy::signing(["*"]));
    assert_eq!(client.refusal(rsa, sign), None);
}

#[test]
fn keys_are_bounded_and_those_being_imported_count() {
    let mut client = Client::greeted();
    client.handle("mine");
    let handle = client.handle("rsa");
    client.say(import());
    for message in [open("mine"), import()] {
        let effects = client.say(message);
        assert!(effects.imports.is_empty());
        let [NodeMessage::KeyRefused { reason, .. }] = effects.replies[..] else { panic!() };
        assert_eq!(reason, KeyRefusal::TooManyKeys);
    }
    client.say(ClientMessage::CloseKey { handle });
    assert_ne!(client.handle("mine"), handle, "handles are not reused");
    let mut effects = Effects::default();
    client.state.imported(8, Err(KeyError::Malformed), &mut effects);
    let [NodeMessage::KeyRefused { request: 8, reason }] = effects.replies[..] else { panic!() };
    assert_eq!(reason, KeyRefusal::Key(KeyError::Malformed));
    client.handle("rsa");
}

#[test]
fn imports_are_refused_if_disabled() {
    let mut client = Client::silent(Rules { allow_import: false, ..rules() });
    client.say(hello());
    let effects = client.say(import());
    assert!(effects.imports.is_empty());
    let [NodeMessage::KeyRefused { request: 8, reason }] = effects.replies[..] else { panic!() };
    assert_eq!(reason, KeyRefusal::ImportDisabled);
}

#[test]
fn closed_handle_is_unknown_but_its_jobs_end() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    client.say(submit([job(1, handle, SIGN)]));
    client.say(ClientMessage::CloseKey { handle });
    client.say(ClientMessage::CloseKey { handle });
    assert!(client.state.completed(1));
    assert_eq!(client.refusal(handle, SIGN), Some(JobError::NoSuchKey));
}

#[test]
fn only_jobs_in_flight_are_cancelled() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    client.say(submit([job(1, handle, SIGN)]));
    assert_eq!(client.say(ClientMessage::Cancel { job: 1 }).cancels, [1]);
    assert!(client.say(ClientMessage::Cancel { job: 2 }).cancels.is_empty());
}

#[test]
fn repeated_cancel_requests_cancel_a_job_once() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    client.say(submit([job(1, handle, SIGN)]));
    let cancels: Vec<_> =
        (0..3).flat_map(|_| client.say(ClientMessage::Cancel { job: 1 }).cancels).collect();
    assert_eq!(cancels, [1]);
    client.state.completed(1);
    client.say(submit([job(1, handle, SIGN)]));
    assert_eq!(client.say(ClientMessage::Cancel { job: 1 }).cancels, [1]);
}

#[test]
fn policy_changed_during_open_is_applied() {
    let mut client = Client::greeted();
    let theirs = Arc::clone(&client.entries[1]);
    let mut effects = Effects::default();
    // Simulates a key that was found while the policy still admitted this client.
    client.state.open(7, theirs, KeyOrigin::Store, &mut effects);
    assert!(matches!(
        effects.replies[..],
        [NodeMessage::KeyRefused { reason: KeyRefusal::NoSuchKey, .. }]
    ));
}

#[test]
fn draining_node_announces_it_once_and_refuses_new_work() {
    let mut client = Client::greeted();
    let handle = client.handle("mine");
    client.say(submit([job(1, handle, SIGN)]));
    let mut effects = Effects::default();
    client.state.drain(&mut effects);
    client.state.drain(&mut effects);
    assert!(matches!(effects.replies[..], [NodeMessage::Drain]));
    assert_eq!(client.refusal(handle, SIGN), Some(JobError::Draining));
    for message in [open("mine"), import()] {
        let [NodeMessage::KeyRefused { reason, .. }] = client.say(message).replies[..] else {
            panic!()
        };
        assert_eq!(reason, KeyRefusal::Draining);
    }
    assert!(!client.state.idle());
    assert!(client.state.completed(1));
    assert!(client.state.idle());
    // A client that connects now learns of the drain with the welcome.
    let mut late = Client::silent(rules());
    late.state.drain(&mut Effects::default());
    let replies = late.say(hello()).replies;
    assert!(matches!(replies[..], [NodeMessage::Welcome(_), NodeMessage::Drain]));
}

#[test]
fn ping_is_answered() {
    let replies = Client::greeted().say(ClientMessage::Ping { token: 42 }).replies;
    assert!(matches!(replies[..], [NodeMessage::Pong { token: 42 }]));
}

#[test]
fn ids_spread_over_the_table() {
    use std::hash::BuildHasher;
    let hash = IntHash::default();
    for step in [1u64, 64, 1 << 32, 1 << 56] {
        let low: std::collections::HashSet<u64> =
            (0..128).map(|index: u64| hash.hash_one(index.wrapping_mul(step)) & 127).collect();
        assert!(low.len() > 40, "step {step}: {} of 128", low.len());
    }
}

#[test]
fn jobs_above_the_quota_are_refused_and_refused_jobs_do_not_count() {
    let mut client = Client::silent(rules());
    let mut settings = Settings::default();
    settings.limits.quota = Some(3);
    let terms = Arc::new(settings.terms_of_identity("uid:1"));
    client.state.set_account(Arc::new(Account::new(terms, client.now)));
    client.say(hello());
    let mine = client.handle("mine");
    for _ in 0..10 {
        assert_eq!(client.refusal(99, SIGN), Some(JobError::NoSuchKey));
        assert_eq!(client.refusal(mine, Operation::RsaRaw), Some(JobError::Denied));
    }
    for _ in 0..3 {
        assert_eq!(client.refusal(mine, SIGN), None);
    }
    assert_eq!(client.refusal(mine, SIGN), Some(JobError::OverQuota));
    client.now += Duration::from_millis(333);
    assert_eq!(client.refusal(mine, SIGN), Some(JobError::OverQuota));
    client.now += Duration::from_millis(1);
    assert_eq!(client.refusal(mine, SIGN), None);
    assert_eq!(client.refusal(mine, SIGN), Some(JobError::OverQuota));
    // In a batch the first jobs fit the quota.
    client.now += Duration::from_secs(1);
    let effects = client.say(submit((0..4).map(|id| job(id, mine, SIGN))));
    assert_eq!(effects.jobs.len(), 3);
    assert_eq!(effects.refused, [(3, JobError::OverQuota)]);
}

/// The waits in these replies, each with its key.
fn waits(effects: &Effects<Key>) -> Vec<(KeyHandle, Duration)> {
    let wait = |reply: &NodeMessage| match reply {
        NodeMessage::RetryAfter { handle, wait } => Some((*handle, *wait)),
        _ => None,
    };
    effects.replies.iter().filter_map(wait).collect()
}

#[test]
fn client_hears_once_when_its_refused_jobs_will_be_taken() {
    for features in [0, millrace_wire::FEATURE_RETRY_AFTER] {
        let mut client = Client::silent(rules());
        let mut settings = Settings::default();
        settings.limits.quota = Some(4);
        let terms = Arc::new(settings.terms_of_identity("uid:1"));
        let account = Account::new(terms, client.now);
        client.state.set_account(Arc::new(account));
        client.say(ClientMessage::Hello(Hello {
            min_version: 1,
            max_version: 1,
            features,
            agent: "test".to_owned(),
        }));
        let mine = client.handle("mine");
        for id in 0..4 {
            client.say(submit([job(id, mine, SIGN)]));
            client.state.completed(id);
        }
        let told: &[_] = match features {
            0 => &[],
            _ => &[(mine, Duration::from_millis(250))],
        };
        let effects = client.say(submit([job(5, mine, SIGN)]));
        assert_eq!(effects.refused, [(5, JobError::OverQuota)]);
        assert_eq!(waits(&effects), told);
        client.now += Duration::from_millis(249);
        let effects = client.say(submit([job(6, mine, SIGN)]));
        assert_eq!(effects.refused, [(6, JobError::OverQuota)]);
        assert_eq!(waits(&effects), [], "it knows");
        client.now += Duration::from_millis(1);
        assert_eq!(client.refusal(mine, SIGN), None);

        // The engine's refusals have bounds of their own.
        for (id, wait, heard) in [(7, 1, 1), (8, 3_600_000, 1000)] {
            client.now += Duration::from_secs(2);
            client.say(submit([job(id, mine, SIGN)]));
            let mut effects = Effects::default();
            let wait = Duration::from_millis(wait);
            client.state.busy(id, wait, client.now, &mut effects);
            assert!(client.state.completed(id));
            let heard = [(mine, Duration::from_millis(heard))];
            assert_eq!(waits(&effects), if features == 0 { &[] } else { &heard[..] });
        }
    }
}
