// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How many operations per second each identity may have done here, over all its connections.
//!
//! A job that is over the quota is refused at once, so that its edge does it itself without having
//! waited. The quota is this node's: an identity that uses several has it at each of them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use millrace_engine::Owner;

use crate::bucket::Bucket;

/// Seconds of the quota that may be used at once: handshakes come in bursts, most of all when clients
/// reconnect together. Over any time an identity gets its rate, and once this much.
const BURST_SECONDS: u32 = 1;

/// The quota of one identity.
#[derive(Debug)]
pub struct Quota(Mutex<Bucket>);

impl Quota {
    /// A quota of `rate` operations per second, unused.
    pub fn new(rate: u32, now: Instant) -> Self {
        let depth = rate.saturating_mul(BURST_SECONDS);
        Self(Mutex::new(Bucket::new(rate, depth, now)))
    }

    /// Whether one more operation is within the quota, which it then counts against.
    pub fn take(&self, now: Instant) -> bool {
        self.bucket().take(now)
    }

    fn is_unused(&self, now: Instant) -> bool {
        self.bucket().is_full(now)
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quotas of all identities. Bound: those that are connected or were within [`BURST_SECONDS`].
#[derive(Debug)]
pub struct Quotas {
    rate: Option<u32>,
    of_identity: Mutex<HashMap<Arc<str>, Arc<Quota>>>,
    /// Turns identities into the engine's owners: keyed anew by each node, so that no client can choose a
    /// name that shares another's turns.
    owners: RandomState,
}

impl Quotas {
    /// The same quota for everybody; none is no limit.
    pub fn new(rate: Option<u32>) -> Self {
        Self {
            rate,
            of_identity: Mutex::default(),
            owners: RandomState::new(),
        }
    }

    /// The owner of an identity's jobs in the engine, all of equal weight: its connections take turns as
    /// one, and have one share of the queue.
    pub fn owner(&self, identity: &str) -> Owner {
        Owner::new(self.owners.hash_one(identity), 1)
    }

    /// The quota that counts for a new connection of this identity.
    pub fn of(&self, identity: &Arc<str>, now: Instant) -> Option<Arc<Quota>> {
        let rate = self.rate?;
        let mut quotas = self
            .of_identity
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = quotas.get(identity) {
            return Some(Arc::clone(quota));
        }
        // Who comes back must not find a new quota: only those that are full again are forgotten.
        quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || !quota.is_unused(now));
        let quota = Arc::new(Quota::new(rate, now));
        quotas.insert(Arc::clone(identity), Arc::clone(&quota));
        Some(quota)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn take(quota: &Quota, now: Instant, tries: u32) -> usize {
        (0..tries).filter(|_| quota.take(now)).count()
    }

    #[test]
    fn identity_has_one_owner_for_all_its_connections() {
        let quotas = Quotas::new(None);
        assert_eq!(quotas.owner("uid:1"), quotas.owner("uid:1"));
        assert_ne!(quotas.owner("uid:1"), quotas.owner("uid:2"));
    }

    #[test]
    fn connections_of_an_identity_share_its_quota_and_coming_back_does_not_renew_it() {
        let start = Instant::now();
        let quotas = Quotas::new(Some(10));
        let (one, two): (Arc<str>, Arc<str>) = ("uid:1".into(), "uid:2".into());
        let first = quotas.of(&one, start).unwrap();
        let second = quotas.of(&one, start).unwrap();
        assert_eq!(take(&first, start, 6) + take(&second, start, 6), 10);
        drop((first, second));
        let other = quotas.of(&two, start).unwrap();
        assert_eq!(take(&other, start, 20), 10);
        let again = quotas.of(&one, start).unwrap();
        assert_eq!(take(&again, start, 5), 0);
        assert_eq!(take(&again, start + Duration::from_millis(100), 5), 1);
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let start = Instant::now();
        let quotas = Quotas::new(Some(10));
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let identity = Arc::from(format!("cert:{second}"));
            let quota = quotas.of(&identity, now).unwrap();
            assert!(quota.take(now));
        }
        assert!(quotas.of_identity.lock().unwrap().len() <= 2);
    }

    #[test]
    fn without_a_rate_there_is_no_quota() {
        let identity = Arc::from("uid:1");
        assert!(Quotas::new(None).of(&identity, Instant::now()).is_none());
    }
}
