// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A key that is open at the pool, with the operations that the pool has lately denied for it.
//!
//! The policy of a key may change while the key is open, and the node applies the policy in force when a job
//! arrives. So a denial counts for [`DENIAL_LASTS`]; after that the operation is sent again, and the nodes decide. What
//! the first node lists when it opens the key is no denial: another node may have a wider policy.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_operation::{Hash, Operation, OperationKind};

use crate::remote::Remote;

/// Time for which a denied operation is not sent again. A policy that was widened is seen within it, and a
/// gateway whose clients keep asking for a denied operation costs the node about one job per second.
pub const DENIAL_LASTS: Duration = Duration::from_secs(1);

/// The part of an operation that a policy looks at. There are fewer than a hundred for one key, which bounds
/// the list of denials.
type Permission = (OperationKind, [Option<Hash>; 2]);

fn permission(operation: &Operation) -> Permission {
    (operation.kind(), operation.hashes())
}

/// A key that is open at the pool.
pub struct OpenKey {
    /// The key at the pool.
    pub remote: Arc<dyn Remote>,
    denials: Mutex<Vec<(Permission, Instant)>>,
}

impl std::fmt::Debug for OpenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenKey").finish_non_exhaustive()
    }
}

impl OpenKey {
    /// A key that a node has opened just now.
    #[must_use]
    pub fn new(remote: Arc<dyn Remote>) -> Self {
        Self { remote, denials: Mutex::default() }
    }

    /// Whether the pool has denied the operation within [`DENIAL_LASTS`].
    #[must_use]
    pub fn denied_lately(&self, operation: &Operation, now: Instant) -> bool {
        let asked = permission(operation);
        let denials = lock(&self.denials);
        let mut answers = denials.iter().filter(|(denied, _)| *denied == asked);
        answers.any(|(_, at)| now.saturating_duration_since(*at) < DENIAL_LASTS)
    }

    /// The node has answered that the operation is denied.
    pub fn deny(&self, operation: &Operation, now: Instant) {
        let answered = permission(operation);
        let mut denials = lock(&self.denials);
        denials.retain(|(denied, _)| *denied != answered);
        denials.push((answered, now));
    }
}
