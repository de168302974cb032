// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The account of a party at this node: it counts resources in use and jobs, for all sessions of a tenant, or of an
//! identity without one.
//!
//! Every session holds its account, also one without limits, so a change of the settings reaches open sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use millrace_engine::Completion;
use millrace_engine::stats::{Histogram, HistogramSnapshot};
use millrace_operation::sync::lock;
use millrace_operation::{JobError, KeyType, OperationKind};

use crate::quota::{Exceeded, Quota};
use crate::settings::Settings;
use crate::tenants::{Bounds, Directory, Terms};

/// The account of one party, shared by its sessions.
#[derive(Debug)]
pub struct Account {
    /// With the revision of the settings that they are of; 0 for those of a new account.
    terms: RwLock<(u64, Arc<Terms>)>,
    quota: Quota,
    held: Held,
    counts: Counts,
}

/// Resources that the sessions of a party hold now.
#[derive(Debug, Default)]
struct Held {
    connections: AtomicUsize,
    jobs: AtomicUsize,
    bytes: AtomicU64,
    imported_keys: AtomicUsize,
}

/// Counters of a party's jobs since its account was opened.
#[derive(Debug, Default)]
struct Counts {
    offered: AtomicU64,
    admitted: AtomicU64,
    throttled: [AtomicU64; Exceeded::ALL.len()],
    over_bounds: AtomicU64,
    shed: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    wait: Histogram,
    service: Histogram,
}

/// A copy of what an account counts.
#[derive(Clone, Debug)]
pub struct AccountSnapshot {
    /// The terms in force.
    pub terms: Arc<Terms>,
    /// Open connections.
    pub connections: usize,
    /// Jobs that have not ended.
    pub jobs_in_flight: usize,
    /// Bytes of their inputs.
    pub bytes_in_flight: u64,
    /// Imported keys that are open.
    pub imported_keys: usize,
    /// Jobs that passed the policy of their key.
    pub offered: u64,
    /// Offered jobs that were handed to the engine.
    pub admitted: u64,
    /// Jobs refused for a rate, in the order of [`Exceeded::ALL`].
    pub throttled: [u64; Exceeded::ALL.len()],
    /// Jobs refused for the bounds on memory.
    pub over_bounds: u64,
    /// Jobs that the engine ended because it was busy: refused at once, or expired while they waited.
    pub shed: u64,
    /// Jobs that ended with a result.
    pub completed: u64,
    /// Jobs that ended in another way.
    pub failed: u64,
    /// Bytes of input of admitted jobs.
    pub bytes: u64,
    /// Time between submission and the start of service.
    pub wait: HistogramSnapshot,
    /// Time that a backend worked on a job.
    pub service: HistogramSnapshot,
}

/// Why an account takes no further job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// [`JobError::OverQuota`] or [`JobError::Busy`].
    pub(crate) error: JobError,
    /// Delay before the next attempt.
    pub(crate) retry_after: Duration,
}

/// Delay before the next attempt after a bound on memory is reached: about the time of a job under load.
const BOUND_RETRY: Duration = Duration::from_millis(10);

impl Account {
    /// An account without anything in it.
    #[must_use]
    pub fn new(terms: Arc<Terms>, now: Instant) -> Self {
        Self {
            quota: Quota::new(terms.rates.clone(), now),
            terms: RwLock::new((0, terms)),
            held: Held::default(),
            counts: Counts::default(),
        }
    }

    /// An account without limits, for simulations of a session.
    #[must_use]
    pub fn unlimited(identity: &str, now: Instant) -> Self {
        let terms = Settings::default().terms_of_identity(identity);
        Self::new(Arc::new(terms), now)
    }

