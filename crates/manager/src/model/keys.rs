// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Private keys of the pool, and which of them a node holds. The store has them sealed under the pool's key-encryption
//! key; a node gets them sealed to itself. No function here sees a key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use millrace_service::store::MAX_FORMER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::{KeyName, TenantName};

/// Bound on the keys of a pool. Each heartbeat of a node names the keys that it holds: 1,000 names of 63 bytes are
/// 90 KiB.
pub const MAX_POOL_KEYS: usize = 1000;

/// Bound on [`PoolKey::tenants`].
pub const MAX_KEY_TENANTS: usize = 64;

/// Bound on one sealed version in base64. The largest key file has a private key of 8 KiB, a public half of 4 KiB and
/// 5 KiB of names: 17 KiB, and a third more in base64.
pub const MAX_SEALED_LEN: usize = 24 * 1024;

/// Time from the answer that takes a tenant away until its keys are deleted. Connections of the tenant notice within
/// a second that they are to leave; a job that came before is not to miss its key.
pub const LEAVING: Duration = Duration::from_secs(2);

/// Time after the start of a node until it deletes the keys of its former process, unless an answer names them. Until
/// an answer comes, no tenant has a grant there and nothing can use them; the answer that brings a grant brings its
/// keys again. An hour is longer than managers are away for an upgrade.
pub const UNCONFIRMED: Duration = Duration::from_secs(3600);

/// A private key, as the store keeps it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolKey {
    /// Name under which gateways use the key.
    pub name: KeyName,
    /// Grows with each change: the time of the change in milliseconds since 1970, or one more than before. A key that
    /// was removed and comes back, also from a backup, thus has a higher version than nodes have seen.
    pub version: u64,
    /// The public half: SHA-256 of its SubjectPublicKeyInfo, in hexadecimal digits.
    pub public: String,
    /// Tenants that may use it. Nodes that serve one of them get the key.
    pub tenants: BTreeSet<TenantName>,
    /// A key file ([`millrace_service::store`]) under the pool's key-encryption key, in base64.
    pub sealed: String,
    /// Former versions in the same form, the newest first, for gateways that still have their stubs.
    #[serde(default)]
    pub former: Vec<String>,
}

impl std::fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolKey")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("public", &self.public)
            .field("tenants", &self.tenants)
            .finish_non_exhaustive()
    }
}

impl PoolKey {
    /// Every field that is out of its bounds.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |good: bool, problem: String| {
            if !good {
                problems.push(problem);
            }
        };
        let sealed = [&self.sealed].into_iter().chain(&self.former);
        check(
            sealed.into_iter().all(|one| (1..=MAX_SEALED_LEN).contains(&one.len())),
            format!("sealed: 1 to {MAX_SEALED_LEN} bytes"),
        );
        check(self.former.len() <= MAX_FORMER, format!("former: at most {MAX_FORMER}"));
        check(
            self.public.len() == 64 && self.public.bytes().all(|digit| digit.is_ascii_hexdigit()),
            "public: 64 hexadecimal digits".to_owned(),
        );
        check(
            (1..=MAX_KEY_TENANTS).contains(&self.tenants.len()),
            format!("tenants: 1 to {MAX_KEY_TENANTS}"),
        );
        problems
    }
}

/// Why a node does not take a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefused {
    /// A later version is there.
    #[error("version {given} of the key is out of date: this node has {held}")]
    OutOfDate {
        /// Version of the key that was offered.
        given: u64,
        /// Version of the key that is there.
        held: u64,
    },
    /// The answer names no such key.
    #[error("the key is not among those that the node is to have")]
    NotWanted,
}

/// The keys that a node has from its manager. Pure; the caller stores and deletes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldKeys(BTreeMap<KeyName, Held>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// 0: it is being stored.
    version: u64,
    stay: Stay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// The latest answer names the key.
    Wanted,
    /// An earlier process had it, and no answer has named it yet.
    Unconfirmed { until: Instant },
    /// The latest answer does not name it.
    Leaving { at: Instant },
}

