// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations per second of each identity, over all its sessions at this node.
//!
//! The node refuses a job over the quota at once, so its client computes it without having waited. An
//! identity that uses several nodes has a separate quota at each of them.
//!
//! A change of the settings reaches open sessions: every session holds a [`Quota`], also one of an identity
//! without a limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::bucket::Bucket;
use crate::settings::Settings;

/// Seconds of the quota that may be used at once: handshakes come in bursts, most of all when clients
/// reconnect together. In any period an identity gets its rate, plus this burst once.
const BURST_SECONDS: u64 = 1;

/// The quota of one identity, shared by its sessions.
#[derive(Debug)]
pub struct Quota {
    /// Whether there is a bucket. An identity without a quota takes no lock.
    limited: AtomicBool,
    bucket: Mutex<Limited>,
}

#[derive(Debug, Default)]
struct Limited {
    rate: Option<u32>,
    bucket: Option<Bucket>,
}

impl Quota {
    /// An unused quota of `rate` operations per second; `None` means no limit.
    #[must_use]
    pub fn new(rate: Option<u32>, now: Instant) -> Self {
        let quota = Self {
            limited: AtomicBool::new(false),
            bucket: Mutex::default(),
        };
        quota.set_rate(rate, now);
        quota
    }

    /// Changes the rate. A new rate starts with a full bucket; an unchanged rate has no effect.
    pub(crate) fn set_rate(&self, rate: Option<u32>, now: Instant) {
        let mut limited = self.lock();
        if limited.rate != rate {
            let bucket = |rate: u32| {
                let rate = u64::from(rate);
                Bucket::new(rate, rate.saturating_mul(BURST_SECONDS), now)
            };
            *limited = Limited {
                rate,
                bucket: rate.map(bucket),
            };
            self.limited.store(rate.is_some(), Ordering::Release);
        }
    }

    /// Counts one operation against the quota. If the quota is used up, counts nothing and returns `false`.
    pub(crate) fn take(&self, now: Instant) -> bool {
        !self.limited.load(Ordering::Acquire)
            || self
                .lock()
                .bucket
                .as_mut()
                .is_none_or(|bucket| bucket.take(1, now))
    }

    fn is_unused(&self, now: Instant) -> bool {
        self.lock().bucket.is_none_or(|bucket| bucket.is_full(now))
    }

    fn lock(&self) -> MutexGuard<'_, Limited> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quotas of all identities. Bound: identities that are connected or were connected within the last
/// [`BURST_SECONDS`].
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<Arc<str>, Arc<Quota>>>);

impl Quotas {
    /// The quota for a new session of this identity.
    pub(crate) fn of(&self, identity: &Arc<str>, settings: &Settings, now: Instant) -> Arc<Quota> {
        let mut quotas = self.lock();
        if let Some(quota) = quotas.get(identity) {
            return Arc::clone(quota);
        }
        // Only full quotas are dropped: reconnecting must not renew a quota.
        quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || !quota.is_unused(now));
        let quota = Arc::new(Quota::new(settings.quota(identity), now));
        quotas.insert(Arc::clone(identity), Arc::clone(&quota));
        quota
    }

    /// Sets the rate of every quota from `settings`.
    pub(crate) fn apply(&self, settings: &Settings, now: Instant) {
        for (identity, quota) in &*self.lock() {
            quota.set_rate(settings.quota(identity), now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Quota>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(quota: Option<u32>) -> Settings {
        let mut settings = Settings::default();
        settings.limits.quota = quota;
        settings
    }

    fn take(quota: &Quota, now: Instant, tries: u32) -> usize {
        (0..tries).filter(|_| quota.take(now)).count()
    }

    #[test]
    fn quota_is_shared_and_not_renewed_by_reconnecting() {
        let start = Instant::now();
        let (quotas, settings) = (Quotas::default(), settings(Some(10)));
        let (one, two): (Arc<str>, Arc<str>) = ("uid:1".into(), "uid:2".into());
        let first = quotas.of(&one, &settings, start);
        let second = quotas.of(&one, &settings, start);
        assert_eq!(take(&first, start, 6) + take(&second, start, 6), 10);
        drop((first, second));
        let other = quotas.of(&two, &settings, start);
        assert_eq!(take(&other, start, 20), 10);
        let again = quotas.of(&one, &settings, start);
        assert_eq!(take(&again, start, 5), 0);
        assert_eq!(take(&again, start + Duration::from_millis(100), 5), 1);
    }

    #[test]
    fn full_quota_of_a_disconnected_identity_is_dropped() {
        let start = Instant::now();
        let (quotas, settings) = (Quotas::default(), settings(Some(10)));
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let quota = quotas.of(&Arc::from(format!("cert:{second}")), &settings, now);
            assert!(quota.take(now));
        }
        assert!(quotas.lock().len() <= 2);
    }

    #[test]
    fn changed_rate_reaches_sessions_that_were_opened_without_a_quota() {
        let now = Instant::now();
        let quotas = Quotas::default();
        let quota = quotas.of(&"uid:1".into(), &settings(None), now);
        assert_eq!(take(&quota, now, 100), 100);
        quotas.apply(&settings(Some(5)), now);
        assert_eq!(take(&quota, now, 100), 5);
        quotas.apply(&settings(Some(5)), now);
        assert_eq!(take(&quota, now, 100), 0, "the same rate does not refill");
        quotas.apply(&settings(None), now);
        assert_eq!(take(&quota, now, 100), 100);
    }
}
