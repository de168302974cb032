// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The node's side: when it registers and shows that it is there, and which grants are in force. Pure; the caller
//! sends the messages and passes the time.
//!
//! ```text
//!  due(now) ─► Register ─► registered(lease) ─► Heartbeat ─► applied(set)  ─┐ every ttl / 3
//!     ▲                                            ▲  └─────────────────────┘
//!     └──── fenced: register again ────────────────┘
//! ```
//!
//! The life of a grant begins when the *request* was sent whose answer brought it, by the node's monotonic clock: the
//! manager signed it later than that, so the node's belief ends first, however long the answer was under way. The
//! clock must also count the time in which the machine sleeps (`CLOCK_BOOTTIME`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millrace_service::enforcement::OnExpiry;
use millrace_service::grant::{Grant, GrantError, GrantKey, GrantKeys, SignedGrant};
use millrace_service::tenants::IdentityPattern;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::{KeyName, NodeName, TenantName};
use super::node::Lease;

/// Wait after a failed request; doubles up to a tenth of `ttl`.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Registered {
    /// Lease of this registration.
    pub lease: Lease,
    /// Life of grants and of the lease after a heartbeat was sent.
    pub ttl_ms: u64,
    /// Keys with which this pool's managers sign grants, for a node that pins none.
    #[schemars(with = "Vec<String>")]
    pub grant_keys: Vec<GrantKey>,
}

/// The answer to a heartbeat: everything that the node may do, not only what has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GrantSet {
    /// Fence of the lease for which it is.
    pub fence: u64,
    /// Revision of the set. The node's next heartbeat says that it has applied it.
    pub revision: u64,
    /// Life of the grants from the moment at which the heartbeat was sent.
    pub ttl_ms: u64,
    /// Time until the next heartbeat.
    pub next_ms: u64,
    /// The grants. A tenant without one is no longer served.
    #[schemars(with = "Vec<String>")]
    pub grants: Vec<SignedGrant>,
    /// Identities of tenants without a grant that patterns in the grants cover: the longest pattern decides over the
    /// whole pool, so they belong to no tenant of this node.
    #[serde(default)]
    #[schemars(with = "BTreeSet<String>")]
    pub elsewhere: BTreeSet<IdentityPattern>,
    /// All keys that the node is to have, with their versions; it deletes others that it got from the manager.
    pub keys: Vec<(KeyName, u64)>,
    /// Keys that it does not have yet, sealed to its public key, in base64.
    #[serde(default)]
    pub sealed_keys: Vec<SealedKey>,
}

/// A private key on its way to one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SealedKey {
    /// Name of the key.
    pub name: KeyName,
    /// Version of the key.
    pub version: u64,
    /// The tenants that may use it.
    pub tenants: BTreeSet<TenantName>,
    /// HPKE's encapsulated secret, in base64.
    pub encapsulated: String,
    /// The PKCS#8, sealed, in base64.
    pub ciphertext: String,
}

/// A [`GrantSet`] whose signatures were verified.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedSet {
    /// Fence of the lease for which it is.
    pub fence: u64,
    /// Revision of the set.
    pub revision: u64,
    /// Time until the next heartbeat.
    pub next: Duration,
    /// The grants.
    pub grants: Vec<Grant>,
}

/// Message that the node has to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// None.
    Nothing {
        /// Time at which one is due.
        until: Instant,
    },
    /// A registration.
    Register,
    /// A heartbeat.
    Heartbeat {
        /// Fence of the node's lease.
        fence: u64,
        /// Revision in force.
        applied: u64,
    },
}

/// The grants that a node may act on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InForce<'a> {
    /// None: every identity is refused.
    Nothing,
    /// The grants as they are.
    Whole(&'a [Grant]),
    /// Expired: only [`safe_share`](millrace_service::rates::Rates::safe_share) of each.
    Safe(&'a [Grant]),
}

/// Why a set of grants is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// A grant cannot be verified.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The grants are for another lease.
    #[error("the grants are for fence {0}, which this node does not hold")]
    OtherLease(u64),
    /// A later one is in force.
    #[error("the grants have revision {set}, and {applied} is in force")]
    OutOfDate {
        /// Revision of the set.
        set: u64,
        /// Revision in force.
        applied: u64,
    },
    /// The answer took longer than the grants live.
    #[error("the grants had expired before they arrived")]
    TooLate,
}

/// The set in force.
#[derive(Debug)]
struct Set {
    fence: u64,
    revision: u64,
    until: Instant,
    grants: Vec<Grant>,
}

/// State of a node towards its manager.
#[derive(Debug)]
pub struct Holder {
    name: NodeName,
    on_expiry: OnExpiry,
    /// Fence and life of the lease.
    lease: Option<(u64, Duration)>,
    set: Option<Set>,
    next: Instant,
    retry: Duration,
    seen: u64,
}

impl Holder {
    /// A node that has not registered.
    #[must_use]
    pub const fn new(name: NodeName, on_expiry: OnExpiry, now: Instant) -> Self {
        Self { name, on_expiry, lease: None, set: None, next: now, retry: FIRST_RETRY, seen: 0 }
    }