    /// The terms in force.
    #[must_use]
    pub fn terms(&self) -> Arc<Terms> {
        Arc::clone(&self.terms.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Puts terms of the same party in force, unless those of a later revision of the settings are: a session that
    /// notices a change late must not take the next one back.
    pub fn set_terms(&self, terms: Arc<Terms>, revision: u64, now: Instant) {
        let mut in_force = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        if in_force.0 <= revision {
            self.quota.set_rates(&terms.rates, now);
            *in_force = (revision, terms);
        }
    }

    /// Takes a job in, or says why not.
    pub(crate) fn admit(
        &self,
        operation: OperationKind,
        key: KeyType,
        bytes: usize,
        now: Instant,
    ) -> Result<(), Refused> {
        let Counts { offered, admitted, throttled, over_bounds, .. } = &self.counts;
        offered.fetch_add(1, Ordering::Relaxed);
        let size = u64::try_from(bytes).unwrap_or(u64::MAX);
        if !self.hold(size) {
            over_bounds.fetch_add(1, Ordering::Relaxed);
            return Err(Refused { error: JobError::Busy, retry_after: BOUND_RETRY });
        }
        // The last check, so that only jobs that would be done count against the quota.
        if let Err(over) = self.quota.take(operation, key, bytes, now) {
            self.release(1, size);
            throttled[over.exceeded.index()].fetch_add(1, Ordering::Relaxed);
            return Err(Refused { error: JobError::OverQuota, retry_after: over.retry_after });
        }
        admitted.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(size, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a job in flight; `false` if a bound is reached.
    fn hold(&self, bytes: u64) -> bool {
        let Bounds { jobs_in_flight, bytes_in_flight, .. } =
            self.terms.read().unwrap_or_else(PoisonError::into_inner).1.bounds;
        let jobs = self.held.jobs.fetch_add(1, Ordering::Relaxed);
        let before = self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One job is always possible: a bound below one input would end all service.
        let fits = before.saturating_add(bytes) <= bytes_in_flight || jobs == 0;
        if jobs < jobs_in_flight && fits {
            return true;
        }
        self.release(1, bytes);
        false
    }

    /// Takes over jobs in flight, whatever the bounds: a session that changes its account keeps them.
    pub(crate) fn adopt(&self, jobs: usize, bytes: u64, imported_keys: usize) {
        self.held.jobs.fetch_add(jobs, Ordering::Relaxed);
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held.imported_keys.fetch_add(imported_keys, Ordering::Relaxed);
    }

    /// Ends jobs in flight.
    pub(crate) fn release(&self, jobs: usize, bytes: u64) {
        self.held.jobs.fetch_sub(jobs, Ordering::Relaxed);
        self.held.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts an imported key; `false` if the bound is reached.
    pub(crate) fn hold_key(&self) -> bool {
        let most = self.terms().bounds.imported_keys;
        let held = &self.held.imported_keys;
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |keys| {
            (keys < most).then_some(keys + 1)
        })
        .is_ok()
    }

    /// Closes imported keys.
    pub(crate) fn release_keys(&self, keys: usize) {
        self.held.imported_keys.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Open connections of the party.
    pub(crate) fn connections(&self) -> usize {
        self.held.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn connected(&self) {
        self.held.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn disconnected(&self) {
        self.held.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts the end of an admitted job.
    pub(crate) fn count(&self, completion: &Completion) {
        let Counts { shed, completed, failed, wait, service, .. } = &self.counts;
        match completion.result {
            Ok(_) => {
                completed.fetch_add(1, Ordering::Relaxed);
                wait.record(completion.queue_time);
                service.record(completion.service_time);
            }
            Err(JobError::Busy | JobError::Expired) => {
                shed.fetch_add(1, Ordering::Relaxed);
            }
            Err(
                JobError::NoSuchKey
                | JobError::NotOffered
                | JobError::Denied
                | JobError::BadInput
                | JobError::Cancelled
                | JobError::Draining
                | JobError::Failed
                | JobError::OverQuota,
            ) => {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A copy of the counts.
    #[must_use]
    pub fn snapshot(&self) -> AccountSnapshot {
        let Held { connections, jobs, bytes: bytes_in_flight, imported_keys } = &self.held;
        let Counts {
            offered,
            admitted,
            throttled,
            over_bounds,
            shed,
            completed,
            failed,
            bytes,
            wait,
            service,
        } = &self.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AccountSnapshot {
            terms: self.terms(),
            connections: connections.load(Ordering::Relaxed),
            jobs_in_flight: jobs.load(Ordering::Relaxed),
            bytes_in_flight: get(bytes_in_flight),
            imported_keys: imported_keys.load(Ordering::Relaxed),
            offered: get(offered),
            admitted: get(admitted),
            throttled: throttled.each_ref().map(get),
            over_bounds: get(over_bounds),
            shed: get(shed),
            completed: get(completed),
            failed: get(failed),
            bytes: get(bytes),
            wait: wait.snapshot(),
            service: service.snapshot(),
        }
    }
}

/// All accounts, by party. Bound: tenants of the node, and identities that are connected or whose quota is not full
/// again.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<HashMap<Arc<str>, Arc<Account>>>);

impl Accounts {
    /// The account for a new session of a party.
    pub(crate) fn of(&self, terms: &Arc<Terms>, now: Instant) -> Arc<Account> {
        let mut accounts = self.lock();
        if let Some(account) = accounts.get(&terms.party) {
            return Arc::clone(account);
        }
        // Only accounts with a full quota are dropped: reconnecting must not renew a quota. Those of tenants
        // stay, with their counts.
        accounts.retain(|_, account| {
            Arc::strong_count(account) > 1
                || account.terms().tenant().is_some()
                || !account.quota.is_unused(now)
        });
        let account = Arc::new(Account::new(Arc::clone(terms), now));
        accounts.insert(Arc::clone(&terms.party), Arc::clone(&account));
        account
    }

    /// Puts the terms of a directory in force, and drops accounts of tenants that it does not have once no session
    /// holds them.
    pub(crate) fn apply(
        &self,
        directory: &Directory,
        settings: &Settings,
        revision: u64,
        now: Instant,
    ) {
        let mut accounts = self.lock();
        for terms in directory.tenants() {
            let account = accounts
                .entry(Arc::clone(&terms.party))
                .or_insert_with(|| Arc::new(Account::new(Arc::clone(terms), now)));
            account.set_terms(Arc::clone(terms), revision, now);
        }
        accounts.retain(|party, account| {
            let terms = settings.terms_of_party(party, directory);
            if let Some(terms) = &terms {
                account.set_terms(Arc::clone(terms), revision, now);
            }
            terms.is_some() || Arc::strong_count(account) > 1
        });
    }

    /// The accounts of tenants, by name.
    pub(crate) fn of_tenants(&self) -> Vec<AccountSnapshot> {
        let accounts: Vec<Arc<Account>> = self.lock().values().cloned().collect();
        let mut rows: Vec<AccountSnapshot> = accounts
            .iter()
            .map(|account| account.snapshot())
            .filter(|row| row.terms.tenant().is_some())
            .collect();
        rows.sort_by(|a, b| a.terms.party.cmp(&b.terms.party));
        rows
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Account>>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{Rate, Rates};

    const SIGN: OperationKind = OperationKind::RsaPssSign;
    const RSA: KeyType = KeyType::Rsa { bits: 2048 };

    fn terms(party: &str, ops: u64, bounds: Bounds) -> Arc<Terms> {
        Arc::new(Terms {
            rates: Rates { ops: Rate::per_second(ops), ..Rates::default() },
            bounds,
            ..Settings::default().terms_of_identity(party)
        })
    }

    fn take(account: &Account, now: Instant, tries: u32) -> usize {
        let admitted = |_: &u32| account.admit(SIGN, RSA, 32, now).is_ok();
        let taken = (0..tries).filter(admitted).count();
        account.release(taken, taken as u64 * 32);
        taken
    }

    #[test]
    fn terms_of_an_earlier_revision_do_not_come_back() {
        let now = Instant::now();
        let account = Account::new(terms("uid:1", 5, Bounds::default()), now);
        account.set_terms(terms("uid:1", 4, Bounds::default()), 2, now);
        account.set_terms(terms("uid:1", 1000, Bounds::default()), 1, now);
        let later = now + Duration::from_secs(60);
        assert_eq!(take(&account, later, 50), 4, "the later ones");
        account.set_terms(terms("uid:1", 1000, Bounds::default()), 3, later);
        assert_eq!(take(&account, later + Duration::from_secs(60), 50), 50);
    }

    #[test]
    fn account_is_shared_and_not_renewed_by_reconnecting() {
        let start = Instant::now();
        let accounts = Accounts::default();
        let of = |party: &str, now| accounts.of(&terms(party, 10, Bounds::default()), now);
        let first = of("uid:1", start);
        let second = of("uid:1", start);
        assert_eq!(take(&first, start, 6) + take(&second, start, 6), 10);
        drop((first, second));
        assert_eq!(take(&of("uid:2", start), start, 20), 10);
        let again = of("uid:1", start);
        assert_eq!(take(&again, start, 5), 0);
        assert_eq!(take(&again, start + Duration::from_millis(100), 5), 1);
    }

    #[test]
    fn account_of_a_disconnected_identity_is_dropped_once_its_quota_is_full() {
        let start = Instant::now();
        let accounts = Accounts::default();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let terms = terms(&format!("cert:{second}"), 10, Bounds::default());
            assert_eq!(take(&accounts.of(&terms, now), now, 1), 1);
        }
        assert!(accounts.lock().len() <= 2);
    }

    #[test]
    fn jobs_bytes_and_keys_of_a_party_are_bounded() {
        let now = Instant::now();
        let bounds =
            Bounds { jobs_in_flight: 3, bytes_in_flight: 100, imported_keys: 2, connections: 0 };
        let account = Account::new(terms("uid:1", 0, bounds), now);
        let admit = |bytes| account.admit(SIGN, RSA, bytes, now).map_err(|refused| refused.error);
        assert_eq!(admit(500), Ok(()), "a single job of any size");
        assert_eq!(admit(1), Err(JobError::Busy));
        account.release(1, 500);
        assert_eq!([admit(40), admit(40), admit(40)], [Ok(()), Ok(()), Err(JobError::Busy)]);
        assert_eq!([admit(1), admit(1)], [Ok(()), Err(JobError::Busy)]);
        assert!(account.hold_key() && account.hold_key() && !account.hold_key());
        account.release_keys(1);
        assert!(account.hold_key());
        let counts = account.snapshot();
        assert_eq!((counts.offered, counts.admitted, counts.over_bounds), (7, 4, 3));
        assert_eq!((counts.jobs_in_flight, counts.bytes_in_flight), (3, 81));
    }

    #[test]
    fn throttled_job_is_not_in_flight_and_names_its_rate() {
        let now = Instant::now();
        let account = Account::new(terms("uid:1", 2, Bounds::default()), now);
        assert!(account.admit(SIGN, RSA, 32, now).is_ok());
        assert!(account.admit(SIGN, RSA, 32, now).is_ok());
        let refused = account.admit(SIGN, RSA, 32, now).unwrap_err();
        assert_eq!(refused.error, JobError::OverQuota);
        assert_eq!(refused.retry_after, Duration::from_millis(500));
        let counts = account.snapshot();
        assert_eq!((counts.jobs_in_flight, counts.bytes_in_flight), (2, 64));
        assert_eq!(counts.throttled, [1, 0, 0]);
    }
}