impl HeldKeys {
    /// Keys of an earlier process, as [`Self::noted`] gave them: those with version 0 are to be deleted at once, the
    /// others unless an answer names them within [`UNCONFIRMED`].
    #[must_use]
    pub fn of_before(noted: BTreeMap<KeyName, u64>, now: Instant) -> Self {
        let held = noted.into_iter().map(|(name, version)| {
            let stay = match version {
                0 => Stay::Leaving { at: now },
                _ => Stay::Unconfirmed { until: now + UNCONFIRMED },
            };
            (name, Held { version, stay })
        });
        Self(held.collect())
    }

    /// Names and versions, also of keys that are leaving.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<KeyName, u64> {
        self.0.iter().map(|(name, held)| (name.clone(), held.version)).collect()
    }

    /// Names and versions for the next process of the node: 0 for a key that it is to delete when it
    /// starts, because it is leaving or was being stored.
    #[must_use]
    pub fn noted(&self) -> BTreeMap<KeyName, u64> {
        let noted = self.0.iter().map(|(name, held)| match held.stay {
            Stay::Wanted | Stay::Unconfirmed { .. } => (name.clone(), held.version),
            Stay::Leaving { .. } => (name.clone(), 0),
        });
        noted.collect()
    }

    /// Whether the key is the manager's.
    #[must_use]
    pub fn contains(&self, name: &KeyName) -> bool {
        self.0.contains_key(name)
    }

    /// Checks a key of an answer whose whole list is `wanted`.
    ///
    /// # Errors
    /// [`KeyRefused`]; what the node has stays.
    pub fn admit(
        &self,
        name: &KeyName,
        version: u64,
        wanted: &[(KeyName, u64)],
    ) -> Result<(), KeyRefused> {
        if !wanted.contains(&(name.clone(), version)) {
            return Err(KeyRefused::NotWanted);
        }
        match self.0.get(name) {
            Some(held) if held.version > version => {
                Err(KeyRefused::OutOfDate { given: version, held: held.version })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Notes that the key is about to be stored (version 0), or has been.
    pub fn note(&mut self, name: KeyName, version: u64) {
        self.0.insert(name, Held { version, stay: Stay::Wanted });
    }

    /// Takes the list of an answer whose grants are in force: all others leave.
    pub fn reconcile(&mut self, wanted: &[(KeyName, u64)], now: Instant) {
        let wanted: BTreeSet<&KeyName> = wanted.iter().map(|(name, _)| name).collect();
        for (name, held) in &mut self.0 {
            held.stay = match held.stay {
                _ if wanted.contains(name) => Stay::Wanted,
                Stay::Wanted => Stay::Leaving { at: now + LEAVING },
                Stay::Unconfirmed { until } => Stay::Leaving { at: until.min(now + LEAVING) },
                leaving @ Stay::Leaving { .. } => leaving,
            };
        }
    }

    /// The keys that are to be deleted now.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<KeyName> {
        self.names(|stay| match stay {
            Stay::Wanted => false,
            Stay::Unconfirmed { until: at } | Stay::Leaving { at } => at <= now,
        })
    }

    /// The keys that the latest answer does not name.
    #[must_use]
    pub fn leaving(&self) -> Vec<KeyName> {
        self.names(|stay| matches!(stay, Stay::Leaving { .. }))
    }

    fn names(&self, has: impl Fn(Stay) -> bool) -> Vec<KeyName> {
        let rows = self.0.iter().filter(|(_, held)| has(held.stay));
        rows.map(|(name, _)| name.clone()).collect()
    }

    /// Notes that a key is deleted.
    pub fn deleted(&mut self, name: &KeyName) {
        self.0.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> KeyName {
        text.parse().unwrap()
    }

    #[test]
    fn key_record_at_its_bounds_is_taken_and_past_them_refused() {
        let tenant = |n: usize| format!("tenant-{n}").parse().unwrap();
        let most = PoolKey {
            name: name("www"),
            version: 1,
            public: "0f".repeat(32),
            tenants: (0..MAX_KEY_TENANTS).map(tenant).collect(),
            sealed: "A".repeat(MAX_SEALED_LEN),
            former: vec!["A".repeat(MAX_SEALED_LEN); MAX_FORMER],
        };
        assert_eq!(most.problems(), Vec::<String>::new());
        let changes: [fn(&mut PoolKey); 7] = [
            |key| key.sealed.push('A'),
            |key| key.sealed.clear(),
            |key| key.former[0].push('A'),
            |key| key.former.push("A".to_owned()),
            |key| key.public.push('0'),
            |key| key.tenants.clear(),
            |key| {
                key.tenants.insert("one-more".parse().unwrap());
            },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let mut wrong = most.clone();
            change(&mut wrong);
            assert_eq!(wrong.problems().len(), 1, "change {n}");
        }
        assert!(!format!("{most:?}").contains("AAAA"));
    }

    #[test]
    fn key_of_an_older_version_or_outside_the_list_is_refused() {
        let mut held = HeldKeys::default();
        let www = name("www");
        held.note(www.clone(), 5);
        let refused = held.admit(&www, 4, &[(www.clone(), 4)]);
        assert_eq!(refused, Err(KeyRefused::OutOfDate { given: 4, held: 5 }));
        assert_eq!(held.admit(&www, 6, &[(www.clone(), 7)]), Err(KeyRefused::NotWanted));
        assert_eq!(held.admit(&www, 6, &[(www.clone(), 6)]), Ok(()));
        assert_eq!(held.versions(), [(www, 5)].into());
    }

    #[test]
    fn key_that_is_no_longer_named_leaves_unless_it_is_named_again() {
        let start = Instant::now();
        let mut held = HeldKeys::of_before([(name("a"), 1), (name("b"), 1)].into(), start);
        held.reconcile(&[(name("a"), 1)], start);
        assert!(held.due(start + LEAVING / 2).is_empty());
        assert_eq!(held.due(start + LEAVING), [name("b")]);
        assert_eq!(held.leaving(), [name("b")]);
        held.reconcile(&[(name("a"), 1)], start + LEAVING / 2);
        assert_eq!(held.due(start + LEAVING), [name("b")], "its time stays");
        held.reconcile(&[(name("a"), 1), (name("b"), 1)], start + LEAVING / 2);
        assert!(held.due(start + 2 * UNCONFIRMED).is_empty());
        held.deleted(&name("b"));
        assert!(held.contains(&name("a")) && !held.contains(&name("b")));
    }

    #[test]
    fn next_process_deletes_at_its_start_what_was_leaving_or_half_stored() {
        let start = Instant::now();
        let mut held = HeldKeys::default();
        for (key, version) in [("stays", 5), ("leaves", 6), ("half", 0)] {
            held.note(name(key), version);
        }
        held.reconcile(&[(name("stays"), 5), (name("half"), 7)], start);
        assert_eq!(held.versions()[&name("leaves")], 6, "it is there until then");
        let noted = held.noted();
        assert_eq!(noted, [(name("half"), 0), (name("leaves"), 0), (name("stays"), 5)].into());
        let next = HeldKeys::of_before(noted, start);
        assert_eq!(next.due(start), [name("half"), name("leaves")]);
    }

    #[test]
    fn key_of_a_former_process_that_no_answer_names_is_due_after_an_hour() {
        let start = Instant::now();
        let mut held = HeldKeys::of_before([(name("www"), 3)].into(), start);
        assert_eq!(held.noted(), [(name("www"), 3)].into());
        assert!(held.due(start + UNCONFIRMED - LEAVING).is_empty());
        assert_eq!(held.due(start + UNCONFIRMED), [name("www")]);
        held.reconcile(&[(name("www"), 3)], start);
        assert!(held.due(start + 2 * UNCONFIRMED).is_empty());
    }
}