    /// The message that is due, or the time at which one will be.
    #[must_use]
    pub fn due(&self, now: Instant) -> Due {
        match self.lease {
            _ if self.next > now => Due::Nothing { until: self.next },
            None => Due::Register,
            Some((fence, _)) => Due::Heartbeat { fence, applied: self.applied() },
        }
    }

    /// Highest fence or revision seen, for the registration.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// Fence of the lease.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.lease.map(|(fence, _)| fence)
    }

    /// Revision of the grants in force under the present lease.
    #[must_use]
    pub fn applied(&self) -> u64 {
        let set = self.set.as_ref();
        set.filter(|set| Some(set.fence) == self.fence()).map_or(0, |set| set.revision)
    }

    /// Takes the lease; a heartbeat is due at once. Grants of a former lease stay in force until the first set.
    pub fn registered(&mut self, lease: &Lease, ttl: Duration, now: Instant) {
        self.lease = Some((lease.fence, ttl));
        self.seen = self.seen.max(lease.fence);
        self.next = now;
        self.retry = FIRST_RETRY;
    }

    /// Whether an answer is for the present lease, not older than what is in force, and in time; returns the life of
    /// its grants.
    ///
    /// # Errors
    /// [`SetError::OtherLease`], [`SetError::OutOfDate`], [`SetError::TooLate`].
    pub fn check(
        &self,
        set: &VerifiedSet,
        sent: Instant,
        now: Instant,
    ) -> Result<Duration, SetError> {
        let Some((_, ttl)) = self.lease.filter(|(own, _)| *own == set.fence) else {
            return Err(SetError::OtherLease(set.fence));
        };
        let applied = self.applied();
        if set.revision < applied {
            return Err(SetError::OutOfDate { set: set.revision, applied });
        }
        if sent + ttl <= now {
            return Err(SetError::TooLate);
        }
        Ok(ttl)
    }

    /// Takes a set. `sent` is the time at which the heartbeat was sent that it answers.
    ///
    /// # Errors
    /// The set is not taken, and what was in force stays.
    pub fn apply(&mut self, set: VerifiedSet, sent: Instant, now: Instant) -> Result<(), SetError> {
        let ttl = self.check(&set, sent, now)?;
        let VerifiedSet { fence, revision, next, grants } = set;
        for grant in &grants {
            if grant.node != self.name.as_str() {
                return Err(GrantError::OtherNode(grant.node.clone()).into());
            }
            if grant.fence != fence {
                return Err(SetError::OtherLease(grant.fence));
            }
        }
        let mut until = sent + ttl;
        if revision == self.applied() {
            // Answers may overtake each other; each one is true.
            until = self.set.as_ref().map_or(until, |set| until.max(set.until));
        }
        self.seen = self.seen.max(revision);
        self.set = Some(Set { fence, revision, until, grants });
        self.next = now + next.min(ttl / 3);
        self.retry = FIRST_RETRY;
        Ok(())
    }

    /// The manager did not answer.
    pub fn failed(&mut self, now: Instant) {
        self.next = now + self.retry;
        let most = self.lease.map_or(Duration::from_secs(3), |(_, ttl)| ttl / 10);
        self.retry = (self.retry * 2).min(most);
    }

    /// The manager has closed the lease: register again. What is in force stays until it expires.
    pub fn fenced(&mut self, fence: u64, now: Instant) {
        if self.fence() == Some(fence) {
            self.lease = None;
            self.next = now;
        }
    }

    /// An operator has removed the node: nothing is in force any more. The caller deletes the manager's keys.
    pub fn removed(&mut self, now: Instant) {
        self.lease = None;
        self.set = None;
        self.next = now + Duration::from_secs(30);
    }

    /// Grants in force now: all, their safe shares, or none.
    #[must_use]
    pub fn in_force(&self, now: Instant) -> InForce<'_> {
        match &self.set {
            None => InForce::Nothing,
            Some(set) if now < set.until => InForce::Whole(&set.grants),
            Some(set) => match self.on_expiry {
                OnExpiry::SafeShare => InForce::Safe(&set.grants),
                OnExpiry::Refuse => InForce::Nothing,
            },
        }
    }

    /// Time at which the grants in force expire.
    #[must_use]
    pub fn expires(&self) -> Option<Instant> {
        self.set.as_ref().map(|set| set.until)
    }
}

impl GrantSet {
    /// The set with its grants, if `keys` have signed all of them.
    ///
    /// # Errors
    /// The first grant that does not verify.
    pub fn verify(&self, keys: &GrantKeys) -> Result<VerifiedSet, GrantError> {
        let grants = self.grants.iter().map(|grant| grant.verify(keys).cloned());
        Ok(VerifiedSet {
            fence: self.fence,
            revision: self.revision,
            next: Duration::from_millis(self.next_ms),
            grants: grants.collect::<Result<_, _>>()?,
        })
    }
}
